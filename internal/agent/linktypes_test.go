// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/resource"
)

// addTun makes a tun device that claims to be of a link type, and has the agent know it. It ends with the file.
func (n *node) addTun(t *testing.T, name string, linkType int) (*os.File, int) {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no tun devices: %v", err)
	}
	tun := os.NewFile(uintptr(fd), "tun")
	t.Cleanup(func() { tun.Close() })
	req, err := unix.NewIfreq(name)
	if err != nil {
		t.Fatal(err)
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETLINK, linkType); err != nil {
		t.Fatal(err)
	}
	at, err := net.InterfaceByName(name)
	if err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the agent knows "+name, func() bool {
		l := n.Watcher.HostInterfaces()[name]
		return l.Ifindex == at.Index && int(l.Type) == linkType
	})
	return tun, at.Index
}

func onInterface(name, pkg, iface string, config map[string]any) v1.Module {
	m := module(name, pkg, "", config)
	m.Spec.Attach.Interfaces = []string{iface}
	return m
}

func (n *node) refuses(t *testing.T, m v1.Module, field, reason string) {
	t.Helper()
	_, err := n.Apply(t.Context(), resource.Request{Resources: resource.Objects(m)})
	var invalid *apierrors.Invalid
	if !errors.As(err, &invalid) || invalid.Field != field || !strings.Contains(invalid.Reason, reason) {
		t.Errorf("%s on %v: %v, want one about %s: %s", m.Spec.Package, m.Spec.Attach.Interfaces, err, field, reason)
	}
}

// Modules meet only frames that they can read: of Ethernet, unless the package says more and the config no less.
func TestLinkTypes(t *testing.T) {
	n := newNode(t)
	const wpan = "kagwpan"
	tun, ifindex := n.addTun(t, wpan, unix.ARPHRD_IEEE802154)
	pass := onInterface("pass", testPackage(t, "pass"), wpan, nil)
	n.refuses(t, pass, "spec.attach.interfaces", "cannot read the frames of kagwpan (ieee802154), and is not "+
		"attached there: with this config it reads the link types [ethernet]")
	n.refuses(t, onInterface("guard", "classifier", wpan, map[string]any{"extractor": "flow"}), "spec.attach.interfaces",
		"kagwpan (ieee802154)")
	guard := onInterface("guard", "classifier", wpan, nil)
	guard.Spec.Hook = v1.HookTC
	n.apply(t, nil, guard)
	if got := n.chainsAt(t, ifindex); !strings.HasPrefix(got["tc-ingress"], "guard ") {
		t.Errorf("raw frames are judged by %v", got)
	}

	// A name that is Ethernet's now is another type's later.
	tun.Close()
	wait.Until(t, "the interface is known to be gone", func() bool {
		_, err := n.Apply(t.Context(), resource.Request{Resources: resource.Objects(pass)})
		return err == nil
	})
	_, ifindex = n.addTun(t, wpan, unix.ARPHRD_IEEE802154_MONITOR)
	wait.Until(t, "the module reports that it cannot read the interface", func() bool {
		m, err := get(t.Context(), n, resource.Module, "pass")
		return err == nil && strings.Contains(conditionOf(m, "LinkTypeSupported"), "False LinkTypeMismatch cannot read the "+
			"frames of kagwpan (ieee802154)")
	})
	wait.Until(t, "only the one that reads it is there", func() bool {
		return strings.HasPrefix(n.chainsAt(t, ifindex)["tc-ingress"], "guard ")
	})
	if m, err := get(t.Context(), n, resource.Module, "guard"); err != nil || conditionOf(m, "LinkTypeSupported") != "" {
		t.Errorf("guard: %s, %v", conditionOf(m, "LinkTypeSupported"), err)
	}
}

func conditionOf(m v1.Module, kind string) string {
	for _, c := range m.Status.Conditions {
		if c.Type == kind {
			return c.Status + " " + c.Reason + " " + c.Message
		}
	}
	return ""
}

// A config that works on one hook only has auto mean that one, and refuses others.
func TestHookOfConfig(t *testing.T) {
	n := newNode(t)
	mark := onInterface("guard", "classifier", n.web.Outer(),
		map[string]any{"extractor": "flow", "action": map[string]any{"do": "mark"}})
	n.apply(t, nil, mark)
	if got := n.chainsOn(t, n.web); !strings.HasPrefix(got["tc-ingress"], "guard ") || got["xdp"] != "" {
		t.Errorf("packets are to be marked by %v", got)
	}
	mark.Spec.Hook = v1.HookXDP
	n.refuses(t, mark, "spec.hook", "works on [tc] only")
	mark.Spec.Config = map[string]any{"extractor": "flow"}
	n.apply(t, nil, mark)
	if got := n.chainsOn(t, n.web); !strings.HasPrefix(got["xdp"], "guard ") {
		t.Errorf("packets are judged by %v", got)
	}
}
