// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"strings"
	"testing"
	"unicode/utf8"
)

const columns, tab = 120, 4

// longLines is how many lines of each area are longer than 120 columns, with tabs of 4. A number may only go down.
var longLines = map[string]int{
	"api":                 44,
	"bench":               323,
	"bpf":                 112,
	"cmd":                 7,
	"docs":                5,
	"examples":            30,
	"intercept":           40,
	"internal/agent":      251,
	"internal/bounded":    2,
	"internal/cgroup":     4,
	"internal/claim":      6,
	"internal/cli":        160,
	"internal/config":     19,
	"internal/control":    134,
	"internal/dataplane":  135,
	"internal/demo":       32,
	"internal/doctor":     29,
	"internal/executable": 39,
	"internal/fault":      1,
	"internal/feed":       2,
	"internal/fusetest":   5,
	"internal/kerbabi":    3,
	"internal/lean":       5,
	"internal/models":     32,
	"internal/nearest":    1,
	"internal/netlab":     1,
	"internal/node":       8,
	"internal/oakestra":   68,
	"internal/oci":        64,
	"internal/pkgs":       96,
	"internal/pkttest":    6,
	"internal/plan":       25,
	"internal/resolve":    97,
	"internal/scratch":    4,
	"internal/seed":       1,
	"internal/server":     120,
	"internal/service":    44,
	"internal/sockets":    13,
	"internal/store":      17,
	"internal/traffic":    4,
	"internal/unixlisten": 4,
	"internal/yamldoc":    8,
	"kmod":                23,
	"lib":                 69,
	"modules":             2,
	"modules/accelerator": 187,
	"modules/classifier":  256,
	"modules/counter":     18,
	"modules/firewall":    190,
	"modules/gen":         4,
	"modules/intercept":   163,
	"modules/proxy":       264,
	"modules/responder":   254,
	"modules/tunnel":      136,
	"sdk":                 68,
	"test":                289,
}

// Lines have at most 120 columns. Older ones that are longer are counted, so that no new ones come.
func TestLongLines(t *testing.T) {
	found := map[string]int{}
	for _, suffix := range []string{".go", ".c", ".h"} {
		for _, file := range files(t, suffix) {
			if strings.Contains(file, "_gen.") || strings.Contains(file, "testdata/") {
				continue
			}
			found[area(file)] += countLong(read(t, file))
		}
	}
	for area, n := range found {
		if n > longLines[area] {
			t.Errorf("%s has %d lines over %d columns, %d are allowed: break the new ones", area, n, columns, longLines[area])
		}
	}
}

// area is the directory at the top; of internal and modules the one below.
func area(file string) string {
	parts := strings.Split(file, "/")
	if len(parts) > 2 && (parts[0] == "internal" || parts[0] == "modules") {
		return parts[0] + "/" + parts[1]
	}
	return parts[0]
}

func countLong(text string) (n int) {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if utf8.RuneCountInString(line)+(tab-1)*strings.Count(line, "\t") > columns {
			n++
		}
	}
	return n
}
