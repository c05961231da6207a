// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"strings"
	"testing"
)

func TestMount(t *testing.T) {
	const hybrid = `25 1 8:1 / / rw - ext4 /dev/sda1 rw
30 25 0:26 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory
31 25 0:27 / /sys/fs/cgroup/with\040space rw shared:10 master:2 - cgroup2 cgroup2 rw
`
	if _, got, err := mountIn(strings.NewReader(hybrid), highest); got != "/sys/fs/cgroup/with space" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	const part = "29 25 0:27 /pod /run/pod/cgroup rw - cgroup2 cgroup2 rw\n"
	for mountinfo, want := range map[string]string{part + hybrid: "/sys/fs/cgroup/with space", part: "/run/pod/cgroup"} {
		if _, got, err := mountIn(strings.NewReader(mountinfo), highest); got != want || err != nil {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	for _, none := range []string{"", "30 25 0:26 / /cgroup2 rw - tmpfs cgroup2 rw\n"} {
		if _, got, err := mountIn(strings.NewReader(none), highest); !errors.Is(err, ErrNotMounted) {
			t.Errorf("%q, %v where there is none", got, err)
		}
	}
}

// In a container with a cgroup namespace of its own, modules on sockets are for the node's cgroups, and the agent is in
// its own one.
func TestMountInContainer(t *testing.T) {
	const container = `40 25 0:27 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw
41 25 0:27 /../../other /run/other ro - cgroup2 cgroup rw
42 25 0:27 /.. /run/pod ro - cgroup2 cgroup rw
43 25 0:27 /../../.. /run/cgroup ro - cgroup2 cgroup rw
`
	if _, got, err := mountIn(strings.NewReader(container), highest); got != "/run/cgroup" || err != nil {
		t.Errorf("the node's cgroups are at %q, %v", got, err)
	}
	if _, got, err := mountIn(strings.NewReader(container), own); got != "/sys/fs/cgroup" || err != nil {
		t.Errorf("the agent's cgroup is at %q, %v", got, err)
	}
}

// An id whose path was never looked up is found by walking the tree.
func TestWalk(t *testing.T) {
	root, err := Find("/")
	if err != nil {
		t.Skip(err)
	}
	want, err := Dir(root.ID)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := walkTo(root.ID); err != nil || got != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
	if _, err := walkTo(1 << 60); !errors.Is(err, ErrGone) {
		t.Errorf("an unknown id: %v", err)
	}
}
