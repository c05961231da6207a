// SPDX-License-Identifier: Apache-2.0

package cgroup_test

import (
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
// and does not take their root for its own cgroup.
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
	_ = unix.Rmdir(dir)
	want := fmt.Sprintf("%s none, then %s %s\n", node, node, own)
	if err != nil || string(out) != want+"PASS\n" {
		t.Errorf("%v: %s, want %s", err, out, want)
	}
}

// tellOfNamespace prints what is found before and after the container's own cgroup is mounted, too.
func tellOfNamespace(t *testing.T) {
	before, err := cgroup.Mount()
	if err != nil {
		t.Fatal(err)
	}
	self, err := cgroup.Self()
	if err != nil {
		self = "none"
	}
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
	fmt.Printf("%s %s, then %s %s\n", before, self, after, filepath.Clean(own))
}
