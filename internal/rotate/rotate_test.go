// SPDX-License-Identifier: Apache-2.0

package rotate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func open(t *testing.T, path string, size int64, keep int) *File {
	t.Helper()
	f, err := Open(path, size, keep)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func line(n int) []byte { return fmt.Appendf(nil, "line %04d\n", n) } // 10 bytes

func write(t *testing.T, f *File, from, to int) {
	t.Helper()
	for n := from; n < to; n++ {
		if err := f.WriteLine(line(n)); err != nil {
			t.Fatal(err)
		}
	}
}

// files are those of a directory, by name.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, e := range all {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out[e.Name()] = string(data)
	}
	return out
}

func lines(from, to int) (text string) {
	for n := from; n < to; n++ {
		text += string(line(n))
	}
	return text
}

func wants(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	if got := files(t, dir); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

// Each line is in one file, in order, and the oldest ones go. A process that continues appends.
func TestRotation(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "flows")
	f := open(t, path, 35, 2)
	write(t, f, 0, 3)
	wants(t, dir, map[string]string{"flows": lines(0, 3)})
	write(t, f, 3, 7)
	wants(t, dir, map[string]string{"flows": lines(6, 7), "flows.1": lines(3, 6), "flows.2": lines(0, 3)})
	f.Close()
	f = open(t, path, 35, 2)
	write(t, f, 7, 10)
	wants(t, dir, map[string]string{"flows": lines(9, 10), "flows.1": lines(6, 9), "flows.2": lines(3, 6)})
	long := []byte(strings.Repeat("x", 99) + "\n")
	if err := f.WriteLine(long); err != nil {
		t.Fatal(err)
	}
	write(t, f, 10, 11)
	wants(t, dir, map[string]string{"flows": lines(10, 11), "flows.1": string(long), "flows.2": lines(9, 10)})
}

// A new file has the owner and the permissions of the one before: what an operator has denied to others stays denied,
// and who was to read it still can.
func TestAccessStays(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "flows")
	f := open(t, path, 10, 1)
	owner := uint32(os.Geteuid())
	if owner == 0 {
		owner = 1234
	}
	for _, mode := range []os.FileMode{0o600, 0o604, 0o660} {
		if err := errors.Join(os.Chown(path, int(owner), -1), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		write(t, f, 0, 2)
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if uid := info.Sys().(*syscall.Stat_t).Uid; info.Mode().Perm() != mode || uid != owner {
			t.Errorf("%v of user %d, want %v of user %d", info.Mode(), uid, mode, owner)
		}
	}
}

// With one older file, that one is replaced. Files that were taken away are no reason to move others.
func TestGaps(t *testing.T) {
	dir := t.TempDir()
	f := open(t, filepath.Join(dir, "flows"), 10, 1)
	write(t, f, 0, 3)
	wants(t, dir, map[string]string{"flows": lines(2, 3), "flows.1": lines(1, 2)})
	f.Close()
	f = open(t, filepath.Join(dir, "flows"), 10, 3)
	write(t, f, 3, 6)
	if err := os.Remove(filepath.Join(dir, "flows.2")); err != nil {
		t.Fatal(err)
	}
	write(t, f, 6, 7)
	wants(t, dir, map[string]string{"flows": lines(6, 7), "flows.1": lines(5, 6), "flows.2": lines(4, 5),
		"flows.3": lines(2, 3)})
}

// A process that keeps fewer older files removes the others: all together have a limited size.
func TestKeepsFewer(t *testing.T) {
	dir := t.TempDir()
	f := open(t, filepath.Join(dir, "flows"), 10, 4)
	write(t, f, 0, 9)
	f.Close()
	f = open(t, filepath.Join(dir, "flows"), 10, 2)
	wants(t, dir, map[string]string{"flows": lines(8, 9), "flows.1": lines(7, 8), "flows.2": lines(6, 7)})
	write(t, f, 9, 10)
	wants(t, dir, map[string]string{"flows": lines(9, 10), "flows.1": lines(8, 9), "flows.2": lines(7, 8)})
}

// What a process that was killed has left of a line is removed, and so is its empty file.
func TestTornLine(t *testing.T) {
	for name, c := range map[string]struct{ there, want string }{
		"part of a line": {lines(0, 2) + "li", lines(0, 2)}, "only a part": {"line", ""}, "empty": {"", ""},
		"whole lines": {lines(0, 2), lines(0, 2)}, "a long part": {lines(0, 2) + strings.Repeat("x", 10_000), lines(0, 2)},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "flows")
			for p, text := range map[string]string{path: c.there, path + ".new": "x"} {
				if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			f := open(t, path, int64(len(c.want))+10, 1)
			write(t, f, 7, 9)
			wants(t, dir, map[string]string{"flows": lines(8, 9), "flows.1": c.want + lines(7, 8)})
		})
	}
}

func TestRefused(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "flows")
	f := open(t, path, 10, 1)
	link := filepath.Join(dir, "link")
	if err := errors.Join(os.Symlink(path, link), unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"flows": "another process", "link": "symbolic link", "pipe": "not a regular",
		"none/flows": "no such file"} {
		if _, err := Open(filepath.Join(dir, name), 10, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	write(t, f, 0, 2) // the new file is locked, too
	if _, err := Open(path, 10, 1); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("after a rotation: %v", err)
	}
	f.Close()
	open(t, path, 10, 1)
}

// smallDisk is a directory with room for 128 KiB.
func smallDisk(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a small file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=128k"); err != nil {
		t.Skip("cannot mount: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// A file that an operator has emptied stays one of whole lines when the disk is full.
func TestEmptiedByOthers(t *testing.T) {
	dir := smallDisk(t)
	f := open(t, filepath.Join(dir, "flows"), 1<<20, 1)
	write(t, f, 0, 1000)
	if err := errors.Join(os.Truncate(filepath.Join(dir, "flows"), 0),
		os.WriteFile(filepath.Join(dir, "other"), make([]byte, 120<<10), 0o600)); err != nil {
		t.Fatal(err)
	}
	n := 1000
	for ; ; n++ {
		if err := f.WriteLine(line(n)); errors.Is(err, unix.ENOSPC) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if got := files(t, dir)["flows"]; got != lines(1000, n) {
		t.Errorf("%d bytes after %d lines: %.40q", len(got), n-1000, got)
	}
}

// A full disk takes no whole line, keeps those that it has, and continues when there is room. Rotation makes room.
func TestFullDisk(t *testing.T) {
	dir := smallDisk(t)
	f := open(t, filepath.Join(dir, "flows"), 30<<10, 2)
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, make([]byte, 112<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	written, refused := 0, 0
	for ; refused < 5; written++ {
		if err := f.WriteLine(line(written)); err == nil {
			continue
		} else if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		refused, written = refused+1, written-1
		if got := files(t, dir)["flows"]; got != lines(0, written+1) {
			t.Fatalf("%d bytes after %d lines", len(got), written+1)
		}
	}
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	write(t, f, written, 9000)
	all := files(t, dir)
	text := all["flows.2"] + all["flows.1"] + all["flows"]
	if len(all) != 3 || !strings.HasSuffix(text, lines(8000, 9000)) {
		t.Errorf("%d files, %d bytes", len(all), len(text))
	}
}
