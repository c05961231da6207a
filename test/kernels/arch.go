// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// arch is an instruction set with the machine that emulates it.
type arch struct {
	name    string // Go's and Debian's name
	triplet string // in the names of Debian's library directories
	qemu    string
	machine []string
	console string   // device of the first serial port
	port    string   // device of the second serial port
	tests   []string // QEMU's arguments that connect the second port to standard output
}

// architectures: q35, because microvm hangs occasionally. `virt` has one UART, so that its second port is a PCI card,
// whose driver is built into Debian's kernels. Pointer authentication uses QEMU's own algorithm, since the architected
// one takes half of the time.
var architectures = []arch{
	{
		name: "amd64", triplet: "x86_64-linux-gnu", qemu: "qemu-system-x86_64",
		machine: []string{"-M", "q35", "-cpu", "max"},
		console: "ttyS0", port: "ttyS1", tests: []string{"-serial", "stdio"},
	},
	{
		name: "arm64", triplet: "aarch64-linux-gnu", qemu: "qemu-system-aarch64",
		machine: []string{"-M", "virt", "-cpu", "max,pauth-impdef=on"},
		console: "ttyAMA0", port: "ttyS0",
		tests: []string{"-chardev", "stdio,id=tests", "-device", "pci-serial,chardev=tests"},
	},
}

func findArch(name string) (arch, error) {
	var known []string
	for _, a := range architectures {
		if a.name == name {
			return a, nil
		}
		known = append(known, a.name)
	}
	return arch{}, fmt.Errorf("architecture %q: want one of %s", name, strings.Join(known, ", "))
}

// native reports whether programs of this machine run in the emulated one.
func (a arch) native() bool { return a.name == runtime.GOARCH }

// cache returns the directory for the kernels of the architecture.
func (a arch) cache(dir string) string {
	if a.native() {
		return dir
	}
	return filepath.Join(dir, a.name)
}

// guestPrograms are the packages with the programs of the emulated machine.
var guestPrograms = []string{"busybox-static", "iproute2"}

// fetchTools returns a directory tree with busybox, ip, tc and their libraries: this machine's own, or Debian's
// packages for another architecture, unpacked below dir and kept as long as the archive has no newer ones.
func fetchTools(ctx context.Context, debian *archive, dir string) (string, error) {
	if debian.arch.native() {
		return "/", nil
	}
	pkgs, err := debian.libraries(ctx, guestPrograms)
	if err != nil {
		return "", err
	}
	want := fmt.Sprintln(pkgs)
	if have, err := os.ReadFile(filepath.Join(dir, "packages")); err == nil && string(have) == want {
		return dir, nil
	}
	progress("fetch %s for %s", strings.Join(guestPrograms, ", "), debian.arch.name)
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if err := debian.unpack(ctx, dir, pkgs); err != nil {
		return "", err
	}
	return dir, writeFile(filepath.Join(dir, "packages"), want, 0o644)
}

// libraries returns the packages and the libraries that they need, of one release: a library that only the backports
// have comes from another package that provides it, built for a newer C library.
func (a *archive) libraries(ctx context.Context, names []string) ([]pkgVersion, error) {
	args := []string{"depends", "--recurse", "--no-recommends", "--no-suggests",
		"--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances"}
	text, err := output(ctx, a.command(ctx, "apt-cache", append(args, names...)...))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(text) {
		name := strings.TrimSpace(line)
		if (strings.HasPrefix(line, "lib") || strings.HasPrefix(line, "zlib")) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	text, err = output(ctx, a.command(ctx, "apt-cache", append([]string{"show", "--no-all-versions"}, names...)...))
	if err != nil {
		return nil, err
	}
	var pkgs []pkgVersion
	for _, st := range parseStanzas(text) {
		if !strings.Contains(st["Version"], "~bpo") {
			pkgs = append(pkgs, pkgVersion{st["Package"], st["Version"]})
		}
	}
	return pkgs, nil
}
