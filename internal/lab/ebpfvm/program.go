// SPDX-License-Identifier: Apache-2.0

package ebpfvm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// instruction is a decoded instruction.
type instruction struct {
	op, dst, src uint8
	offset       int16
	imm          int32
}

// Program is code that can be interpreted.
type Program struct {
	code    []instruction
	xdp     bool
	kfuncs  map[int]string // by instruction
	source  map[int]string // lines of source code, by their first instruction
	symbols map[int]string // functions, by their first instruction
	maps    map[int32]*ebpf.Map
}

// Load prepares code of an XDP or TC program for the interpreter, as it would be loaded into the running kernel. It
// fails if the code has relocations that cannot be resolved, for example without the kernel's BTF. The maps have to
// stay open.
func Load(code asm.Instructions, kind ebpf.ProgramType) (*Program, error) {
	code = append(asm.Instructions(nil), code...)
	if err := relocate(code); err != nil {
		return nil, err
	}
	p := &Program{xdp: kind == ebpf.XDP, kfuncs: map[int]string{}, source: map[int]string{}, symbols: map[int]string{},
		maps: map[int32]*ebpf.Map{}}
	for it := code.Iterate(); it.Next(); {
		at := int(it.Offset)
		if btf.FuncMetadata(it.Ins) != nil {
			p.symbols[at] = it.Ins.Symbol()
		}
		if s := it.Ins.Source(); s != nil {
			p.source[at] = s.String()
		}
		if it.Ins.IsKfuncCall() {
			name, err := kfuncName(it.Ins)
			if err != nil {
				return nil, err
			}
			p.kfuncs[at] = name
		}
		if m, ok := it.Ins.Map().(*ebpf.Map); ok {
			p.maps[int32(m.FD())] = m
		}
	}
	var raw bytes.Buffer
	if err := code.Marshal(&raw, order()); err != nil {
		return nil, err
	}
	for b := raw.Bytes(); len(b) >= asm.InstructionSize; b = b[asm.InstructionSize:] {
		p.code = append(p.code, decode(b))
	}
	return p, nil
}

// order returns the machine's byte order as the type of cilium/ebpf.
func order() binary.ByteOrder {
	if bigEndian {
		return binary.BigEndian
	}
	return binary.LittleEndian
}

func decode(b []byte) instruction {
	dst, src := b[1]&15, b[1]>>4
	if bigEndian {
		dst, src = src, dst
	}
	return instruction{b[0], dst, src, int16(binary.NativeEndian.Uint16(b[2:])), int32(binary.NativeEndian.Uint32(b[4:]))}
}

// relocate applies CO-RE relocations like the loader: offsets of fields in the running kernel's structures.
func relocate(code asm.Instructions) error {
	var relocations []*btf.CORERelocation
	var at []*asm.Instruction
	for i := range code {
		if r := btf.CORERelocationMetadata(&code[i]); r != nil {
			relocations, at = append(relocations, r), append(at, &code[i])
		}
	}
	if len(relocations) == 0 {
		return findFunctions(code)
	}
	kernel, err := kernelTypes()
	if err != nil {
		return err
	}
	var types btf.Builder
	fixups, err := btf.CORERelocate(relocations, []*btf.Spec{kernel}, order(), types.Add)
	if err != nil {
		return err
	}
	for i, f := range fixups {
		if err := f.Apply(at[i]); err != nil {
			return err
		}
	}
	return findFunctions(code)
}

// kernelTypes are read once, which takes 0.1 s.
var kernelTypes = sync.OnceValues(btf.LoadKernelSpec)

// findFunctions resolves weak references to kernel functions: the code loads their number, or 0 if the kernel lacks
// them.
func findFunctions(code asm.Instructions) error {
	for i := range code {
		ins := &code[i]
		if !ins.IsConstantLoad(asm.DWord) || ins.Reference() == "" {
			continue
		}
		kernel, err := kernelTypes()
		if err != nil {
			return err
		}
		var fn *btf.Func
		if err = kernel.TypeByName(ins.Reference(), &fn); errors.Is(err, btf.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		id, err := kernel.TypeID(fn)
		if err != nil {
			return err
		}
		ins.Constant = int64(id)
	}
	return nil
}

// kfuncName returns the name of a called kernel function, which the loader would replace by its number.
func kfuncName(ins *asm.Instruction) (string, error) {
	if name := ins.Reference(); name != "" {
		return name, nil
	}
	if ins.Constant <= 0 {
		return "", fmt.Errorf("function %d of the kernel: %w", ins.Constant, btf.ErrNotFound)
	}
	kernel, err := kernelTypes()
	if err != nil {
		return "", err
	}
	t, err := kernel.TypeByID(btf.TypeID(ins.Constant))
	if err != nil {
		return "", err
	}
	return t.TypeName(), nil
}
