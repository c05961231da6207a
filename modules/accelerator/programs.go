// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"bytes"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

// program is an executable that the data plane has asked about.
type program struct {
	File       fileKey
	Path       string // below the root directory of the process; what is known of a longer one follows "…/"
	Changeable bool   // others than root can change the file or a directory above it
	PID        int
	Comm       string
	Asked      time.Time
}

// program returns the program with its path, put together from the names in the event, which the kernel part stores
// from the file up to the root. A path that was too deep begins with "…/".
func (e *event) program() program {
	name := "/"
	if e.Flags&truncated != 0 {
		name = "…/"
	}
	for _, raw := range slices.Backward(e.Names[:]) {
		if text, _, _ := bytes.Cut(raw[:], []byte{0}); len(text) > 0 {
			name = path.Join(name, string(text))
		}
	}
	return program{File: e.File, Path: name, Changeable: e.Flags&changeable != 0, PID: int(e.PID),
		Comm: sdk.Printable(e.Comm[:]), Asked: time.Now()}
}

// Directories that packages and images install programs in.
var (
	standard = []string{"/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/bin", "/sbin"}
	postgres = append([]string{"/usr/lib/postgresql/*/bin", "/usr/libexec/postgresql*"}, standard...)
)

// Known are the programs that take part by themselves, with the directories that they may lie in: they make none of the
// calls that redirected sockets answer otherwise (see docs/accelerator.md). Each is driven by a test of
// test/accelerator, which counts its redirected messages.
var Known = map[string][]string{
	"curl":            standard,
	"envoy":           standard, // since 1.16
	"node":            standard,
	"pgbench":         postgres,
	"postgres":        postgres,
	"psql":            postgres,
	"redis-benchmark": standard,
	"redis-check-rdb": standard, // Debian's redis-server is a link to it
	"redis-server":    standard,
}

// Spliced are those that do so where the kernel has a guard: of these calls they make splice(2) only.
var Spliced = map[string][]string{"haproxy": standard}

// unsuitable are programs of which it is known why they do not, by patterns of their names.
var unsuitable = []struct{ name, why string }{
	{"nginx", fionread}, {"java", fionread}, {"wrk", fionread},
	{"haproxy", "with one of the options splice-* it uses splice(2), which does not see redirected data, and this " +
		"kernel has no guard of it: allow it if its configuration has none"},
	{"python*", "a script may use MSG_WAITALL, FIONREAD or os.splice, which redirected sockets do not support: allow " +
		"the interpreter if none does on TCP connections"},
	{"ztunnel", "it takes a recv that fills its buffer in part for the last one, but behind redirected data more may " +
		"have arrived by TCP"},
	{"redis-cli", "it blocks in recv(2), where a signal causes EAGAIN: allow it if it gets none"},
}

const fionread = "it uses ioctl(FIONREAD), which answers 0 while redirected data waits"

// isIn reports whether a table of programs has that of a path.
func isIn(table map[string][]string, name string) bool {
	return slices.ContainsFunc(table[filepath.Base(name)], func(dir string) bool {
		match, _ := path.Match(dir, filepath.Dir(name)) // the patterns are right
		return match
	})
}

// judge says whether a program may take part, and why not.
func (a *accelerator) judge(p *program) (verdict uint32, why string) {
	switch {
	case a.denies(p.Path):
		return unsafe, "programs.deny lists it"
	case a.allows(p.Path):
		return allowed, "programs.allow lists it"
	case !isIn(Known, p.Path) && !(isIn(Spliced, p.Path) && a.guarded()):
		return unsafe, exclusionReason(p.Path)
	case p.Changeable:
		return unsafe, "others than root can change the file or a directory above it: list it in programs.allow to " +
			"trust it nevertheless"
	case a.live.Kernel.Sockets["interrupted"]:
		return allowed, ""
	}
	return safe, ""
}

// guarded reports whether splice(2) fails on sockets that take part, because the kernel calls the guard.
func (a *accelerator) guarded() bool {
	var is uint32
	m, err := a.live.Maps.Get(mapGuarded)
	return err == nil && m.Lookup(uint32(0), &is) == nil && is == 1 // 2: the agent asks
}

func exclusionReason(name string) string {
	for _, u := range unsuitable {
		if match, _ := path.Match(u.name, filepath.Base(name)); match {
			return u.why
		}
	}
	return "it is not known to be safe: list it in programs.allow if on TCP connections it uses neither " +
		"ioctl(FIONREAD), recv(MSG_WAITALL) nor urgent data, and without a guard (query kernel) not splice(2), as Go's " +
		"io.Copy does"
}
