// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/lockfile"
	"github.com/kerb-edge/kerb/internal/paths"
)

// Purge does not affect an agent that is starting and does not respond yet: the agent locks the node before it opens
// anything.
func TestPurgeDuringStart(t *testing.T) {
	dir := t.TempDir()
	p := paths.Paths{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run"), BPF: filepath.Join(dir, "bpf")}
	release, err := lockfile.AcquireNode(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(p.State, 0o700), os.WriteFile(p.Store(), []byte("desired"), 0o600)); err != nil {
		t.Fatal(err)
	}
	var conflict *apierrors.Conflict
	if gone, err := new(app).purge(p, true); !errors.As(err, &conflict) || gone != (purged{}) {
		t.Errorf("%+v, %v", gone, err)
	}
	if data, err := os.ReadFile(p.Store()); string(data) != "desired" {
		t.Errorf("%q, %v", data, err)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
}

// --all removes all paths of the agent except the configuration.
func TestPurgeFilesKnowsAllPaths(t *testing.T) {
	dir := t.TempDir()
	p := paths.Paths{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run"), BPF: filepath.Join(dir, "bpf"),
		Trust: filepath.Join(dir, "trust")}
	made := 0
	for i, v := 0, reflect.ValueOf(p); i < v.NumMethod(); i++ {
		f, ok := v.Method(i).Interface().(func() string)
		if !ok || f() == p.Lock() || filepath.Dir(f()) == p.Trust { // the lock is released
			continue
		}
		made++
		if err := errors.Join(os.MkdirAll(filepath.Dir(f()), 0o700), os.WriteFile(f(), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := purgeFiles(p); err != nil || made < 10 {
		t.Errorf("%d paths, %v", made, err)
	}
	for _, root := range []string{p.State, p.Run} {
		if left, _ := os.ReadDir(root); len(left) > 0 {
			t.Errorf("left in %s: %v", root, left)
		}
	}
}

// The file that the agents of the machine share has a fixed path, and is removed with the last agent.
func TestPurgeUsers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "users.lock")
	f, err := lockfile.Share(path)
	if err != nil {
		t.Fatal(err)
	}
	err = purgeUsers(path)
	if _, missing := os.Stat(path); err != nil || missing != nil {
		t.Errorf("another agent has it: %v, %v", err, missing)
	}
	err = errors.Join(f.Close(), purgeUsers(path))
	if _, there := os.Stat(filepath.Dir(path)); err != nil || !errors.Is(there, os.ErrNotExist) {
		t.Errorf("no agent has it: %v, %v", err, there)
	}
	if err := purgeUsers(path); err != nil {
		t.Errorf("it is not there: %v", err)
	}
}
