// SPDX-License-Identifier: Apache-2.0

package cgroup_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/cgroup"
	"github.com/kerb-edge/kerb/internal/lab/cgrouptest"
)

const inNamespace = "KERB_IN_CGROUP_NAMESPACE"

// In a cgroup namespace of its own, as containers have it, an agent finds the node's cgroups where they are mounted,
// and does not take their root for its own cgroup. Where only its own are mounted, it knows that it sees no others.
func TestCgroupNamespace(t *testing.T) {
	if os.Getenv(inNamespace) != "" {
		tellOfNamespace(t)
		return
	}
	node, err := cgroup.Mount()
	if err != nil {
		t.Skip(err)
	}
	dir := filepath.Join(cgrouptest.New(t, "", "kerb-namespace"), "a")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	own := t.TempDir()
	cmd := exec.Command("sh", "-c", `echo $$ > "$0"/cgroup.procs && exec unshare --cgroup --mount "$@"`, dir, os.Args[0],
		"-test.run=^TestCgroupNamespace$")
	cmd.Env = append(os.Environ(), inNamespace+"="+own)
	out, err := cmd.CombinedOutput()
	_, _ = unix.Rmdir(filepath.Join(dir, cgroup.AgentLeaf)), unix.Rmdir(dir)
	want := fmt.Sprintf("%s none, then %s %s, at last %s %v, and in a leaf %v\n", node, node, own, own,
		cgroup.ErrOwnOnly, cgroup.ErrOwnOnly)
	if err := cgroup.CheckView(); err != nil {
		t.Errorf("on the node: %v", err)
	}
	if err != nil || string(out) != want+"PASS\n" {
		t.Errorf("%v: %s, want %s", err, out, want)
	}
}

// tellOfNamespace prints what is found before and after the container's own cgroup is mounted, too, and when nothing
// else is mounted: first in that cgroup, then in the leaf that an agent moves to where its cgroup is delegated to it.
func tellOfNamespace(t *testing.T) {
	sees := func() {
		t.Helper()
		if err := cgroup.CheckView(); err != nil {
			t.Fatal(err)
		}
	}
	before, err := cgroup.Mount()
	if err != nil {
		t.Fatal(err)
	}
	self, err := cgroup.Self()
	if err != nil {
		self = "none"
	}
	sees()
	if err := unix.Mount("none", os.Getenv(inNamespace), "cgroup2", 0, ""); err != nil {
		t.Fatal(err)
	}
	after, err := cgroup.Mount()
	if err != nil {
		t.Fatal(err)
	}
	own, err := cgroup.Self()
	if err != nil {
		t.Fatal(err)
	}
	sees()
	if err := unix.Unmount(after, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	last, err := cgroup.Mount()
	if err != nil {
		t.Fatal(err)
	}
	inRoot, leaf := cgroup.CheckView(), filepath.Join(last, cgroup.AgentLeaf)
	err = errors.Join(unix.Setxattr(last, "trusted.delegate", []byte("1"), 0), os.Mkdir(leaf, 0o755),
		os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte("0"), 0))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("%s %s, then %s %s, at last %s %v, and in a leaf %v\n", before, self, after, filepath.Clean(own), last,
		inRoot, cgroup.CheckView())
}
