// SPDX-License-Identifier: Apache-2.0

// Package bpftest is the bench on which the data plane headers are tested: it
// compiles small programs around them, runs the programs on packets in the
// kernel, and holds a second implementation of the parser to compare with.
package bpftest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/rlimit"
)

// Hook is the kind of program that the headers are compiled for.
type Hook string

// The hooks, by the names that the headers' KERB_HOOK_ macros end in.
const (
	XDP Hook = "XDP"
	TC  Hook = "TC"
)

const compiler = "clang-19"

// Hooks are all of them.
var Hooks = []Hook{XDP, TC}

// Objects for machines without a compiler, such as those of the kernel matrix.
//go:generate go run ./object testdata/parse.XDP.o testdata/parse.TC.o testdata/frags.XDP.o testdata/answer.XDP.o
//go:generate go run ./object testdata/rewrite.XDP.o testdata/rewrite.TC.o testdata/module.XDP.o testdata/module.TC.o
//go:generate go run ./object testdata/hop.XDP.o testdata/hop.TC.o testdata/live.TC.o testdata/events.XDP.o testdata/events.TC.o
//go:generate go run ./object testdata/histogram.XDP.o

// Compile builds a C file against the headers, for one hook, and reads the
// object. Functions that take the packet context become static, as the chain
// linker makes them.
func Compile(tb testing.TB, source string, hook Hook) *ebpf.CollectionSpec {
	tb.Helper()
	spec := Object(tb, source, hook)
	makeStatic(spec)
	return spec
}

// Object is Compile for a module: everything is left as the compiler made it.
// Where there is no compiler, the object that go generate left alongside the
// source is taken.
func Object(tb testing.TB, source string, hook Hook) *ebpf.CollectionSpec {
	tb.Helper()
	var data []byte
	_, err := exec.LookPath(compiler)
	if err == nil {
		noteInputs(tb, source)
		data, err = compiled(source, hook)
	} else {
		data, err = os.ReadFile(strings.TrimSuffix(source, ".bpf.c") + "." + string(hook) + ".o")
	}
	if err != nil {
		tb.Fatalf("no clang-19 and no object from go generate, or a bad source: %v", err)
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(data))
	if err != nil {
		tb.Fatal(err)
	}
	return spec
}

var (
	objectsMu sync.Mutex
	objects   = map[string]func() ([]byte, error){}
)

// compiled returns the object of a C file for one hook, which is compiled once for all tests of the process.
func compiled(source string, hook Hook) ([]byte, error) {
	source, err := filepath.Abs(source)
	if err != nil {
		return nil, err
	}
	objectsMu.Lock()
	key := string(hook) + " " + source
	if objects[key] == nil {
		objects[key] = sync.OnceValues(func() ([]byte, error) { return compile(source, hook) })
	}
	get := objects[key]
	objectsMu.Unlock()
	return get()
}

func compile(source string, hook Hook) ([]byte, error) {
	dir, err := os.MkdirTemp("", "kerb-bpftest-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	object := filepath.Join(dir, "test.o")
	if err := CompileObject(source, object, hook); err != nil {
		return nil, err
	}
	return os.ReadFile(object)
}

// CompileObject builds a C file against the headers, for one hook.
func CompileObject(source, object string, hook Hook) error {
	cmd := exec.Command(compiler, "-g", "-O2", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3",
		"-DKERB_HOOK_"+string(hook),
		"-I"+includes(), "-idirafter", multiarch(), "-c", source, "-o", object)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s on %s: %w\n%s", compiler, source, err, out)
	}
	return nil
}

// noteInputs examines the files that the compiler is going to read, so that
// the go command knows that the test depends on them and does not answer from
// its cache when they change.
func noteInputs(tb testing.TB, source string) {
	tb.Helper()
	headers, err := filepath.Glob(filepath.Join(includes(), "kerb", "*.h"))
	if err != nil {
		tb.Fatal(err)
	}
	chain, err := filepath.Glob(filepath.Join(includes(), "..", "chain*.[ch]"))
	if err != nil {
		tb.Fatal(err)
	}
	for _, file := range append(append(headers, chain...), source) {
		if _, err := os.Stat(file); err != nil {
			tb.Fatal(err)
		}
	}
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
			if i > 0 && fn != nil && takesPacket(fn) {
				fn.Linkage = btf.StaticFunc
			}
		}
	}
}

// takesPacket reports whether a parameter of the function points to struct kerb_pkt.
func takesPacket(fn *btf.Func) bool {
	return slices.ContainsFunc(fn.Type.(*btf.FuncProto).Params, func(p btf.FuncParam) bool {
		to, ok := btf.UnderlyingType(p.Type).(*btf.Pointer)
		return ok && btf.UnderlyingType(to.Target).TypeName() == "kerb_pkt"
	})
}

// Load loads the programs of spec; all is closed with the test. Kernels before
// 5.11 count maps and programs as locked memory.
func Load(tb testing.TB, spec *ebpf.CollectionSpec) *ebpf.Collection {
	tb.Helper()
	if err := rlimit.RemoveMemlock(); err != nil {
		tb.Fatal(err)
	}
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
