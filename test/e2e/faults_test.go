// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// second runs a second agent to its end, which must be an error.
func (n *node) second(flags ...string) result {
	n.T.Helper()
	return n.kerb("agent", flags...)
}

func (n *node) with(flag, value string) []string {
	flags := n.Flags()
	for i := range flags {
		if flags[i] == flag {
			flags[i+1] = value
		}
	}
	return flags
}

func TestOneAgentPerNode(t *testing.T) {
	n := newRunningNode(t)
	n.apply(n.pass("count", "*"))
	before := n.programs()
	elsewhere := t.TempDir()
	n.refused(n.second(n.Flags()...), 5, "another kerb agent is running")
	n.refused(n.second("--state", elsewhere, "--run", elsewhere, "--bpf", n.BPF, "--config", os.DevNull), 5,
		"another kerb agent", n.BPF)
	n.refused(n.second("--state", n.State, "--run", elsewhere, "--bpf", n.BPF+"-other", "--config", os.DevNull), 5,
		"another kerb agent", n.State)
	if err := os.Remove(n.BPF + "-other"); err != nil { // created before the store was opened
		t.Error(err)
	}
	n.refused(n.kerb("purge", n.with("--run", elsewhere)...), 5, "another kerb agent", n.BPF)
	if after := n.programs(); after != before {
		t.Errorf("programs were %s and are %s", before, after)
	}
}

func TestSocketPathInUse(t *testing.T) {
	n := newRunningNode(t)
	n.Kill()
	if _, err := os.Lstat(n.Socket()); err != nil {
		t.Fatalf("no stale socket after kill -9: %v", err)
	}
	n.refused(n.kerb("status"), 4, "no agent answers")
	n.start() // replaces it
	n.Stop()
	if err := os.WriteFile(n.Socket(), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.refusedAgent(5, "is not a socket")
	if text, _ := os.ReadFile(n.Socket()); string(text) != "mine" {
		t.Errorf("the file at the socket's path is now %q", text)
	}
	if err := os.Remove(n.Socket()); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(n.Socket(), 0o700); err != nil {
		t.Fatal(err)
	}
	n.refusedAgent(5, "is not a socket")
	if err := os.Remove(n.Socket()); err != nil {
		t.Fatal(err)
	}
	n.start()
}

// refusedAgent starts an agent that must refuse to start; earlier log lines are ignored.
func (n *node) refusedAgent(code int, says ...string) {
	n.T.Helper()
	n.refused(n.second(n.Flags()...), code, says...)
}

func TestBadDirectoriesAndConfiguration(t *testing.T) {
	n := newNode(t)
	n.refused(n.second(n.with("--bpf", filepath.Join(n.Dir, "no", "bpffs"))...), 1, "no BPF file system", "mount -t bpf")
	n.refused(n.second(n.with("--config", filepath.Join(n.Dir, "nowhere.yaml"))...), 1, "nowhere.yaml", "no such file")
	relative := filepath.Join(n.Dir, "relative.yaml") // paths in a file must be absolute
	if err := os.WriteFile(relative, []byte("paths: {state: relative}"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.refused(n.second("--run", n.Run, "--bpf", n.BPF, "--config", relative), 2, "paths.state", "absolute")
	for text, says := range map[string]string{
		"log: {levl: debug}":  "log.levl: unknown field",
		"log: [":              "yaml",
		"paths: {state: [7]}": "state",
		"tcp: {address: ':1', certificate: c, key: k}": "clientCA, tokenFile or metricsTokenFile",
	} {
		path := filepath.Join(n.Dir, "bad.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		n.refused(n.second(n.with("--config", path)...), 2, path, says)
	}
	deep := filepath.Join(n.BPF, "deep")
	n.BPF, deep = deep, n.BPF
	n.start() // creates missing directories of pins
	n.Stop()
	n.must("purge", n.Flags()...)
	n.BPF = deep
}

// smallDisk puts the state on a separate file system of this size in KiB.
func (n *node) smallDisk(options string) {
	n.T.Helper()
	if err := os.MkdirAll(n.State, 0o700); err != nil {
		n.T.Fatal(err)
	}
	if err := unix.Mount("kerb", n.State, "tmpfs", 0, options); err != nil {
		n.T.Fatal(err)
	}
	n.T.Cleanup(func() {
		if n.Running() {
			n.Kill()
		}
		if err := unix.Unmount(n.State, unix.MNT_DETACH); err != nil {
			n.T.Error(err)
		}
	})
}

// fill fills the disk of the state.
func (n *node) fill() string {
	n.T.Helper()
	path := filepath.Join(n.State, "ballast")
	f, err := os.Create(path)
	if err != nil {
		n.T.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
	}
	return path
}

// large returns a service that fills the store, and exceeds a record of its journal.
func (n *node) large() v1.Service {
	s := service(n.db)
	for i := range 700 {
		s.Metadata.Labels["l"+strings.Repeat("x", 30)+string(rune('a'+i%26))+strings.Repeat("y", i/26+1)] =
			strings.Repeat("z", 60)
	}
	return s
}

// With a full disk a change is rejected as a whole, including its changes in the kernel; with free space it succeeds.
func TestDiskFullWhileApplying(t *testing.T) {
	n := newNode(t)
	n.smallDisk("size=1m")
	n.start()
	n.apply(n.both(), n.pass("count", "*"), n.stamp(1))
	before := n.programs()
	udp := startStream(t, n.db, n.web)
	ballast := n.fill()
	n.refused(n.tryApply(n.large(), n.stamp(2)), 1, "no space is left")
	if after := n.programs(); after != before {
		t.Errorf("programs were %s and are %s", before, after)
	}
	if g := n.generation(); g != 1 {
		t.Errorf("the agent wants generation %d", g)
	}
	n.checkPins()
	n.Kill()
	n.start()
	n.settled(map[string]int{"count": 4, "stamp": 2})
	if after := n.programs(); after != before {
		t.Errorf("programs were %s and after a restart are %s", before, after)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	n.apply(n.large(), n.stamp(3))
	n.Eventually("packets meet the new generation", func() bool { return udp.generation() == 3 })
	udp.finish(1, 2, 3) // generation 2 ran until the store rejected it
	n.checkPins()
}

// On a full disk without a store no agent starts, and no partial files prevent a later start.
func TestDiskFullAtFirstStart(t *testing.T) {
	n := newNode(t)
	n.smallDisk("size=64k")
	ballast := n.fill()
	n.refusedAgent(1, "no space is left", n.State)
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.apply(n.both())
}

// Read-only state directory: chains are adopted and services followed, changes are rejected.
func TestReadOnlyState(t *testing.T) {
	n := newNode(t)
	n.smallDisk("size=1m")
	n.start()
	n.apply(n.both(), n.pass("count", "*"))
	before := n.programs()
	n.Kill()
	if err := unix.Mount("", n.State, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.settled(map[string]int{"count": 4})
	n.refused(n.tryApply(n.stamp(1)), 1, "can only be read")
	n.refused(n.kerb("module", "delete", "count"), 1, "can only be read")
	if after := n.programs(); after != before {
		t.Errorf("programs were %s and are %s", before, after)
	}
	if text := n.must("status"); !strings.Contains(text, "ReadOnly") {
		t.Errorf("the status does not report it:\n%s", text)
	}
	n.checkPins()
}

func TestReadOnlyStateAtFirstStart(t *testing.T) {
	n := newNode(t)
	n.smallDisk("size=64k,ro")
	n.refusedAgent(1, n.State, "can only be read")
}

// A damaged store is renamed and reported; traffic continues with the running chains until modules are applied.
func TestCorruptStore(t *testing.T) {
	n := newRunningNode(t)
	n.apply(n.stamp(1), n.pass("count", "*"))
	before := n.programs()
	udp := startStream(t, n.db, n.web)
	n.Kill()
	store := filepath.Join(n.State, "state.db")
	if err := os.WriteFile(store, []byte(strings.Repeat("no store ", 4096)), 0o600); err != nil {
		t.Fatal(err)
	}
	n.start()
	if aside, _ := filepath.Glob(store + ".damaged-*"); len(aside) != 1 {
		t.Errorf("damaged stores kept: %v", aside)
	}
	if text := n.must("status"); !strings.Contains(text, "StoreLost") {
		t.Errorf("the status does not report it:\n%s", text)
	}
	n.apply(n.both()) // services alone change nothing
	time.Sleep(500 * time.Millisecond)
	n.Kill()
	n.start() // nor does another restart
	time.Sleep(500 * time.Millisecond)
	if udp.generation() != 1 || len(n.attached(n.web, tcxEgress)) != 1 {
		t.Error("the running chains were removed")
	}
	n.apply(n.both(), n.stamp(1), n.pass("count", "*"))
	n.settled(map[string]int{"count": 4, "stamp": 2})
	if after := n.programs(); after != before {
		t.Errorf("programs were %s and are %s", before, after)
	}
	if text := n.must("status"); strings.Contains(text, "StoreLost") {
		t.Errorf("the status still reports the loss:\n%s", text)
	}
	udp.finish(1)
	n.checkPins()
}
