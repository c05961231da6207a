// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"debug/elf"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

//go:embed init.sh
var initScript string

var errNoTool = errors.New("not installed (the needed packages: -print-packages)")

// guestPlan has the settings for init.sh.
type guestPlan struct {
	tests     []testBinary
	add       []string // paths below tools: programs, directories
	nonce     string
	port      string        // device of the second serial port
	timeout   time.Duration // of one binary
	run, skip string        // -test.run and -test.skip
}

// accounts has the user and group names that tests look up.
var accounts = map[string]string{
	"etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
	"etc/group":  "root:x:0:\nnogroup:x:65534:\n",
	"etc/hosts":  "127.0.0.1 localhost\n::1 localhost\n",
}

// buildBase writes the archive that all kernels share: programs from tools, init, test binaries and their testdata.
func buildBase(ctx context.Context, archive, tools, triplet string, plan guestPlan) error {
	root := archive + ".d"
	defer os.RemoveAll(root)
	if err := addTools(root, tools, triplet); err != nil {
		return err
	}
	if err := addTests(root, plan.tests); err != nil {
		return err
	}
	for _, path := range plan.add {
		if err := addPath(root, tools, triplet, path); err != nil {
			return err
		}
	}
	for name, text := range accounts {
		if err := writeFile(filepath.Join(root, name), text, 0o644); err != nil {
			return err
		}
	}
	if err := writeFile(filepath.Join(root, "matrix/settings"), plan.settings(), 0o644); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(root, "init"), initScript, 0o755); err != nil {
		return err
	}
	return pack(ctx, archive, root)
}

// settings returns a piece of shell that init.sh reads.
func (p guestPlan) settings() string {
	return fmt.Sprintf("nonce=%s\nport=%s\nlimit=%d\nrun=%s\nskip=%s\n",
		p.nonce, p.port, int(p.timeout.Seconds()), shellQuote(p.run), shellQuote(p.skip))
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// addTools copies busybox, ip and tc with their libraries from tree to root.
func addTools(root, tree, triplet string) error {
	if err := addProgram(root, tree, triplet, "bin/busybox"); err != nil {
		return err
	}
	if err := os.Symlink("busybox", filepath.Join(root, "bin/sh")); err != nil {
		return err
	}
	return errors.Join(addProgram(root, tree, triplet, "sbin/ip"), addProgram(root, tree, triplet, "sbin/tc"))
}

// addProgram copies a program from tree, with its loader and the transitive libraries.
func addProgram(root, tree, triplet, target string) error {
	path, err := find(tree, filepath.Base(target), "bin", "sbin", "usr/bin", "usr/sbin")
	if err != nil {
		return err
	}
	if err := copyFile(filepath.Join(root, target), filepath.Join(tree, path), 0o755); err != nil {
		return err
	}
	return addLibraries(root, tree, triplet, filepath.Join(tree, path))
}

// addPath copies a program with its libraries, or a directory.
func addPath(root, tree, triplet, path string) error {
	info, err := os.Stat(filepath.Join(tree, path))
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.CopyFS(filepath.Join(root, path), os.DirFS(filepath.Join(tree, path)))
	}
	return addProgram(root, tree, triplet, path)
}

// find returns the first file with that name in the directories, relative to tree. An absolute symbolic link would lead
// out of the tree.
func find(tree, name string, dirs ...string) (string, error) {
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if target, err := os.Readlink(filepath.Join(tree, path)); err == nil && filepath.IsAbs(target) {
			continue
		}
		if _, err := os.Stat(filepath.Join(tree, path)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s in %s: %w", name, tree, errNoTool)
}

// tool finds a program, also in directories that are missing in ordinary users' PATH.
func tool(name string) (string, error) {
	for _, candidate := range []string{name, "/usr/sbin/" + name, "/sbin/" + name} {
		if path, err := exec.LookPath(candidate); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, errNoTool)
}

// checkTools checks before the run that this machine has all required programs.
func checkTools(opts options) error {
	tools := []string{opts.arch.qemu, "cpio", "xz", "zstd", "apt-get", "apt-cache", "dpkg", "dpkg-deb"}
	if opts.arch.native() {
		tools = append(tools, "busybox", "ip", "tc")
	}
	if opts.kmod != "" {
		tools = append(tools, "make", "gcc-12", "pahole")
	}
	for _, name := range tools {
		if _, err := tool(name); err != nil {
			return err
		}
	}
	return nil
}

// addLibraries copies the libraries of a dynamic program or library, unless they exist.
func addLibraries(root, tree, triplet, program string) error {
	file, err := elf.Open(program)
	if err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	defer file.Close()
	needed, err := file.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	if loader := file.Section(".interp"); loader != nil {
		path, err := loader.Data()
		if err != nil {
			return fmt.Errorf("%s: %w", program, err)
		}
		needed = append(needed, strings.TrimRight(string(path), "\x00"))
	}
	for _, name := range needed {
		if err := addLibrary(root, tree, triplet, name); err != nil {
			return err
		}
	}
	return nil
}

// addLibrary copies a library by its name, or the loader by its absolute path.
func addLibrary(root, tree, triplet, name string) error {
	path := name
	if !filepath.IsAbs(name) {
		var err error
		if path, err = find(tree, name, "lib/"+triplet, "usr/lib/"+triplet, "lib", "lib64"); err != nil {
			return err
		}
	}
	target := filepath.Join(root, path)
	if _, err := os.Stat(target); err == nil {
		return nil
	}
	if err := copyFile(target, filepath.Join(tree, path), 0o755); err != nil {
		return err
	}
	return addLibraries(root, tree, triplet, target)
}

// addTests lays each package out as in the repository: its directory has the binary, the files that are not Go source,
// and testdata.
func addTests(root string, tests []testBinary) error {
	var plan strings.Builder
	for _, t := range tests {
		dir := filepath.Join(root, "src", t.pkg)
		if err := addFiles(dir, t.source); err != nil {
			return err
		}
		if err := copyFile(filepath.Join(dir, "test.bin"), t.binary, 0o755); err != nil {
			return err
		}
		fmt.Fprintln(&plan, t.pkg)
	}
	return writeFile(filepath.Join(root, "matrix/plan"), plan.String(), 0o644)
}

// addFiles copies the files that a test may open in its own directory.
func addFiles(dir, source string) error {
	entries, err := os.ReadDir(source)
	if err != nil {
		return err
	}
	for _, e := range entries {
		from, to := filepath.Join(source, e.Name()), filepath.Join(dir, e.Name())
		switch {
		case e.IsDir() && e.Name() == "testdata":
			err = os.CopyFS(to, os.DirFS(from))
		case e.Type().IsRegular() && filepath.Ext(e.Name()) != ".go":
			err = copyFile(to, from, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// buildInitrd writes the machine's initramfs: the shared archive followed by one with the kernel's modules (the kernel
// unpacks archives one after the other).
func buildInitrd(ctx context.Context, m machine, opts options) (string, error) {
	root := filepath.Join(m.dir, "modules.d")
	defer os.RemoveAll(root)
	if err := addModules(ctx, root, m.kernel.modules, slices.Concat(guestModules, opts.modules)); err != nil {
		return "", err
	}
	for _, file := range m.built {
		if err := copyFile(filepath.Join(root, "src", opts.kmod, filepath.Base(file)), file, 0o644); err != nil {
			return "", err
		}
	}
	modules := filepath.Join(m.dir, "modules.cpio")
	if err := pack(ctx, modules, root); err != nil {
		return "", err
	}
	initrd := filepath.Join(m.dir, "initrd")
	return initrd, concat(initrd, m.base, modules)
}

// addModules writes the modules with numbers as prefixes, in the order of loading.
func addModules(ctx context.Context, root, tree string, wanted []string) error {
	modules, err := openModules(tree)
	if err != nil {
		return err
	}
	order, err := moduleOrder(wanted, modules.depends(ctx))
	if err != nil {
		return err
	}
	for i, name := range order {
		data, err := modules.read(ctx, name)
		if err != nil {
			return err
		}
		if err := writeFile(filepath.Join(root, "matrix/modules", fmt.Sprintf("%03d-%s.ko", i, name)), string(data),
			0o644); err != nil {
			return err
		}
	}
	return nil
}

// pack creates a cpio archive of everything below root, owned by root.
func pack(ctx context.Context, archive, root string) error {
	cmd := exec.CommandContext(ctx, "sh", "-c",
		`find . -mindepth 1 | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0 >"$0"`, archive)
	cmd.Dir = root
	_, err := output(ctx, cmd)
	return err
}

func concat(to string, from ...string) error {
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	for _, name := range from {
		in, err := os.Open(name)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, in)
		in.Close()
		if err != nil {
			return err
		}
	}
	return out.Close()
}
