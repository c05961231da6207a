// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"maps"

	"github.com/cilium/ebpf"
)

// nested are the entries of a map of maps: the inner maps' names, by key.
type nested map[uint32]string

// takeNested returns specs whose maps of maps are empty, and the removed entries. For each entry that is put
// separately, the kernel waits for an RCU grace period, 8 ms and more; for entries put by one call, it waits only once
// (Linux 6.8).
func takeNested(specs map[string]*ebpf.MapSpec) (map[string]*ebpf.MapSpec, map[string]nested) {
	empty, taken := maps.Clone(specs), map[string]nested{}
	for name, ms := range specs {
		if ms.Type != ebpf.ArrayOfMaps || len(ms.Contents) == 0 {
			continue
		}
		entries := nested{}
		for _, kv := range ms.Contents {
			key, isIndex := kv.Key.(uint32)
			if inner, isName := kv.Value.(string); isIndex && isName {
				entries[key] = inner
			}
		}
		if len(entries) == len(ms.Contents) {
			empty[name], taken[name] = ms.Copy(), entries
			empty[name].Contents = nil
		}
	}
	return empty, taken
}

// put fills a map of maps. all has the inner maps by name. Kernels without batch updates for this type take one entry
// at a time.
func (n nested) put(m *ebpf.Map, all map[string]*ebpf.Map) error {
	var keys, values []uint32
	for key, inner := range n {
		if all[inner] == nil {
			return fmt.Errorf("entry %d: no map %s", key, inner)
		}
		keys, values = append(keys, key), append(values, uint32(all[inner].FD()))
	}
	_, err := m.BatchUpdate(keys, values, nil)
	if errors.Is(err, ebpf.ErrNotSupported) {
		err = nil
		for i := range keys {
			err = errors.Join(err, m.Put(keys[i], values[i]))
		}
	}
	if err != nil {
		return fmt.Errorf("fill the map of maps: %w", err)
	}
	return nil
}
