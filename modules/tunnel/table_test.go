// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/sdk/sdktest"
)

func TestMapID(t *testing.T) {
	sdktest.NeedRoot(t)
	for range 2 {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		info, err := m.Info()
		if err != nil {
			t.Fatal(err)
		}
		want, _ := info.ID()
		if got, err := mapID(m); err != nil || got != want {
			t.Errorf("id %d, want %d: %v", got, want, err)
		}
		m.Close()
		if id, err := mapID(m); err == nil {
			t.Errorf("a closed map has id %d", id)
		}
	}
}
