// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/schema"
	"github.com/kerb-edge/kerb/sdk"
)

// Entry points of a data plane.
const (
	EntryEgress  = "kerb_egress"
	EntryIngress = "kerb_ingress"
	EntryExit    = "kerb_exit" // optional, with one of the others
)

// smallestRing is the smallest page size of any architecture, in bytes.
const smallestRing = 4096

// checkSpec checks that a data plane can be linked into a chain.
func (p *Package) checkSpec(file string, spec *ebpf.CollectionSpec) error {
	entries := checkEntries
	if p.HasHook(HookSockets) {
		entries = p.checkSocketsSpec
	}
	if err := entries(spec); err != nil {
		return inObject(file, err)
	}
	if err := p.checkMaps(spec); err != nil {
		return inObject(file, err)
	}
	if p.Control != nil { // it may compile the config into anything
		return nil
	}
	return inObject(file, p.checkConstants(spec))
}

func inObject(file string, err error) error {
	if fault, ok := errors.AsType[*ObjectError](err); ok {
		fault.File = file
	}
	return err
}

// checkEntries checks that the object has at least one entry point, and no other programs. It checks by name, so that
// the error is deterministic.
func checkEntries(spec *ebpf.CollectionSpec) error {
	if spec.Programs[EntryEgress] == nil && spec.Programs[EntryIngress] == nil {
		return &ObjectError{Err: ErrNoEntry}
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Programs)) {
		if name != EntryEgress && name != EntryIngress && name != EntryExit {
			return &ObjectError{What: name, Err: ErrForeignEntry}
		}
		params := 1
		if name == EntryExit {
			params = 5
		}
		if err := checkEntry(spec.Programs[name], params); err != nil {
			return &ObjectError{What: name, Err: err}
		}
	}
	return nil
}

// checkEntry compares the signature and struct kerb_pkt of an entry point with the contract.
func checkEntry(prog *ebpf.ProgramSpec, params int) error {
	fn := btf.FuncMetadata(&prog.Instructions[0])
	if fn == nil {
		return ErrNoBTF
	}
	proto, ok := fn.Type.(*btf.FuncProto)
	if !ok || len(proto.Params) != params {
		return ErrSignature
	}
	result, ok := btf.UnderlyingType(proto.Return).(*btf.Int)
	if !ok || result.Size != 4 {
		return ErrSignature
	}
	pointer, ok := btf.UnderlyingType(proto.Params[0].Type).(*btf.Pointer)
	if !ok {
		return ErrSignature
	}
	target := btf.UnderlyingType(pointer.Target)
	if forward, ok := target.(*btf.Fwd); ok && forward.Name == "kerb_pkt" {
		return fmt.Errorf("%w: struct kerb_pkt is only declared; include <kerb/module.h>", ErrContract)
	}
	pkt, ok := target.(*btf.Struct)
	if !ok || pkt.Name != "kerb_pkt" {
		return ErrSignature
	}
	relocated := slices.ContainsFunc(prog.Instructions, func(i asm.Instruction) bool { return kerbabi.AccessesPacket(&i) })
	return checkContract(pkt, relocated)
}

// checkMaps checks that the maps of the manifest exist, and the size of ring buffers, which the kernel would reject
// with a bare EINVAL.
func (p *Package) checkMaps(spec *ebpf.CollectionSpec) error {
	for _, name := range slices.Concat(p.Maps.Config, p.Maps.Shared) {
		if spec.Maps[name] == nil {
			return &ObjectError{What: "map " + name + " of the manifest",
				Err: fmt.Errorf("%w; it has: %s", ErrNoMap, mapNames(spec))}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
		if m := spec.Maps[name]; m.Type == ebpf.RingBuf &&
			(m.MaxEntries < smallestRing || m.MaxEntries&(m.MaxEntries-1) != 0) {
			return &ObjectError{What: "map " + name, Err: fmt.Errorf("%w: %d", ErrRingSize, m.MaxEntries)}
		}
	}
	return nil
}

// mapNames returns the sorted names of the maps, for messages, without data sections such as .rodata.
func mapNames(spec *ebpf.CollectionSpec) string {
	var names []string
	for name := range spec.Maps {
		if !strings.HasPrefix(name, ".") {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "none"
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// checkConstants checks that every config property has a constant that can hold it.
func (p *Package) checkConstants(spec *ebpf.CollectionSpec) error {
	properties, _ := p.ConfigSchema["properties"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		v := spec.Variables[name]
		if v == nil || !v.Constant() {
			return &ObjectError{What: "config property " + name, Err: ErrNoConstant}
		}
		if _, err := constantType(v); err != nil {
			return &ObjectError{What: "constant " + name, Err: err}
		}
		property, _ := properties[name].(map[string]any)
		if kind := schema.Resolve(p.ConfigSchema, property)["type"]; kind != "integer" && kind != "boolean" {
			return &ObjectError{What: "config property " + name,
				Err: fmt.Errorf("is of type %v; a constant can be integer or boolean", kind)}
		}
	}
	return nil
}

// constantType returns the integer type of a constant from BTF.
func constantType(v *ebpf.VariableSpec) (*btf.Int, error) {
	if v.Type == nil {
		return nil, ErrNoBTF
	}
	number, ok := btf.UnderlyingType(v.Type.Type).(*btf.Int)
	if !ok || number.Size > 8 {
		return nil, errors.New("must be an integer of at most 64 bits or bool")
	}
	return number, nil
}

// Constants converts a valid config to values of the constants' exact types (bool, uint8 ... int64), for packages
// without a control plane. If a value does not fit, it returns a *sdk.ConfigError.
func (p *Package) Constants(config map[string]any) (map[string]any, error) {
	spec, err := p.Spec(p.Hooks[0])
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(config)) {
		v := spec.Variables[name]
		if v == nil {
			return nil, &sdk.ConfigError{Field: name, Reason: ErrNoConstant.Error()}
		}
		value, err := constant(v, config[name])
		if err != nil {
			return nil, &sdk.ConfigError{Field: name, Reason: err.Error()}
		}
		out[name] = value
	}
	return out, nil
}

// constant converts a value of Go or JSON to the type of a constant. It returns an error for values that do not fit.
func constant(v *ebpf.VariableSpec, value any) (any, error) {
	kind, err := constantType(v)
	if err != nil {
		return nil, err
	}
	if b, ok := value.(bool); ok && kind.Encoding == btf.Bool {
		return b, nil
	}
	if kind.Encoding == btf.Bool {
		return nil, errors.New("want true or false")
	}
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return integer(string(text), kind)
}

// integer parses text as a value of the C type.
func integer(text string, kind *btf.Int) (any, error) {
	bits := int(kind.Size) * 8
	if kind.Encoding&btf.Signed != 0 {
		n, err := strconv.ParseInt(text, 10, bits)
		if err != nil {
			return nil, fmt.Errorf("want an integer from %d to %d", int64(math.MinInt64)>>(64-bits),
				int64(math.MaxInt64)>>(64-bits))
		}
		return [...]any{1: int8(n), 2: int16(n), 4: int32(n), 8: n}[kind.Size], nil
	}
	n, err := strconv.ParseUint(text, 10, bits)
	if err != nil {
		return nil, fmt.Errorf("want an integer from 0 to %d", uint64(math.MaxUint64)>>(64-bits))
	}
	return [...]any{1: uint8(n), 2: uint16(n), 4: uint32(n), 8: n}[kind.Size], nil
}
