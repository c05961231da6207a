// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

var errNoHeaders = errors.New("the packages hold no headers for the kernel")

// headerPart matches the packages that building a module needs; compilers are this machine's.
var headerPart = regexp.MustCompile(`linux-(?:headers|kbuild)-\d[^\s,]*`)

// fetchHeaders unpacks the headers of a kernel below dir, unless they exist already, and returns the directory in which
// its modules are built. They are never installed, because Debian's packages write to /lib and /usr/src.
func fetchHeaders(ctx context.Context, debian *archive, dir string, s spec, k kernel) (string, error) {
	target := filepath.Join(dir, s.name, k.release)
	build := filepath.Join(target, "usr/src/linux-headers-"+k.release)
	if _, err := os.Stat(build); err == nil {
		return build, nil
	}
	name := "linux-headers-" + k.release
	progress("%s: fetch %s", s.name, name)
	text, err := output(ctx, debian.command(ctx, "apt-cache", "show", "--no-all-versions", name))
	if err != nil {
		return "", err
	}
	pkgs := []pkgVersion{{name: name}}
	for _, st := range parseStanzas(text) {
		for _, part := range headerPart.FindAllString(st["Depends"], -1) {
			pkgs = append(pkgs, pkgVersion{name: part})
		}
	}
	if err := os.RemoveAll(filepath.Dir(target)); err != nil {
		return "", err
	}
	return build, unpackHeaders(ctx, debian, target, build, pkgs)
}

// unpackHeaders unpacks headers, and adjusts the top Makefile, which includes another by its absolute path.
func unpackHeaders(ctx context.Context, debian *archive, target, build string, pkgs []pkgVersion) error {
	partial := target + ".partial"
	if err := os.MkdirAll(partial, 0o755); err != nil {
		return err
	}
	if err := debian.unpack(ctx, partial, pkgs); err != nil {
		return err
	}
	makefile := filepath.Join(partial, "usr/src", filepath.Base(build), "Makefile")
	text, err := os.ReadFile(makefile)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoHeaders, err)
	}
	moved := strings.ReplaceAll(string(text), "/usr/src/", filepath.Join(target, "usr/src")+"/")
	if err := os.WriteFile(makefile, []byte(moved), 0o644); err != nil {
		return err
	}
	return os.Rename(partial, target)
}

// buildKmod compiles the module in a directory of the source tree for a kernel, and returns the .ko files. It builds a
// copy; relative paths out of the directory still work.
func buildKmod(ctx context.Context, work, source, headers string) ([]string, error) {
	source, err := filepath.Abs(source)
	if err != nil {
		return nil, err
	}
	root := filepath.Join(work, "kmod.d")
	copied := filepath.Join(root, filepath.Base(source))
	if err := os.RemoveAll(root); err != nil {
		return nil, err
	}
	if err := addFiles(copied, source); err != nil {
		return nil, err
	}
	stale, _ := filepath.Glob(filepath.Join(copied, "*.ko"))
	for _, file := range stale {
		os.Remove(file)
	}
	if err := os.Symlink(filepath.Join(filepath.Dir(source), "modules"), filepath.Join(root, "modules")); err != nil {
		return nil, err
	}
	if _, err := output(ctx, exec.CommandContext(ctx, "make", "-C", headers, "M="+copied, "KCFLAGS=-Werror",
		"modules")); err != nil {
		return nil, err
	}
	return filepath.Glob(filepath.Join(copied, "*.ko"))
}
