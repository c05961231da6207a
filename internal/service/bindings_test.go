// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Only a deleted link leaves its service: neither a service that cannot be found, nor a failure to look for it.
func TestBindingsHold(t *testing.T) {
	lab := newLab(t)
	h := newHost(t, lab, "web")
	prefix := netip.PrefixFrom(h.Addr4(), 16)
	path := filepath.Join(t.TempDir(), "interfaces.json")
	within(t, lab.Node(), func() error {
		l := Link{Name: h.Outer(), Ifindex: h.OuterIndex(), PeerAddresses: []netip.Prefix{prefix}}
		b, err := OpenBindings(path)
		if err != nil {
			return err
		}
		found := map[string]State{"web": {Links: []Link{l}}, "b": {Links: []Link{l}}}
		owners := b.Merge(found)
		if owners[l.Ifindex] != "b" {
			t.Errorf("of two services with one interface %q is the owner", owners[l.Ifindex])
		}
		owners[l.Ifindex] = "web"
		if err := b.Bind(found, owners); err != nil {
			return err
		}
		if b, err = OpenBindings(path); err != nil { // another agent
			return err
		}
		if got := b.Merge(map[string]State{"web": {Links: []Link{l}}, "b": {Links: []Link{l}}}); got[l.Ifindex] != "web" {
			t.Errorf("the interface was web's, and is %q's", got[l.Ifindex])
		}
		for name, c := range map[string]struct {
			now    State
			left   bool
			addrs  int
			sought Link
		}{
			"namespace gone":        {State{Err: fmt.Errorf("x: %w", ErrNamespaceGone)}, true, 0, l},
			"nothing there":         {State{}, true, 0, l},
			"not looked up":         {State{Err: unix.EMFILE}, false, 1, l},
			"there as ever":         {State{Links: []Link{l}}, false, 0, l},
			"other interface there": {State{Links: []Link{{Name: "x", Ifindex: l.Ifindex + 1}}}, true, 0, l},
		} {
			states := map[string]State{"web": c.now}
			b.Merge(states)
			var held *Link
			for _, got := range states["web"].Links {
				if got.Ifindex == l.Ifindex {
					held = &got
				}
			}
			if held == nil || held.Left != c.left || len(states["web"].Addresses) != c.addrs {
				t.Errorf("%s: %+v", name, states["web"])
			}
		}
		if states := map[string]State{"other": {}}; len(b.Merge(states)) != 0 || len(states["other"].Links) != 0 {
			t.Errorf("a deleted service: %+v", states)
		}
		if err := netlink.LinkDel(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: h.Outer(),
			Index: h.OuterIndex()}}); err != nil {
			return err
		}
		if states := map[string]State{"web": {}}; len(b.Merge(states)) != 0 || len(states["web"].Links) != 0 {
			t.Errorf("a deleted interface: %+v", states)
		}
		return nil
	})
}

// An index that another link has now is nothing to hold on to, and bindings of another boot or node are not read.
func TestBindingsOfOthers(t *testing.T) {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "interfaces.json")
	b, err := OpenBindings(path)
	if err != nil {
		t.Fatal(err)
	}
	was := Link{Name: "veth0", Ifindex: lo.Index, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
	if err := b.Bind(map[string]State{"web": {Links: []Link{was}}}, map[int]string{lo.Index: "web"}); err != nil {
		t.Fatal(err)
	}
	if states := map[string]State{"web": {}}; len(b.Merge(states)) != 0 {
		t.Errorf("the index is another's: %+v", states)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), b.home.Boot, "another", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err = OpenBindings(path); err != nil || len(b.held) != 0 {
		t.Errorf("of another boot: %+v, %v", b.held, err)
	}
	for damaged, fails := range map[string]bool{
		"": false, "\x00\x00\x00\x00": false, `{"boot":"another","netns":40265318`: false,
		string(text[:len(text)/2]): true, // in the present boot the file is replaced in one step
	} {
		if err := os.WriteFile(path, []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		if b, err = OpenBindings(path); (err != nil) != fails || b == nil || len(b.held) != 0 {
			t.Errorf("of %q: %v, %v", damaged, b, err)
		}
	}
	b.path = filepath.Join(path, "not a directory")
	if err := b.Bind(map[string]State{"web": {Links: []Link{was}}}, map[int]string{lo.Index: "web"}); !errors.Is(err,
		unix.ENOTDIR) || len(b.held) != 1 {
		t.Errorf("what cannot be kept: %v, %v", b.held, err)
	}
}
