// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
)

// bpftool shows which modules a chain has, in their order and with their packages.
func TestMetadata(t *testing.T) {
	w := newWorld(t, Options{})
	p := chain.Point{Ifindex: w.a.OuterIndex(), Side: chain.OnTCIngress}
	first, second := testModule(t, "pass", "count", nil), testModule(t, "drop", "dropper", map[string]any{"port": 53})
	first.Package = "counter 1.2.3"
	spec := w.deploy(t, p, chain.Egress, first, second)
	id := w.runs(t, p)
	want := map[string]string{"kerb_chain": spec.ID(), "kerb_module_00": "count (counter 1.2.3)",
		"kerb_module_01": "dropper"}
	text := metadataOf(t, id)
	for name, value := range want {
		if !strings.Contains(text, value+"\x00") {
			t.Errorf("the map lacks %s %q: %q", name, value, text)
		}
	}
	bpftool, err := exec.LookPath("bpftool")
	if err != nil {
		t.Log("bpftool is not installed: what it shows is not examined")
		return
	}
	shown, err := exec.Command(bpftool, "prog", "show", "id", strconv.Itoa(int(id))).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, shown)
	}
	for name, value := range want {
		if !strings.Contains(string(shown), name+` = "`+value+`"`) {
			t.Errorf("bpftool lacks %s = %q:\n%s", name, value, shown)
		}
	}
}

// mapsOf opens the maps of a program until the test ends.
func mapsOf(t *testing.T, id ebpf.ProgramID) (out []*ebpf.Map) {
	t.Helper()
	prog, err := ebpf.NewProgramFromID(id)
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil {
		t.Fatal(err)
	}
	all, known := info.MapIDs()
	if !known || len(all) == 0 {
		t.Fatalf("program %d has no maps", id)
	}
	for _, id := range all {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		out = append(out, m)
	}
	return out
}

// metadataOf is what the map has that is bound to a program. It is frozen.
func metadataOf(t *testing.T, id ebpf.ProgramID) string {
	t.Helper()
	for _, m := range mapsOf(t, id) {
		if info, err := m.Info(); err != nil || info.Name != "kerb.rodata" {
			continue
		}
		value := make([]byte, m.ValueSize())
		if err := m.Lookup(uint32(0), value); err != nil {
			t.Fatal(err)
		}
		if err := m.Put(uint32(0), value); err == nil {
			t.Error("the map can be changed")
		}
		return string(value)
	}
	t.Fatal("no such map is bound to the program")
	return ""
}
