// SPDX-License-Identifier: Apache-2.0

package conflist

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"go.uber.org/goleak"

	"github.com/kerb-edge/kerb/internal/lab/wait"
)

const flannel = `{"name": "cbr0", "cniVersion": "0.3.1", "disableCheck": true, "x": {"b": 1, "a": [2.50]},
	"plugins": [{"type": "flannel", "delegate": {"hairpinMode": true}}, {"type": "portmap", "capabilities": {"portMappings": true}}]}`

func newNetwork(t *testing.T, files map[string]string) Network {
	t.Helper()
	n := Network{Dir: filepath.Join(t.TempDir(), "net.d"), Plugin: "kerb-cni", Socket: "/run/kerb/kerb.sock"}
	if err := os.MkdirAll(n.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		n.write(t, name, text)
	}
	return n
}

func (n Network) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(n.Dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// used returns what a runtime uses: the network that sorts first, as libcni reads it.
func (n Network) used(t *testing.T) *libcni.NetworkConfigList {
	t.Helper()
	files, err := libcni.ConfFiles(n.Dir, []string{".conf", ".conflist", ".json"})
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	list, err := libcni.NetworkConfFromFile(slices.Sorted(slices.Values(files))[0])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func types(list *libcni.NetworkConfigList) (all []string) {
	for _, p := range list.Plugins {
		all = append(all, p.Network.Type)
	}
	return all
}

// A runtime uses the primary's network with kerb-cni at its end, and everything else as the primary has it.
func TestInstall(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"list":       {map[string]string{"10-flannel.conflist": flannel}, []string{"flannel", "portmap", "kerb-cni"}},
		"one plugin": {map[string]string{"10-a.conf": `{"cniVersion": "1.0.0", "name": "a", "type": "ptp"}`}, []string{"ptp", "kerb-cni"}},
		"the first": {map[string]string{"10-flannel.conflist": flannel, "05-broken.conf": "{", "20-b.conf": `{"name": "b", "type": "b"}`,
			"01-notes.txt": "x"}, []string{"flannel", "portmap", "kerb-cni"}},
		"twice": {map[string]string{"10-a.conflist": `{"name": "a", "plugins": [{"type": "kerb-cni"}, {"type": "ptp"}]}`},
			[]string{"ptp", "kerb-cni"}},
	} {
		n := newNetwork(t, c.files)
		if err := n.Install(); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		list := n.used(t)
		if got := types(list); !slices.Equal(got, c.want) || !strings.Contains(string(list.Bytes), n.Socket) {
			t.Errorf("%s: %v %s", name, got, list.Bytes)
		}
	}
	n := newNetwork(t, map[string]string{"10-flannel.conflist": flannel})
	if err := n.Install(); err != nil {
		t.Fatal(err)
	}
	var got, want map[string]any
	if err := errors.Join(json.Unmarshal(n.used(t).Bytes, &got), json.Unmarshal([]byte(flannel), &want)); err != nil {
		t.Fatal(err)
	}
	want["plugins"] = append(want["plugins"].([]any), got["plugins"].([]any)[2])
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	before, _ := os.Stat(n.path())
	if err := n.Install(); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.Stat(n.path()); !os.SameFile(before, after) {
		t.Error("what is as it should be is written again")
	}
	if err := errors.Join(n.Uninstall(), n.Uninstall()); err != nil || len(n.used(t).Plugins) != 2 {
		t.Errorf("after Uninstall: %v %v", err, types(n.used(t)))
	}
	if left, err := os.ReadDir(n.Dir); err != nil || len(left) != 1 {
		t.Errorf("Uninstall leaves %v, %v: more than the primary's file", left, err)
	}
}

// One process at a time has the lock, also while others remove its file.
func TestLockIsRemoved(t *testing.T) {
	n := newNetwork(t, nil)
	var held atomic.Int32
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 500 {
				f, err := n.lock()
				if errors.Is(err, ErrBusy) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if held.Add(1) > 1 {
					t.Error("two have the lock")
				}
				held.Add(-1)
				if err := errors.Join(os.Remove(f.Name()), f.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// What cannot be installed is refused, and what was installed before stays.
func TestInstallRefuses(t *testing.T) {
	if err := newNetwork(t, nil).Install(); !errors.Is(err, ErrNoPrimary) {
		t.Errorf("an empty directory: %v", err)
	}
	n := newNetwork(t, map[string]string{"00-a.conf": `{"name": "a", "type": "ptp"}`})
	if err := n.Install(); err == nil || !strings.Contains(err.Error(), "rename it") {
		t.Errorf("a network that sorts first: %v", err)
	}
	n = newNetwork(t, map[string]string{"10-flannel.conflist": flannel, "20-b.conf": `{"name": "b", "type": "b"}`})
	if err := n.Install(); err != nil {
		t.Fatal(err)
	}
	n.write(t, "10-flannel.conflist", flannel[:60])
	if err := n.Install(); err == nil || types(n.used(t))[0] != "flannel" {
		t.Errorf("a primary that is half written: %v, and then %v", err, types(n.used(t)))
	}
	// Service meshes insert themselves into the network that sorts first. They stay until the primary changes.
	mesh := strings.Replace(string(n.used(t).Bytes), `"plugins": [`, `"plugins": [{"type": "mesh"},`, 1)
	n.write(t, "10-flannel.conflist", flannel)
	n.write(t, File, mesh)
	if err := n.Install(); err != nil || types(n.used(t))[0] != "mesh" {
		t.Errorf("a plugin of others: %v, and then %v", err, types(n.used(t)))
	}
	n.write(t, File, "{")
	if err := n.Install(); err != nil || types(n.used(t))[0] != "flannel" {
		t.Errorf("a damaged file: %v, and then %v", err, types(n.used(t)))
	}
}

// An installer writes the primary's network again and again, in place, in parts, and by removing it first; something
// else removes Kerb's files. A runtime that reads at any moment finds kerb-cni at the end of the network, unless Kerb's
// own file was removed; in the end everything is as it should be.
func TestWatch(t *testing.T) {
	defer goleak.VerifyNone(t)
	n := newNetwork(t, map[string]string{"10-flannel.conflist": flannel})
	n.Bin = filepath.Join(filepath.Dir(n.Dir), "bin")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := n.Watch(ctx, func(error) {}); err != nil {
			t.Error(err)
		}
	})
	defer wg.Wait()
	defer cancel()
	wait.Until(t, "it is installed", func() bool { return exists(n.path()) })
	path := filepath.Join(n.Dir, "10-flannel.conflist")
	for i := range 200 {
		text := strings.Replace(flannel, "cbr0", fmt.Sprint("cbr", i), 1)
		if i%3 == 0 {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{text[:50], text[50:]} {
			if _, err := f.WriteString(part); err != nil {
				t.Fatal(err)
			}
			if got := types(n.used(t)); got[len(got)-1] != "kerb-cni" {
				t.Fatalf("rewrite %d: the runtime would use %v", i, got)
			}
		}
		f.Close()
	}
	current := func(name string) bool { return n.used(t).Name == name && len(n.used(t).Plugins) == 3 }
	wait.Until(t, "the last network is in use", func() bool { return current("cbr199") })
	n.write(t, "10-flannel.conflist", flannel)
	wait.Until(t, "a network that is written in place is in use", func() bool { return current("cbr0") })
	for _, gone := range []string{n.path(), filepath.Join(n.Bin, n.Plugin)} {
		if err := os.Remove(gone); err != nil {
			t.Fatal(err)
		}
		wait.Until(t, gone+" is there again", func() bool { return exists(gone) })
	}
	cancel()
	wg.Wait()
	if !current("cbr0") {
		t.Error("the end of Watch has removed the network")
	}
	if err := n.Uninstall(); err != nil || exists(n.path()) || exists(filepath.Join(n.Bin, n.Plugin)) {
		t.Errorf("Uninstall: %v", err)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// The network that Kerb's is a copy of may hold secrets: who cannot read it cannot read the copy, either.
func TestCopyIsReadableByTheSameUsers(t *testing.T) {
	n := newNetwork(t, map[string]string{"10-flannel.conflist": flannel}) // 0600
	mode := func() os.FileMode {
		t.Helper()
		if err := n.Install(); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(n.path())
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode().Perm()
	}
	if got := mode(); got != 0o600 {
		t.Errorf("mode of the copy of a 0600 file is %o", got)
	}
	if err := os.Chmod(n.path(), 0o644); err != nil { // as earlier versions have written it
		t.Fatal(err)
	}
	if got := mode(); got != 0o600 {
		t.Errorf("mode of an earlier copy of a 0600 file stays %o", got)
	}
}

// Two installers, as of an update of which the earlier one still runs, do not replace each other's files: the second
// waits, says so, and takes over when the first has ended. One that does not wait is refused.
func TestTwoInstallers(t *testing.T) {
	defer goleak.VerifyNone(t)
	n := newNetwork(t, map[string]string{"10-flannel.conflist": flannel})
	later := n
	later.Socket = "/run/kerb/later.sock"
	run := func(n Network, report func(error)) func() {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := n.Watch(ctx, report); err != nil {
				t.Error(err)
			}
		})
		return func() { cancel(); wg.Wait() }
	}
	uses := func(n Network) func() bool {
		return func() bool { return exists(n.path()) && strings.Contains(string(n.used(t).Bytes), n.Socket) }
	}
	endFirst := run(n, func(err error) { t.Error(err) })
	defer endFirst()
	wait.Until(t, "the first has installed", uses(n))
	said := make(chan error, 100)
	endSecond := run(later, func(err error) { said <- err })
	defer endSecond()
	if err := <-said; !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), fmt.Sprint("process ", os.Getpid())) {
		t.Errorf("the second says: %v", err)
	}
	for what, f := range map[string]func() error{"Install": later.Install, "Uninstall": later.Uninstall} {
		if err := f(); !errors.Is(err, ErrBusy) {
			t.Errorf("%s while an installer runs: %v", what, err)
		}
	}
	if !uses(n)() {
		t.Error("the second has replaced the first one's configuration")
	}
	endFirst()
	wait.Until(t, "the second has taken over", uses(later))
	endSecond()
	if err := errors.Join(later.Install(), later.Uninstall()); err != nil || len(said) > 0 {
		t.Errorf("afterwards: %v, and %d more messages", err, len(said))
	}
}
