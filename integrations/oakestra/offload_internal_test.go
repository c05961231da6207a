// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// A veth leaves checksums to a card that it does not have, until offload is disabled.
func TestCompleteChecksums(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	done := make(chan struct{})
	go func() { // the thread ends with the goroutine, and the namespace with the thread
		defer close(done)
		runtime.LockOSThread()
		ns, err := netns.New()
		if err != nil {
			t.Error(err)
			return
		}
		defer ns.Close()
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "oakt0"
		veth := netlink.NewVeth(attrs)
		veth.PeerName = "oakt1"
		if err := netlink.LinkAdd(veth); err != nil {
			t.Error(err)
			return
		}
		if !leavesChecksums("oakt0") || leavesChecksums("lo") || leavesChecksums("none") {
			t.Error("leavesChecksums is wrong")
		}
		if on, err := netlab.TxChecksum("oakt1"); err != nil || !on {
			t.Errorf("before: %v, %v", on, err)
		}
		if err := completeChecksums(ns, "oakt1"); err != nil {
			t.Error(err)
		}
		if on, err := netlab.TxChecksum("oakt1"); err != nil || on {
			t.Errorf("after: %v, %v", on, err)
		}
		if err := completeChecksums(ns, "none"); err == nil {
			t.Error("no error for an interface that does not exist")
		}
	}()
	<-done
}
