// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// smallDisk mounts an empty file system of a size on a directory.
func (b *bed) smallDisk(dir, size string) {
	b.T.Helper()
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = unix.Mount("kerb", dir, "tmpfs", 0, "size="+size)
	}
	if err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(func() {
		b.stop(syscall.SIGKILL)
		b.Kill()
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			b.T.Error(err)
		}
	})
}

// fill fills the disk of a directory. empty removes the file that fills it.
func (b *bed) fill(dir string) (empty func()) {
	b.T.Helper()
	path := filepath.Join(dir, "ballast")
	f, err := os.Create(path)
	if err != nil {
		b.T.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			b.T.Fatal(err)
		}
	}
}

// On a node with a full disk, changes of the cluster still take effect, but are not persisted: a start without the API
// server has the earlier state, and deletes nothing. The state is written when the disk has space again.
func TestFullDisk(t *testing.T) {
	b := newBed(t)
	dir := filepath.Join(b.Dir, "kube")
	b.stop(syscall.SIGTERM)
	b.smallDisk(dir, "64k")
	const first, second, third = "first", "second", "third"
	saved := func(module string) bool {
		text, _ := os.ReadFile(filepath.Join(dir, "kubernetes.json"))
		return strings.Contains(string(text), `"`+module+`"`)
	}
	b.start()
	b.module(first, counter("app: web"))
	web := b.pod("web", map[string]string{"app": "web"})
	web.await(first)
	b.Eventually("the first state is on disk", func() bool { return saved(first) })
	empty := b.fill(dir)
	b.module(second, counter("app: web"))
	web.await(first + " " + second)
	if saved(second) {
		t.Fatal("the disk is not full")
	}
	if files, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(files) > 0 {
		t.Errorf("temporary files of the state remain: %v, %v", files, err)
	}

	b.stop(syscall.SIGKILL)
	b.api.Hang()
	b.Must(http.MethodDelete, "/v1/modules/"+first+"?owner="+names.Owner, nil, nil)
	b.start()
	web.await(first + " " + second) // the first by the state on disk; the second is not deleted
	b.api.Resume()
	b.module(third, counter("app: web"))
	web.await(first + " " + second + " " + third)
	empty()
	b.module(second, counter("app: web, tier: edge"))
	web.await(first + " " + third)
	b.Eventually("the state is written again", func() bool { return saved(second) && saved(third) })
}

// A package that does not fit on the agent's disk is pulled when there is space. The running version keeps running.
func TestFullDiskOfAgent(t *testing.T) {
	b := newBed(t)
	d := newDepot(b)
	const name = "limit"
	b.Kill()
	packages := filepath.Join(b.State, "packages")
	b.smallDisk(packages, "256k")
	b.Start()
	first, second := d.push("acme/limiter", "0.1.0", true), d.push("acme/limiter", "0.2.0", true)
	runs := func(what, image string) {
		t.Helper()
		b.Eventually(what, func() bool { return b.packageOf(name) == image && b.reported(name) == "" })
	}
	b.module(name, "{"+ofImage(first)+"}")
	runs("the first package", first)
	empty := b.fill(packages)
	b.module(name, "{"+ofImage(second)+"}")
	b.Eventually("the disk is full", func() bool {
		return strings.HasPrefix(b.reported(name), "PackageUnavailable: ") &&
			strings.Contains(b.reported(name), "no space left on device")
	})
	if got := b.packageOf(name); got != first {
		t.Errorf("with a full disk the node runs %s", got)
	}
	b.Kill()
	b.Start()
	b.Eventually("the agent has started with the first package", func() bool { return b.packageOf(name) == first })
	empty()
	runs("the disk has space", second)
}
