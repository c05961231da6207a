// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

func (n *node) checkPurged(o objects) {
	n.T.Helper()
	if _, err := os.Lstat(n.BPF); err == nil {
		n.T.Errorf("%s still exists", n.BPF)
	}
	for _, h := range []ebpf.AttachType{tcxIngress, tcxEgress} {
		if ids := n.attached(n.web, h); len(ids) > 0 {
			n.T.Errorf("%v of web still has programs %v", h, ids)
		}
	}
	alive := o.left()
	for deadline := time.Now().Add(nodetest.Patience); len(alive) > 0 && time.Now().Before(deadline); alive = o.left() {
		time.Sleep(50 * time.Millisecond) // the kernel frees after a grace period
	}
	if len(alive) > 0 {
		n.T.Errorf("the kernel still has %v", alive)
	}
}

func TestPurge(t *testing.T) {
	for name, end := range map[string]func(*node){"after SIGTERM": func(n *node) { n.Stop() },
		"after kill -9": func(n *node) { n.Kill() }} {
		t.Run(name, func(t *testing.T) {
			n := newRunningNode(t)
			stamp := n.stamp(1)
			stamp.Spec.Hook = "xdp"
			n.apply(n.pass("count", "*"), stamp)
			o := n.objects()
			if len(o.programs) != 3 || len(o.links) != 5 || len(o.maps) < 3 {
				t.Fatalf("before the purge: %+v", o)
			}
			n.refused(n.kerb("purge", n.Flags()...), 5, "stop it first")
			if len(o.left()) < 11 {
				t.Fatal("a refused purge has removed something")
			}
			end(n)
			if out := n.must("purge", n.Flags()...); out != "nothing of Kerb is left in the kernel\n" {
				t.Errorf("purge prints %q", out)
			}
			n.checkPurged(o)
			n.start() // the desired state still exists
			n.settled(map[string]int{"stamp": 1, "count": 4})
			n.apply(module("icpt", "intercept", "app=web", stealing(ctrlPort))) // has a socket
			o = n.objects()
			end(n)
			for _, half := range []string{"state.db.new", ".interfaces.json1"} { // of a killed agent
				if err := os.WriteFile(filepath.Join(n.State, half), nil, 0o600); err != nil {
					n.T.Fatal(err)
				}
			}
			n.must("purge", append(n.Flags(), "--all")...)
			n.checkPurged(o)
			for _, dir := range []string{n.State, n.Run} {
				if _, err := os.Lstat(dir); err == nil {
					t.Errorf("%s still exists", dir)
				}
			}
			n.must("purge", n.Flags()...) // purging nothing is not an error
		})
	}
}
