// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// What is packed loads as the same code, without lines of source.
func TestStrip(t *testing.T) {
	objects, err := filepath.Glob("../../modules/*/*.o")
	if err != nil || len(objects) == 0 {
		t.Fatalf("no objects, run make bpf: %v", err)
	}
	for _, path := range objects {
		object, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		before, lines := programs(t, object)
		if err := strip(object); err != nil {
			t.Fatal(path, err)
		}
		after, left := programs(t, object)
		if before != after {
			t.Errorf("%s: another program", path)
		}
		if lines == 0 || left != 0 {
			t.Errorf("%s: %d lines of source before, %d after", path, lines, left)
		}
		if bytes.Contains(object, []byte("\treturn")) {
			t.Errorf("%s has source code", path)
		}
	}
}

// programs describes what a loader sees of an object, and counts the instructions with a line of source.
func programs(t *testing.T, object []byte) (text string, lines int) {
	t.Helper()
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(spec.Programs)) {
		for _, ins := range spec.Programs[name].Instructions {
			if ins.Source() != nil {
				lines++
			}
			bare := asm.Instruction{OpCode: ins.OpCode, Dst: ins.Dst, Src: ins.Src, Offset: ins.Offset,
				Constant: ins.Constant}
			fmt.Fprintf(&out, "%v %s %s %v %v\n", bare, ins.Symbol(), ins.Reference(), btf.FuncMetadata(&ins) != nil,
				btf.CORERelocationMetadata(&ins))
		}
	}
	return out.String(), lines
}
