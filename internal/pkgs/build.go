// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"github.com/kerb-edge/kerb/bpf"
	"github.com/kerb-edge/kerb/internal/atomicfile"
)

// Options of Build.
type Options struct {
	Clang string    // path or name of the compiler; if empty, clang, clang-19 and others are tried
	Out   io.Writer // receives the compiler's messages; nil discards them
}

const (
	oldestClang = 14
	newestClang = 22
	aptRemedy   = "apt-get install clang llvm libbpf-dev"
)

// Build compiles the package in a directory, once per hook, with the headers of this binary, and writes the objects
// next to the manifest. It writes only objects that pass Spec. Errors are *ToolError, *CompileError, *apierrors.Invalid
// or *ObjectError.
func Build(ctx context.Context, dir string, opts Options) error {
	m, err := ReadManifest(dir)
	if err != nil {
		return err
	}
	b, err := newBuilder(ctx, dir, m, opts)
	if err != nil {
		return err
	}
	defer os.RemoveAll(b.temp)
	objects := map[string][]byte{}
	for _, hook := range m.Hooks {
		if objects[hook], err = b.compile(ctx, hook); err != nil {
			return err
		}
	}
	if _, err := newPackage(m, dir, objects, nil).Specs(); err != nil {
		return err
	}
	for _, hook := range m.Hooks {
		if err := atomicfile.Write(filepath.Join(dir, m.Object(hook)), objects[hook], 0o644); err != nil {
			return err
		}
	}
	return nil
}

// builder holds what the compilations of one package share.
type builder struct {
	dir      string // absolute
	temp     string // private, holds the headers and unchecked objects
	clang    string
	manifest *Manifest
	out      io.Writer
}

// newBuilder writes Kerb's headers, which are embedded in the binary, to a temporary directory, so that a package is
// compiled with the headers of the kerb that will load it.
func newBuilder(ctx context.Context, dir string, m *Manifest, opts Options) (*builder, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(abs, m.DataPlane)); err != nil {
		return nil, fmt.Errorf("data plane of package %s: %w", m.Name, err)
	}
	clang, err := FindClang(ctx, opts.Clang)
	if err != nil {
		return nil, err
	}
	temp, err := os.MkdirTemp("", "kerb-build-")
	if err != nil {
		return nil, err
	}
	b := &builder{dir: abs, temp: temp, clang: clang, manifest: m, out: opts.Out}
	if b.out == nil {
		b.out = io.Discard
	}
	if err := os.CopyFS(temp, headers()); err != nil {
		os.RemoveAll(temp)
		return nil, err
	}
	return b, nil
}

// headers returns the embedded files that modules include.
func headers() fs.FS {
	sub, err := fs.Sub(bpf.Headers, "include")
	if err != nil { // the name is a constant
		panic(err)
	}
	return sub
}

// WriteHeaders writes the headers that modules include below dir, replacing older ones, and returns their paths.
func WriteHeaders(dir string) (files []string, err error) {
	all := headers()
	err = fs.WalkDir(all, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(dir, path)
		if entry.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		text, err := fs.ReadFile(all, path)
		if err != nil {
			return err
		}
		files = append(files, to)
		return os.WriteFile(to, text, 0o644)
	})
	return files, err
}

// compile returns the object for one hook. It does not contain the path of the temporary directory, so that builds are
// reproducible.
func (b *builder) compile(ctx context.Context, hook string) ([]byte, error) {
	object := filepath.Join(b.temp, hook+".o")
	args := []string{"-O2", "-g", "-Wall", "-target", "bpf", "-mcpu=v3", "-DKERB_HOOK_" + strings.ToUpper(hook),
		"-I" + b.temp, "-idirafter", multiarchInclude(), "-ffile-prefix-map=" + b.temp + "=kerb", "-fdebug-compilation-dir=.",
		"-c", b.manifest.DataPlane, "-o", object}
	cmd := exec.CommandContext(ctx, b.clang, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = b.dir, b.out, b.out
	if err := cmd.Run(); err != nil {
		if missing := b.missingHeader(ctx); missing != nil {
			return nil, missing
		}
		return nil, &CompileError{Source: b.manifest.DataPlane, Hook: hook, Err: err}
	}
	b.strip(ctx, object)
	return os.ReadFile(object)
}

// strip removes DWARF but keeps BTF, to make the object smaller. Without llvm-strip it does nothing.
func (b *builder) strip(ctx context.Context, object string) {
	version := regexp.MustCompile(`-[0-9]+$`).FindString(b.clang)
	for _, name := range []string{"llvm-strip" + version, "llvm-strip", "llvm-strip-19"} {
		if path, err := exec.LookPath(name); err == nil && exec.CommandContext(ctx, path, "-g", object).Run() == nil {
			return
		}
	}
}

// missingHeader returns an error if a failed compilation lacked the system's headers.
func (b *builder) missingHeader(ctx context.Context) error {
	for _, header := range []string{"linux/bpf.h", "bpf/bpf_helpers.h"} {
		probe := "#include <linux/types.h>\n#include <" + header + ">\n"
		cmd := exec.CommandContext(ctx, b.clang, "-target", "bpf", "-idirafter", multiarchInclude(), "-fsyntax-only",
			"-x", "c", "-")
		cmd.Stdin = strings.NewReader(probe)
		if err := cmd.Run(); err != nil && ctx.Err() == nil {
			return &ToolError{Tool: "the header " + header, Remedy: "apt-get install libbpf-dev linux-libc-dev"}
		}
	}
	return nil
}

// multiarchInclude returns Debian's directory of asm/types.h, which is not in clang's include path for BPF.
func multiarchInclude() string {
	machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64", "riscv64": "riscv64"}[runtime.GOARCH]
	return "/usr/include/" + machine + "-linux-gnu"
}

// FindClang returns the path of a clang that is new enough: the requested one, or the newest installed one.
func FindClang(ctx context.Context, wanted string) (string, error) {
	names := []string{wanted}
	if wanted == "" {
		names = []string{"clang"}
		for v := newestClang; v >= oldestClang; v-- {
			names = append(names, "clang-"+strconv.Itoa(v))
		}
	}
	old := ""
	for _, name := range names {
		version, err := clangVersion(ctx, name)
		if err == nil && version >= oldestClang {
			return name, nil
		}
		if err == nil {
			old = fmt.Sprintf(" (%s is version %d)", name, version)
		}
	}
	tool := fmt.Sprintf("clang %d or newer", oldestClang)
	if wanted != "" {
		tool = fmt.Sprintf("%s, as clang %d or newer", wanted, oldestClang)
	}
	return "", &ToolError{Tool: tool + old, Remedy: aptRemedy}
}

var versionLine = regexp.MustCompile(`clang version ([0-9]+)\.`)

func clangVersion(ctx context.Context, name string) (int, error) {
	out, err := exec.CommandContext(ctx, name, "--version").Output()
	if err != nil {
		return 0, err
	}
	found := versionLine.FindSubmatch(out)
	if found == nil {
		return 0, errors.New("not clang")
	}
	return strconv.Atoi(string(found[1]))
}
