// SPDX-License-Identifier: Apache-2.0

package cgroup_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/kerb-edge/kerb/internal/cgroup"
	"github.com/kerb-edge/kerb/internal/lab/cgrouptest"
)

func TestFind(t *testing.T) {
	dir := cgrouptest.New(t, "", "kcg")
	mount, err := cgroup.Mount()
	if err != nil {
		t.Fatal(err)
	}
	below := filepath.Base(dir)
	want, err := cgroup.Find(dir)
	if err != nil || want.Path != "/"+below || want.ID == 0 {
		t.Fatalf("%+v, %v", want, err)
	}
	for _, path := range []string{below, "/" + below, dir + "/", "/" + below + "/../" + below} {
		if got, err := cgroup.Find(path); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", path, got, err, want)
		}
	}
	if root, err := cgroup.Find("/"); err != nil || root.Path != "/" || root.ID == want.ID {
		t.Errorf("the root is %+v, %v", root, err)
	} else if at, err := cgroup.Dir(root.ID); err != nil || at != mount {
		t.Errorf("the root is at %s, %v", at, err)
	}
	if at, err := cgroup.Dir(want.ID); err != nil || at != dir {
		t.Errorf("id %d is at %s, %v", want.ID, at, err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := cgroup.Dir(want.ID); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("one that has gone: %v", err)
	}
	for _, path := range []string{dir, below, "cgroup.procs", "../../../etc"} {
		if _, err := cgroup.Find(path); !errors.Is(err, cgroup.ErrGone) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestContains(t *testing.T) {
	for _, c := range []struct {
		above, path string
		want        bool
	}{
		{"/", "/", true}, {"/", "/a", true}, {"/a", "/a", true}, {"/a", "/a/b", true},
		{"/a", "/ab", false}, {"/a/b", "/a", false}, {"/a", "/", false},
	} {
		if got := cgroup.Contains(c.above, c.path); got != c.want {
			t.Errorf("%s contains %s: %t", c.above, c.path, got)
		}
	}
}

func TestBelow(t *testing.T) {
	for path, want := range map[string]string{
		"/sys/fs/cgroup": "/", "/sys/fs/cgroup/": "/", "/sys/fs/cgroup/a/b": "/a/b", "a/b": "/a/b", "/a": "/a", "": "/",
		"/sys/fs/cgroupx": "/sys/fs/cgroupx", "../a": "/a",
	} {
		if got := cgroup.RelativePath("/sys/fs/cgroup", path); got != want {
			t.Errorf("%q is %q, want %q", path, got, want)
		}
	}
}
