// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/droptest"
)

// A packet that all modules pass, and that the kernel drops, has the kernel's reason. A packet dropped by a module has
// none. If the kernel does not report dropped packets, one sentence says so, and the packets are still shown.
func TestKernelDrops(t *testing.T) {
	n := newRunningNode(t)
	n.sendDropped(9, 53) // nothing listens on 9
	seen := map[string]int{}
	n.refused(n.kerb("trace", "--last", "--after"), 2, "after", "remove last")
	r := n.kerb("trace", "--service", "db", "--protocol", "udp", "--after", "--count", "20", "-o", "json")
	shown := droptest.Shown()
	warned := strings.HasPrefix(r.stderr, "warning: no drops of the kernel are shown: ")
	if r.code != 0 || warned != (shown != nil) || strings.Count(r.stderr, "\n") > 1 {
		t.Errorf("kerb trace --after prints %q (%d); the kernel shows drops: %v", r.stderr, r.code, shown)
	}
	for lines := json.NewDecoder(strings.NewReader(r.stdout)); lines.More(); {
		var p v1.TracedPacket
		if err := lines.Decode(&p); err != nil {
			t.Fatal(err)
		}
		if p.Direction != "ingress" {
			continue
		}
		verdict, reason := p.Steps[len(p.Steps)-1].Verdict, "none"
		if k := p.KernelDrop; k != nil {
			reason = k.Reason
			if k.Function == "" || k.Time.Before(p.Time) || k.Time.Sub(p.Time) > time.Minute {
				t.Errorf("%+v of %+v", k, p)
			}
		}
		seen[verdict+" "+reason]++
	}
	passed := "next NO_SOCKET"
	if shown != nil {
		passed = "next none"
	}
	if seen[passed] == 0 || seen["drop none"] == 0 || len(seen) != 2 {
		t.Errorf("packets by verdict and reason: %v\n%s", seen, r.stdout)
	}
	if shown != nil {
		return
	}
	n.expect("trace", []string{"--service", "db", "--port", "9", "--after", "--count", "2"}, "> kernel ",
		"dropped (NO_SOCKET) in ")
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		return
	}
	file := filepath.Join(t.TempDir(), "after.pcapng")
	n.kerb("trace", "--service", "db", "--port", "9", "--after", "--count", "4", "-w", file)
	comments, err := exec.Command(tshark, "-r", file, "-T", "fields", "-e", "frame.comment").Output()
	if err != nil || !strings.Contains(string(comments), "fw:next") ||
		!strings.Contains(string(comments), "then kernel: dropped (NO_SOCKET) in ") {
		t.Errorf("tshark: %v\n%s", err, comments)
	}
}
