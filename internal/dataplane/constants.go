// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/kerb-edge/kerb/internal/dataplane/optimize"
)

// A program's constants are in sections that never change after loading. The kernel's verifier knows their values and
// removes code that they make unreachable, but keeps the reads. The linker replaces the reads by the values.

// fold replaces reads of constants by their values, for the chain or for a module.
func (l *linker) fold(code asm.Instructions, g *mapSet) (asm.Instructions, error) {
	var failed error
	known := map[string][]byte{}
	out := optimize.Fold(code, func(section string) []byte {
		data, read := known[section]
		if !strings.HasPrefix(section, ".rodata") || read || failed != nil {
			return data
		}
		if data, failed = l.constants(section, g); failed != nil {
			failed = fmt.Errorf("constants: %w", failed)
		}
		known[section] = data
		return data
	})
	return out, failed
}

// constants are the contents of a constant section.
func (l *linker) constants(section string, g *mapSet) (data []byte, err error) {
	if g == nil {
		return l.chainConstants(section)
	}
	m, err := l.mapOf(section, g)
	if err != nil {
		return nil, err
	}
	return data, m.Lookup(uint32(0), &data)
}

// chainConstants returns the constants of chain.bpf.c, with the values that the linker knows.
func (l *linker) chainConstants(section string) ([]byte, error) {
	spec := l.object.Maps[section]
	if spec == nil || len(spec.Contents) != 1 {
		return nil, fmt.Errorf("section %s of the chain is missing", section)
	}
	data := slices.Clone(spec.Contents[0].Value.([]byte))
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, err
	}
	size := uint64(l.countsSize())
	constants := map[string]any{"kerb_cpus": uint64(cpus), "kerb_counts_size": size,
		"kerb_last_drops_at": uint64(cpus) * size,
		"kerb_slow_modules":  uint32(len(l.members)), "kerb_slow_above": uint64(l.slower)}
	if l.frags {
		xdp := xdpFlags()
		constants["kerb_xdp_flags"], constants["kerb_xdp_has_frags"] = xdp.offset, xdp.frags
		constants["kerb_xdp_cast"] = xdp.frags != 0
	}
	for name, value := range constants {
		v := l.object.Variables[name]
		if v == nil {
			return nil, fmt.Errorf("constant %s of the chain is missing", name)
		}
		if _, err := binary.Encode(data[v.Offset:], binary.NativeEndian, value); err != nil {
			return nil, fmt.Errorf("constant %s of the chain: %w", name, err)
		}
	}
	return data, nil
}
