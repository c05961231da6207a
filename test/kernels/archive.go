// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

var (
	errNoMirror = errors.New("no Debian mirror in this machine's apt sources: name them with -mirror and -security-mirror")
	errNoKernel = errors.New("the archive has no such kernel")
)

// sourcesText has the suites that together contain 5.10 and all newer kernels that Debian still builds.
const sourcesText = `Types: deb
URIs: %[1]s
Suites: bookworm bookworm-backports trixie-backports
Components: main
Architectures: %[3]s
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: %[2]s
Suites: bullseye-security bookworm-security
Components: main
Architectures: %[3]s
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
`

// listsAge is the maximum age of the package lists before they are fetched again.
const listsAge = 12 * time.Hour

// archive is a private view of the Debian archive: its own sources, lists and cache below dir, with the machine's
// proxies and keys.
type archive struct {
	dir  string
	arch arch
}

// openArchive writes the private apt configuration and updates the package lists. If that fails, old lists are used.
func openArchive(ctx context.Context, dir string, m mirrors, of arch) (*archive, error) {
	fillFromMachine(&m)
	if m.main == "" || m.security == "" {
		return nil, errNoMirror
	}
	a := &archive{dir, of}
	sources := filepath.Join(dir, "sources", "kernels.sources")
	want := fmt.Sprintf(sourcesText, m.main, m.security, of.name)
	old, _ := os.ReadFile(sources)
	info, err := os.Stat(a.stamp())
	if string(old) == want && err == nil && time.Since(info.ModTime()) < listsAge {
		return a, nil
	}
	for _, sub := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	if err := writeFile(sources, want, 0o644); err != nil {
		return nil, err
	}
	progress("update the package lists")
	if _, err := output(ctx, a.command(ctx, "apt-get", "-q", "--error-on=any", "update")); err != nil {
		if info == nil {
			return nil, err
		}
		progress("keep the old package lists: %v", err)
		return a, nil
	}
	return a, writeFile(a.stamp(), "", 0o644)
}

// stamp returns the file whose age is that of the package lists.
func (a *archive) stamp() string { return filepath.Join(a.dir, "updated") }

func fillFromMachine(m *mirrors) {
	for _, pattern := range []string{"/etc/apt/sources.list.d/*.sources", "/etc/apt/sources.list.d/*.list",
		"/etc/apt/sources.list"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			if text, err := os.ReadFile(file); err == nil {
				m.fill(string(text))
			}
		}
	}
}

// command returns an apt command with the private configuration. Options on the command line take precedence over every
// file, so that the machine's own sources and lists are neither read nor written.
func (a *archive) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	options := []string{
		"-o", "Dir::Etc::SourceList=/dev/null",
		"-o", "Dir::Etc::SourceParts=" + filepath.Join(a.dir, "sources"),
		"-o", "Dir::State::Lists=" + filepath.Join(a.dir, "lists"),
		"-o", "Dir::Cache=" + filepath.Join(a.dir, "cache"),
		"-o", "Acquire::Languages=none",
		"-o", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
		"-o", "APT::Architecture=" + a.arch.name,
		"-o", "APT::Architectures=" + a.arch.name,
		"-o", "APT::Sandbox::User=", // apt's own user cannot write into a home directory
	}
	cmd := exec.CommandContext(ctx, name, append(options, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	return cmd
}

// find resolves a spec to the exact packages with the kernel: through the meta packages, and for a series that they no
// longer refer to, through the images that are still in the archive.
func (a *archive) find(ctx context.Context, s spec) ([]pkgVersion, error) {
	known, err := a.imageNames(ctx)
	if err != nil {
		return nil, err
	}
	metas := slices.DeleteFunc(s.metas(), func(name string) bool { return !slices.Contains(known, name) })
	best, err := a.newest(ctx, s, metas)
	if err != nil {
		return nil, err
	}
	if best != nil {
		return a.parts(ctx, kernelParts(best))
	}
	best, err = a.newest(ctx, s, slices.DeleteFunc(known, func(name string) bool { return !s.concrete(name) }))
	if err != nil {
		return nil, err
	}
	if best == nil {
		return nil, fmt.Errorf("%s (flavour %s): %w", s.name, s.flavour, errNoKernel)
	}
	return a.parts(ctx, []pkgVersion{{best["Package"], best["Version"]}})
}

func (a *archive) imageNames(ctx context.Context) ([]string, error) {
	text, err := output(ctx, a.command(ctx, "apt-cache", "pkgnames", "linux-image-"))
	return strings.Fields(text), err
}

func (a *archive) newest(ctx context.Context, s spec, names []string) (stanza, error) {
	if len(names) == 0 {
		return nil, nil
	}
	text, err := output(ctx, a.command(ctx, "apt-cache", append([]string{"show", "--all-versions"}, names...)...))
	return s.newestOf(parseStanzas(text)), err
}

// parts adds the dependencies with kernel files to the packages.
func (a *archive) parts(ctx context.Context, pkgs []pkgVersion) ([]pkgVersion, error) {
	for i := 0; i < len(pkgs); i++ {
		text, err := output(ctx, a.command(ctx, "apt-cache", "show", pkgs[i].name+"="+pkgs[i].version))
		if err != nil {
			return nil, err
		}
		for _, st := range parseStanzas(text) {
			for _, p := range kernelParts(st) {
				if !slices.Contains(pkgs, p) {
					pkgs = append(pkgs, p)
				}
			}
		}
	}
	return pkgs, nil
}

// unpack downloads the packages and unpacks their files below dir.
func (a *archive) unpack(ctx context.Context, dir string, pkgs []pkgVersion) error {
	debs, err := os.MkdirTemp(a.dir, "debs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(debs)
	get := a.command(ctx, "apt-get", "-q", "download")
	get.Dir = debs
	for _, p := range pkgs {
		get.Args = append(get.Args, p.String())
	}
	if _, err := output(ctx, get); err != nil {
		os.Remove(a.stamp()) // the lists may name packages that the mirror has removed: the next run fetches them again
		return err
	}
	files, _ := filepath.Glob(filepath.Join(debs, "*.deb"))
	for _, file := range files {
		if _, err := output(ctx, exec.CommandContext(ctx, "dpkg-deb", "-x", file, dir)); err != nil {
			return err
		}
	}
	return nil
}
