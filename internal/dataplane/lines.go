// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// Code that is inlined into the entry has no name of its own in the kernel. Source lines mark where it begins, for
// `bpftool prog dump` and for profilers that use them to look up addresses: the line is the name of the inlined
// function, and the name of the entry where the entry continues.

// markEntry marks the generated code of the entry with its name wherever it may follow other code: at labels.
func (l *linker) markEntry(code asm.Instructions) {
	var name fmt.Stringer = asm.Comment(programName(l.spec)) // one value for all
	for i := range code {
		if code[i].Symbol() != "" && code[i].Source() == nil {
			code[i] = code[i].WithSource(name)
		}
	}
}

// addLines gives functions without source lines their name as a line: built-in modules have no lines, and the kernel
// requires one for each function if any function has one, as those of other modules or after CO-RE relocations.
// Repeated lines are removed.
func addLines(code asm.Instructions) {
	var last fmt.Stringer
	for i := range code {
		line := code[i].Source()
		if fn := btf.FuncMetadata(&code[i]); fn != nil && line == nil {
			line = asm.Comment(fn.Name)
			code[i] = code[i].WithSource(line)
		} else if fn == nil && line != nil && line == last {
			code[i] = code[i].WithSource(nil)
		}
		if line != nil {
			last = line
		}
	}
}
