// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// controlled builds a package: the data plane of stamp, whose stamp shows that a packet was processed, with the control
// plane in testdata.
func (n *node) controlled(version string) string {
	n.T.Helper()
	dir := copyPackage(n.T, "stamp", func(manifest string) string {
		manifest = strings.Replace(manifest, "version: 0.1.0", "version: "+version, 1)
		return manifest + `control: {command: [python3, control.py], files: [control.py, kerb.py]}
configSchema: {type: object, properties: {mode: {type: string, default: ""}, generation: {type: integer}}}
`
	})
	for name, from := range map[string]string{"control.py": "testdata/control.py",
		"kerb.py": "../../internal/pkgs/templates/python/kerb.py"} {
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), []byte(strings.ReplaceAll(string(text), "@STATE@", n.State)), 0o600)
		}
		if err != nil {
			n.T.Fatal(err)
		}
	}
	return dir
}

func mode(dir, mode string, generation int) v1.Module {
	return module("bad", dir, "app=web", map[string]any{"mode": mode, "generation": generation})
}

// condition returns a condition of a module.
func (n *node) condition(name string) v1.Condition {
	n.T.Helper()
	for _, c := range get[v1.Module](n, "module", name).Status.Conditions {
		if c.Type == "ControlPlane" {
			return c
		}
	}
	return v1.Condition{}
}

// reports waits until the module and the node report that its control plane is not healthy, and the reason.
func (n *node) reports(reason string) {
	n.T.Helper()
	n.Eventually("module bad reports: "+reason, func() bool {
		c := n.condition("bad")
		return strings.Contains(c.Message, reason) && (c.Status == "False" || strings.Contains(c.Message, "started again"))
	})
}

// nodeReports waits for the node's condition over all control planes.
func (n *node) nodeReports(reason string) {
	n.T.Helper()
	n.Eventually("kerb status shows: "+reason, func() bool {
		var s v1.NodeStatus
		if err := json.Unmarshal([]byte(n.must("status", "-o", "json")), &s); err != nil {
			n.T.Fatal(err)
		}
		for _, c := range s.Conditions {
			if c.Type == "ControlPlanes" && c.Status == "False" {
				return strings.Contains(c.Message, "bad: ") && strings.Contains(c.Message, reason)
			}
		}
		return false
	})
}

func (n *node) awaitHealthy(name string) {
	n.T.Helper()
	n.Eventually("control plane of "+name+" runs", func() bool { return n.condition(name).Status == "True" })
}

func (n *node) query(route string) map[string]string {
	n.T.Helper()
	var out map[string]string
	if err := json.Unmarshal([]byte(n.must("module", "query", "bad", route, "-o", "json")), &out); err != nil {
		n.T.Fatal(err)
	}
	return out
}

// change applies a mode that is accepted.
func change(to string) func(*node, string) {
	return func(n *node, dir string) { n.apply(mode(dir, to, 2)) }
}

var misbehaviours = map[string]func(n *node, dir string){
	"crash": func(n *node, dir string) {
		change("crash")(n, dir)
		n.reports("falls over")
		n.nodeReports("falls over")
		n.reports("started again 2 times")
	},
	"hang": func(n *node, dir string) {
		change("hang")(n, dir)
		n.nodeReports("health")
		n.Eventually("the log says why it was ended", func() bool {
			return strings.Contains(n.Log(), "did not answer 3 health checks")
		})
		n.reports("started again")
	},
	"hang in compile": func(n *node, dir string) {
		answered := make(chan result, 1)
		go func() { answered <- n.tryApply(mode(dir, "hang-compile", 2)) }()
		time.Sleep(time.Second) // of the 10 s that it may take
		n.must("status")
		if len(answered) > 0 {
			n.T.Error("kerb status has waited for a control plane that hung")
		}
		if r := <-answered; r.code == 0 || !strings.Contains(r.stderr, "compile") {
			n.T.Errorf("exit status %d: %s", r.code, r.stderr)
		}
	},
	"leak": func(n *node, dir string) {
		change("leak")(n, dir)
		n.Eventually("the log reports the memory", func() bool {
			return strings.Contains(n.Log(), "MiB of memory, and may use 64")
		})
		n.reports("started again")
	},
	"flood": func(n *node, dir string) {
		begin := time.Now()
		change("flood")(n, dir)
		n.Eventually("it is in the log", func() bool { return len(n.Log()) > 100<<10 })
		// The flood continues; its log lines are rate-limited.
		time.Sleep(time.Second)
		most := 1<<20 + int(time.Since(begin).Seconds()*100_000) // burst of 100 lines, then 10 per second
		if size := len(n.Log()); size > most {
			n.T.Errorf("the log has %d bytes after a flood, want %d at most", size, most)
		}
	},
	"sick": func(n *node, dir string) {
		change("sick")(n, dir)
		n.reports("feels bad")
		n.nodeReports("feels bad")
	},
	"files": func(n *node, dir string) {
		for path, got := range n.query("open") {
			if got != "Permission denied" {
				n.T.Errorf("open %s: %s", path, got)
			}
		}
	},
	"bpf": func(n *node, dir string) {
		for what, got := range n.query("bpf") {
			if got != "Operation not permitted" {
				n.T.Errorf("create a %s: %s", what, got)
			}
		}
	},
	"nonsense": func(n *node, dir string) {
		for _, m := range []string{"no-json", "large", "type", "text", "range", "unknown", "idle", "entries"} {
			if r := n.tryApply(mode(dir, m, 2)); r.code == 0 || r.stderr == "" || r.stdout != "" {
				n.T.Errorf("%s: exit status %d: %q %s", m, r.code, r.stdout, r.stderr)
			}
		}
		n.awaitHealthy("bad")
		if config := get[v1.Module](n, "module", "bad").Spec.Config; fmt.Sprint(config["generation"]) != "1" {
			n.T.Errorf("after refused changes the config is %v", config)
		}
	},
}

// Any misbehaviour of a control plane leaves packets processed, and the other modules and the agent unaffected.
func TestControlMisbehaves(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(misbehaviours)) {
		do := misbehaviours[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.start()
			n.apply(n.both())
			other := n.pass("other", "*")
			other.Spec.Package = "counter"
			dir := n.controlled("0.1.0")
			n.apply(mode(dir, "", 1), other)
			n.awaitHealthy("bad")
			n.awaitHealthy("other")
			pid := n.PID()
			udp := startStream(t, n.db, n.web)
			do(n, dir)
			udp.finish(1, 2)
			n.awaitHealthy("other")
			if err := syscall.Kill(pid, 0); err != nil || n.must("status") == "" {
				t.Errorf("the agent has ended: %v", err)
			}
		})
	}
}

// A module whose control plane ends immediately is not deployed.
func TestControlEndsAtOnce(t *testing.T) {
	n := newRunningNode(t)
	dir := n.controlled("0.1.0")
	if err := os.WriteFile(filepath.Join(dir, "control.py"), []byte("raise SystemExit('no way')\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := n.tryApply(mode(dir, "", 1))
	if r.code == 0 || !strings.Contains(r.stderr, "no way") {
		t.Errorf("exit status %d: %s", r.code, r.stderr)
	}
	n.Eventually("its process is gone", func() bool { return len(n.children()) == 0 })
}

// children returns the child processes of the agent.
func (n *node) children() (pids []int) {
	n.T.Helper()
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", n.PID()))
	for _, path := range tasks {
		text, _ := os.ReadFile(path)
		for field := range strings.FieldsSeq(string(text)) {
			pid, _ := strconv.Atoi(field)
			pids = append(pids, pid)
		}
	}
	return pids
}

func gone(pids []int) bool {
	for _, pid := range pids {
		if !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return false
		}
	}
	return true
}

// Control planes end with their agent, with their module, and with a purge.
func TestControlProcessesEnd(t *testing.T) {
	n := newRunningNode(t)
	n.apply(mode(n.controlled("0.1.0"), "", 1), counter(0))
	n.awaitHealthy("bad")
	n.awaitHealthy("traffic")
	before := n.children()
	if len(before) != 2 {
		t.Fatalf("processes of the agent: %v", before)
	}
	n.Kill()
	n.Eventually("control planes end with the agent", func() bool { return gone(before) })
	n.start()
	n.awaitHealthy("bad")
	n.awaitHealthy("traffic")
	before = n.children()
	if got := n.query("keep")["kept"]; got != "done" {
		t.Errorf("write into the state directory: %s", got)
	}
	state := filepath.Join(n.State, "control", "modules", "bad")
	if _, err := os.Stat(filepath.Join(state, "kept")); err != nil {
		t.Error(err)
	}
	n.must("module", "delete", "bad")
	if _, err := os.Stat(state); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("state of a deleted module: %v", err)
	}
	n.Eventually("the process of the deleted module ends", func() bool { return len(n.children()) == 1 })
	n.Eventually("the files of its package are removed", func() bool {
		left, _ := filepath.Glob(filepath.Join(n.State, "control", "packages", "*"))
		return len(left) == 0
	})
	n.Stop()
	n.must("purge", append(n.Flags(), "--all")...)
	n.Eventually("control planes end with everything", func() bool { return gone(before) })
	for _, dir := range []string{n.State, n.Run} {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s after the purge: %v", dir, err)
		}
	}
}

// After a kill of the built-in modules' process it is restarted, and the counter has lost nothing.
func TestControlSharedProcessKilled(t *testing.T) {
	n := newRunningNode(t)
	n.apply(counter(0), n.stamp(1))
	n.awaitHealthy("traffic")
	udp := startStream(t, n.db, n.web)
	for _, pid := range n.children() {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	n.Eventually("it was started again", func() bool {
		c := n.condition("traffic")
		return c.Status == "True" && strings.Contains(c.Message, "started again 1 times")
	})
	udp.finish(1)
	var arrived uint64
	for _, times := range udp.got {
		arrived += uint64(times)
	}
	if got := n.counted("db", "egress", "udp"); got != arrived {
		t.Errorf("the counter has %d packets, %d were sent", got, arrived)
	}
}
