// SPDX-License-Identifier: Apache-2.0

package memtrim

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// Code runs after its pages were dropped.
func TestDropProgram(t *testing.T) {
	before := resident(t)
	dropProgram()
	if after := resident(t); after >= before {
		t.Errorf("%d KiB of the program were in memory before, and %d after", before, after)
	}
	if text := strings.Repeat("ab", 3); strings.ToUpper(text) != "ABABAB" {
		t.Error(text)
	}
}

// resident returns how many KiB of the program's read-only mappings are in this process's memory.
func resident(t *testing.T) (kib int) {
	t.Helper()
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	counts := false
	for line := range strings.Lines(string(smaps)) {
		line = strings.TrimSuffix(line, "\n")
		if strings.Contains(line, "-") && !strings.HasPrefix(line, "VmFlags") {
			_, _, counts = readOnly(line, program)
		}
		if rest, ok := strings.CutPrefix(line, "Rss:"); ok && counts {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			kib += n
		}
	}
	return kib
}

func TestReadOnly(t *testing.T) {
	for line, want := range map[string]bool{
		"00400000-01069000 r-xp 00000000 fe:00 105 /usr/bin/kerb":                true,
		"01069000-01e8f000 r--p 00c69000 fe:00 105                /usr/bin/kerb": true,
		"01e8f000-023ee000 rw-p 01a8f000 fe:00 105 /usr/bin/kerb":                false, // variables
		"00400000-01069000 r-xs 00000000 fe:00 105 /usr/bin/kerb":                false,
		"00400000-01069000 r-xp 00000000 fe:00 105 /usr/lib/other":               false,
		"7f0000000000-7f0000001000 r--p 00000000 00:00 0":                        false,
		"not a mapping /usr/bin/kerb":                                            false,
	} {
		if start, length, ok := readOnly(line, "/usr/bin/kerb"); ok != want || ok && (start == 0 || length == 0) {
			t.Errorf("%s: %x %x %v", line, start, length, ok)
		}
	}
}
