// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/sdk"
)

// Sets beyond the room of the kernel are refused with what to do, and leave the set that is there as it is.
func TestSetsFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	made := sdk.Maps{}
	for name, spec := range setSpecs() {
		spec.MaxEntries = 2
		m, err := ebpf.NewMap(spec)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		made[name] = m
	}
	s, err := NewSets(made)
	if err != nil {
		t.Fatal(err)
	}
	p := netip.MustParsePrefix
	few := Elements{List: []netip.Prefix{p("192.0.2.1/32")}}
	if err := s.Replace(1, 1, few, nil); err != nil {
		t.Fatal(err)
	}
	many := Elements{List: []netip.Prefix{p("192.0.2.2/32"), p("192.0.2.3/32")}}
	for what, err := range map[string]error{"elements": s.Replace(1, 2, many, &few), "sets": s.Replace(2, 1, few, nil)} {
		if !errors.Is(err, ErrSetsFull) || !strings.Contains(err.Error(), "delete sets that no module uses") {
			t.Errorf("too many %s: %v", what, err)
		}
	}
	if has, err := made.SetContains(1, p("192.0.2.1/32").Addr()); err != nil || !has {
		t.Errorf("the set has lost its element: %v", err)
	}
}

// A data plane that would not find the elements in the table is refused, unless it looks up none.
func TestModuleWithoutTable(t *testing.T) {
	spec := &ebpf.CollectionSpec{Maps: setSpecs()}
	delete(spec.Maps, sdk.SetTableMap)
	mod := &Module{}
	if err := mod.fitSets(spec); err != nil {
		t.Errorf("without sets: %v", err)
	}
	mod.Settings.Sets = []sdk.SetReference{{Set: "bad"}}
	if err := mod.fitSets(spec); err == nil || !strings.Contains(err.Error(), "compile it again") {
		t.Errorf("with sets: %v", err)
	}
}
