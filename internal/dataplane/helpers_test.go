// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/cilium/ebpf/rlimit"
)

func sortedKeys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }

func stringOf(v any) string { return fmt.Sprint(v) }

func needsRoot(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("needs root for BPF")
	}
	if err := rlimit.RemoveMemlock(); err != nil { // kernels before 5.11 count maps as locked memory
		tb.Fatal(err)
	}
}

// create makes a map set of a module in a change of its own.
func create(d *Dataplane, m Module, from string) error {
	b := d.Bind(map[string]Module{m.Name: m})
	defer b.Close()
	return b.CreateMapSet(m.Name, m.ID, m.Values, from)
}
