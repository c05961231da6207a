// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/sdk"
)

// members lists the elements of a set of services.
func (n *node) members(t *testing.T, selector string, all ...string) (has []string) {
	t.Helper()
	maps := sdk.Maps{}
	for _, name := range sdk.SetMaps {
		maps[name] = n.sharedMap(t, name)
	}
	for _, a := range all {
		in, err := maps.SetContains(sdk.SetReference{Services: selector}.ID(), netip.MustParseAddr(a))
		if err != nil {
			t.Fatal(err)
		}
		if in {
			has = append(has, a)
		}
	}
	return has
}

func (n *node) sharedMap(t *testing.T, name string) *ebpf.Map {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(n.cfg.Paths.BPF, "shared", name), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// A service can add addresses of others and of anyone to its network namespace, which gets them in no set.
func TestAddressesOfOthers(t *testing.T) {
	n := newNode(t)
	services := n.both()
	services[0].Metadata.Labels = map[string]string{"role": "web"}
	web, db, outside := n.web.Addr4().String(), n.db.Addr4().String(), "203.0.113.77"
	err := n.web.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		for _, a := range []string{db, outside} {
			address, err := netlink.ParseAddr(a + "/32")
			if err != nil {
				return err
			}
			if err := netlink.AddrAdd(lo, address); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	n.apply(t, services, blocking(map[string]any{"services": "role=web"}))
	if got := n.members(t, "role=web", web, db, outside); !slices.Equal(got, []string{web}) {
		t.Errorf("the set has %v, want %s alone", got, web)
	}
}

// A map without room for the addresses of services keeps no service from getting its chain, and they are written once
// there is room.
func TestFullMapOfServices(t *testing.T) {
	n := newNode(t)
	services := n.both()
	services[1].Metadata.Labels = map[string]string{"role": "db"}
	n.apply(t, services[:1], blocking(map[string]any{"services": "role=db"}))
	var set sdk.Set
	if err := n.sharedMap(t, sdk.SetsMap).Lookup(sdk.SetReference{Services: "role=db"}.ID(), &set); err != nil {
		t.Fatal(err)
	}
	elements := n.sharedMap(t, sdk.SetElementsMap)
	keys := make([]sdk.SetElement, elements.MaxEntries())
	for i := range keys {
		keys[i].Set = set.Version<<1 | 1
		binary.BigEndian.PutUint32(keys[i].Word[:], uint32(i))
	}
	if _, err := elements.BatchUpdate(keys, make([]uint32, len(keys)), nil); err != nil {
		t.Fatal(err)
	}
	r := n.apply(t, services[1:])
	if !strings.Contains(fmt.Sprint(r.Warnings), `addresses of services "role=db": `) {
		t.Errorf("warnings: %q", r.Warnings)
	}
	n.Exclusive.Lock() // as a reconciliation that takes its time does: views have what the last change has made
	if n.chainsOn(t, n.db)["tc-egress"] == "" {
		t.Error("the service has no chain")
	}
	_, err := elements.BatchDelete(keys, nil)
	n.Exclusive.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	n.reconcileNow(t)
	n.blocked(t, true)
}
