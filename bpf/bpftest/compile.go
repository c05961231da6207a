// SPDX-License-Identifier: Apache-2.0

// Package bpftest is the bench on which the data plane headers are tested: it
// compiles small programs around them, runs the programs on packets in the
// kernel, and holds a second implementation of the parser to compare with.
package bpftest

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// Hook is the kind of program that the headers are compiled for.
type Hook string

// The hooks, by the names that the headers' KERB_HOOK_ macros end in.
const (
	XDP Hook = "XDP"
	TC  Hook = "TC"
)

// Hooks are all of them.
var Hooks = []Hook{XDP, TC}

// Compile builds a C file against the headers, for one hook, and reads the
// object. Functions outside of program sections become static, as the chain
// linker makes them.
func Compile(tb testing.TB, source string, hook Hook, defines ...string) *ebpf.CollectionSpec {
	tb.Helper()
	object := filepath.Join(tb.TempDir(), "test.o")
	args := []string{"-g", "-O2", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3", "-DKERB_HOOK_" + string(hook),
		"-I" + includes(), "-idirafter", multiarch(), "-c", source, "-o", object}
	for _, d := range defines {
		args = append(args, "-D"+d)
	}
	if out, err := exec.Command("clang-19", args...).CombinedOutput(); err != nil {
		tb.Fatalf("clang-19 on %s: %v\n%s", source, err, out)
	}
	spec, err := ebpf.LoadCollectionSpec(object)
	if err != nil {
		tb.Fatal(err)
	}
	makeStatic(spec)
	return spec
}

// includes is bpf/include of this repository.
func includes() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "include")
}

// multiarch is where Debian keeps asm/types.h, which -target bpf does not know.
func multiarch() string {
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	return fmt.Sprintf("/usr/include/%s-linux-gnu", arch)
}

// makeStatic drops the parts of the chain from the programs to load and marks
// their copies within the programs as static functions.
func makeStatic(spec *ebpf.CollectionSpec) {
	for name, prog := range spec.Programs {
		if prog.Type == ebpf.UnspecifiedProgram {
			delete(spec.Programs, name)
			continue
		}
		for i := range prog.Instructions {
			fn := btf.FuncMetadata(&prog.Instructions[i])
			if i > 0 && fn != nil {
				fn.Linkage = btf.StaticFunc
			}
		}
	}
}

// Load loads the programs of spec; all is closed with the test.
func Load(tb testing.TB, spec *ebpf.CollectionSpec) *ebpf.Collection {
	tb.Helper()
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		var v *ebpf.VerifierError
		if errors.As(err, &v) {
			tb.Fatalf("%+v", v)
		}
		tb.Fatal(err)
	}
	tb.Cleanup(coll.Close)
	return coll
}

// Run runs a program once on a copy of the frame: its return value, and the
// frame afterwards.
func Run(tb testing.TB, prog *ebpf.Program, frame []byte) (uint32, []byte) {
	tb.Helper()
	opts := ebpf.RunOptions{Data: bytes.Clone(frame), DataOut: make([]byte, len(frame)+512), Repeat: 1}
	ret, err := prog.Run(&opts)
	if err != nil {
		tb.Fatalf("test run with %d bytes: %v", len(frame), err)
	}
	return ret, opts.DataOut
}
