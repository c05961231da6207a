// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"math/bits"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/sdk"
)

// Sizes of kernel structures, as the kernel accounts for them (map_mem_usage since Linux 6.4, memlock in
// /proc/<pid>/fdinfo). They differ by a few bytes between versions and builds.
const (
	structMap       = 320 // struct bpf_array and others: the fixed part of a map
	structHash      = 896 // struct bpf_htab
	structElem      = 48  // struct htab_elem
	structBucket    = 16  // struct bucket
	structSockElem  = 64  // struct bpf_shtab_elem with its link from the socket (struct sk_psock_link)
	structTrieNode  = 40  // struct lpm_trie_node without prefix and value; 24 since Linux 6.14
	prefixLen       = 4   // struct bpf_lpm_trie_key counts as key, but is no part of the node's data
	pointer         = 8
	ringMetaPages   = 3
	ringPagePointer = 8
)

// Memory estimates the kernel memory of the package's maps when full, in bytes. maxEntries overrides compiled sizes by
// map name and may be nil. A map that both hooks use counts once. Objects for which Spec fails count as 0.
func (p *Package) Memory(maxEntries map[string]uint32) int64 {
	total := int64(0)
	for _, m := range p.mapSizes(maxEntries) {
		total += m
	}
	return total
}

// CheckMemory compares Memory with a limit such as 16Mi; an empty limit is the manifest's budget. The error is a
// *BudgetError.
func (p *Package) CheckMemory(limit string, maxEntries map[string]uint32) error {
	if limit == "" {
		limit = p.Budget.Memory
	}
	most, err := ParseBytes(limit)
	if err != nil {
		return err
	}
	need := p.Memory(maxEntries)
	if most == 0 || need <= most {
		return nil
	}
	return &BudgetError{Package: p.Name, Need: need, Limit: most, Largest: p.largestMap(maxEntries)}
}

func (p *Package) largestMap(maxEntries map[string]uint32) string {
	name, most := "", int64(-1)
	for n, size := range p.mapSizes(maxEntries) {
		if size > most || size == most && n < name {
			name, most = n, size
		}
	}
	return name + " (" + FormatBytes(most) + ")"
}

// mapSizes returns sizes by map name. Each hook has data sections of its own, named <hook>:<section>.
func (p *Package) mapSizes(maxEntries map[string]uint32) map[string]int64 {
	sizes := map[string]int64{}
	for _, hook := range p.Hooks {
		for name, m := range p.facts().maps[hook] {
			if slices.Contains(sdk.SetMaps, name) { // the node's, not the module's
				continue
			}
			if n, ok := maxEntries[name]; ok {
				sized := *m
				sized.MaxEntries = n
				m = &sized
			}
			if strings.HasPrefix(name, ".") {
				name = hook + ":" + name
			}
			sizes[name] = max(sizes[name], MapMemory(m))
		}
	}
	return sizes
}

// MapMemory estimates the kernel memory of one map when full, in bytes.
func MapMemory(m *ebpf.MapSpec) int64 {
	n, cpus := int64(m.MaxEntries), int64(ebpf.MustPossibleCPU())
	key, value := align8(m.KeySize), align8(m.ValueSize)
	switch m.Type {
	case ebpf.Array:
		return arrayMemory(n*value, m.Flags&mmapable != 0)
	case ebpf.PerCPUArray:
		return structMap + n*pointer + n*value*cpus
	case ebpf.Hash, ebpf.LRUHash:
		return hashMemory(m, structElem+key+value, cpus)
	case ebpf.PerCPUHash, ebpf.LRUCPUHash:
		return hashMemory(m, structElem+key+pointer+value*cpus, cpus)
	case ebpf.SockHash:
		// struct sk_psock, about 700 bytes per socket in a map, is not charged to the map.
		return structHash + int64(1)<<bits.Len64(uint64(max(n, 1)-1))*structBucket + n*(structSockElem+key)
	case ebpf.SkStorage: // allocated per socket: the size is unknown
		return structMap
	case ebpf.LPMTrie:
		// The kernel does not account for intermediate nodes, at most as many as entries.
		return structMap + 2*n*(structTrieNode+int64(m.KeySize)-prefixLen+int64(m.ValueSize))
	case ebpf.RingBuf, ebpf.UserRingbuf:
		pages := max(1, n/pageSize) // the agent rounds smaller ones up to a page
		return structMap + (ringMetaPages+pages)*pageSize + (ringMetaPages+2*pages)*ringPagePointer
	case ebpf.ArrayOfMaps:
		return structMap + n*(pointer+innerMemory(m))
	case ebpf.HashOfMaps:
		return hashMemory(m, structElem+key+pointer, cpus) + n*innerMemory(m)
	case ebpf.ProgramArray, ebpf.PerfEventArray, ebpf.DevMap, ebpf.CPUMap, ebpf.XSKMap, ebpf.SockMap:
		return structMap + n*pointer
	case ebpf.Queue, ebpf.Stack:
		return structMap + (n+1)*int64(m.ValueSize)
	}
	return structMap + n*(key+value+pointer)
}

const mmapable = 1 << 10 // BPF_F_MMAPABLE
const noPrealloc = 1     // BPF_F_NO_PREALLOC

var pageSize = int64(os.Getpagesize())

func arrayMemory(data int64, mapped bool) int64 {
	if mapped {
		return alignPage(structMap) + alignPage(data)
	}
	return structMap + data
}

// hashMemory estimates a hash table. A preallocated one has one spare element per CPU, for updates in place.
func hashMemory(m *ebpf.MapSpec, elem, cpus int64) int64 {
	n := int64(m.MaxEntries)
	buckets := int64(1) << bits.Len64(uint64(max(n, 1)-1))
	total := structHash + buckets*structBucket
	lru := m.Type == ebpf.LRUHash || m.Type == ebpf.LRUCPUHash
	switch {
	case m.Flags&noPrealloc != 0:
		return total + n*(elem+pointer)
	case lru:
		return total + n*elem
	}
	return total + (n+cpus)*elem + cpus*pointer
}

func innerMemory(m *ebpf.MapSpec) int64 {
	if m.InnerMap == nil {
		return 0
	}
	return MapMemory(m.InnerMap)
}

func align8(n uint32) int64   { return (int64(n) + 7) &^ 7 }
func alignPage(n int64) int64 { return (n + pageSize - 1) / pageSize * pageSize }
