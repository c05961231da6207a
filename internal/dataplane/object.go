// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/bpf"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/parsed"
)

// linkerVersion changes whenever the code generated here does, so that an upgraded agent replaces running chains.
const linkerVersion = 16

// linkerRevision is set with -ldflags -X for a build that differs from another one only in the identity of its chains.
var linkerRevision string

// chainObjects are the variants of chain.bpf.c, parsed.
var chainObjects = map[string]*parsed.Value[*ebpf.CollectionSpec]{
	"tc": chainObject("tc"), "xdp": chainObject("xdp"), "xdp-frags": chainObject("xdp-frags"),
}

// chainObject keeps an object of the chain's own code parsed for as long as a change needs it.
func chainObject(name string) *parsed.Value[*ebpf.CollectionSpec] {
	return parsed.New(func() (*ebpf.CollectionSpec, error) {
		obj, err := readChainObject(name)
		if err != nil {
			return nil, err
		}
		return ebpf.LoadCollectionSpecFromReader(bytes.NewReader(obj))
	})
}

// readChainObject returns the compiled chain.bpf.c for a hook.
func readChainObject(name string) ([]byte, error) {
	obj, err := fs.ReadFile(bpf.Objects(), "bpf/chain."+name+".o")
	if err != nil {
		return nil, fmt.Errorf("this build lacks its data plane objects (run make bpf): %w", err)
	}
	return obj, nil
}

// Linker returns the identity of everything in a chain except its modules: chain.Spec.Linker. A newer build of the
// linker has another one, so that it replaces the chains of an older build.
func Linker() string { return linkerDigest() }

var linkerDigest = sync.OnceValue(func() string {
	parts := [][]byte{{linkerVersion}, []byte(linkerRevision)}
	for _, name := range slices.Sorted(maps.Keys(chainObjects)) {
		obj, _ := readChainObject(name)
		parts = append(parts, obj)
	}
	return chain.ShortHash(parts...)
})
