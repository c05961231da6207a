// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestAddTests: a package's directory in the machine has its files, but no Go source and no other package.
func TestAddTests(t *testing.T) {
	source, root := t.TempDir(), t.TempDir()
	for _, name := range []string{"kerb.yaml", "a.go", "a_test.go", "testdata/deep/x", "other/y"} {
		if err := writeFile(filepath.Join(source, name), name, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	binary := filepath.Join(t.TempDir(), "0.test")
	if err := writeFile(binary, "binary", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := addTests(root, []testBinary{{"modules/a", source, binary}}); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		rel, _ := filepath.Rel(root, path)
		got[rel] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"matrix/plan":                   "modules/a\n",
		"src/modules/a/kerb.yaml":       "kerb.yaml",
		"src/modules/a/testdata/deep/x": "testdata/deep/x",
		"src/modules/a/test.bin":        "binary",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
}

func TestSettingsQuote(t *testing.T) {
	p := guestPlan{nonce: "@@n", port: "ttyS0", timeout: 90e9, run: "^(A|B)$", skip: "it's"}
	want := "nonce=@@n\nport=ttyS0\nlimit=90\nrun='^(A|B)$'\nskip='it'\\''s'\n"
	if d := cmp.Diff(want, p.settings()); d != "" {
		t.Fatal(d)
	}
}

// Programs get their loader and libraries, from a tree as Debian's packages create it: some names are absolute symbolic
// links.
func TestAddTools(t *testing.T) {
	a, err := findArch(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := find("/", "ip", "bin", "sbin"); err != nil {
		t.Skip("needs iproute2")
	}
	tree, root := t.TempDir(), t.TempDir()
	for _, name := range []string{"busybox", "tc"} {
		if err := writeFile(filepath.Join(tree, "bin", name), "", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := addProgram(root, "/", a.triplet, "sbin/ip"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/sbin/ip", "-V")
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	if out, err := cmd.CombinedOutput(); os.Geteuid() == 0 && err != nil {
		t.Errorf("ip does not run in the new root: %v: %s", err, out)
	}
	err = errors.Join(os.Mkdir(filepath.Join(tree, "sbin"), 0o755),
		os.Symlink("/bin/tc", filepath.Join(tree, "sbin/tc")))
	if err != nil {
		t.Fatal(err)
	}
	if path, err := find(tree, "tc", "sbin", "bin"); err != nil || path != "bin/tc" {
		t.Errorf("tc is found as %q, %v", path, err)
	}
	if err := addTools(t.TempDir(), tree, a.triplet); err == nil {
		t.Error("files that are no programs are accepted")
	}
}
