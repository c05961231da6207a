// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/integrations/kubernetes/node"
	"github.com/kerb-edge/kerb/internal/control/sandbox"
	"github.com/kerb-edge/kerb/internal/lab/kubefleet"
	lab "github.com/kerb-edge/kerb/internal/lab/node"
)

// Environment variables of TestFleetNodes: the number of nodes, and their directory.
const (
	fleetSize = "KERB_FLEET"
	fleetDir  = "KERB_FLEET_DIR"
)

const (
	fleetChanges = 10          // of a module, one after the other
	fleetSteady  = time.Minute // without a change

	goalRequests = 5 // of Kerb in a second without a change
)

// TestFleet measures kerb-kube-node and kerb-kube-controller with many nodes (make test-fleet). It checks that nothing
// is written and few requests are sent while nothing changes. The nodes run the program's code in one process, each
// with its own connections to a real API server. Their agents are simulated in this process: they respond immediately,
// do nothing, and have no pods.
func TestFleet(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv(fleetSize))
	if n == 0 || os.Getenv(fleetDir) != "" {
		t.Skip("takes minutes: make test-fleet")
	}
	b := newBed(t)
	b.stop(syscall.SIGKILL)
	_ = b.api.Call(http.MethodDelete, nodesPath+"n1", nil, nil) // it may not have been created yet
	dir, err := os.MkdirTemp("/dev/shm", "kf")                  // each node has a directory of its own
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	f := &hollow{bed: b, Fleet: kubefleet.Fleet{Server: b.api.Server, Size: n}}
	f.Agents, err = kubefleet.NewAgents(dir, n, kubefleet.Owners{Modules: names.Owner, Pods: names.OwnerPods}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Agents.Close() })
	controller := b.controller(b.controllerConfig())
	began := time.Now()
	nodes := f.start(dir)
	if err := kubefleet.Await(t.Context(), "all nodes report", func() (bool, error) {
		reported, err := f.Reported()
		return reported == n, err
	}); err != nil {
		t.Fatal(err)
	}
	f.say("all nodes have started", "%.1f s", time.Since(began).Seconds())

	processes := []process{{"all nodes", nodes}, {"their agents, and the test", os.Getpid()},
		{"controller", controller.Process.Pid}, {"API server and etcd", b.api.PID()}}
	var all []time.Duration
	cpu := cpuOf(t, processes)
	for i := range fleetChanges {
		all = append(all, f.change(fmt.Sprint("change-", i))...)
	}
	for i, now := range cpuOf(t, processes) {
		f.say("a change: CPU time of "+processes[i].name, "%.2f s", (now-cpu[i]).Seconds()/fleetChanges)
	}
	slices.Sort(all)
	f.say("a change on all nodes, p50", "%.2f s", all[len(all)/2].Seconds())
	f.say("a change on all nodes, p99", "%.2f s; goal 2 s", all[len(all)*99/100].Seconds())
	f.say("a change on all nodes, longest", "%.2f s", all[len(all)-1].Seconds())
	f.say("a change: until it is stored, longest", "%.2f s", f.slow.Seconds())

	time.Sleep(10 * time.Second) // the controller counts the last change
	before := f.requests()
	cpu = cpuOf(t, processes)
	time.Sleep(fleetSteady) // requests while nothing changes
	after, seconds := f.requests(), fleetSteady.Seconds()
	rate := float64(after.All-before.All) / seconds
	f.say("steady: requests of Kerb", "%.2f/s; goal %d/s", rate, goalRequests)
	f.say("steady: writes of Kerb but the Lease", "%d in %.0f s; goal 0", after.Writes-before.Writes, seconds)
	if writes := after.Writes - before.Writes; writes != 0 || rate > goalRequests {
		t.Errorf("without a change there were %d writes, and %.2f requests in a second:\n%s", writes, rate,
			strings.Join(after.Since(before), "\n"))
	}
	for i, now := range cpuOf(t, processes) {
		f.say("steady: CPU of "+processes[i].name, "%.1f %%", 100*(now-cpu[i]).Seconds()/seconds)
		f.say("memory of "+processes[i].name, "%.1f MiB", residentOf(t, processes[i].pid))
	}

	f.rollout()
	f.say("memory of controller after the rollout", "%.1f MiB; goal 100 MB at 5,000 nodes",
		residentOf(t, controller.Process.Pid))
}

// TestFleetNodes is the process of the nodes.
func TestFleetNodes(t *testing.T) {
	dir := os.Getenv(fleetDir)
	if dir == "" {
		t.Skip("a part of TestFleet")
	}
	node.KeepMemory()
	n, _ := strconv.Atoi(os.Getenv(fleetSize))
	err := kubefleet.RunNodes(t.Context(), dir, n, func(ctx context.Context, n kubefleet.Node) error {
		return node.Run(ctx, node.Options{Node: n.Name, Agent: n.Agent, State: n.State, Kubeconfig: n.Kubeconfig},
			slog.New(slog.DiscardHandler))
	})
	if err != nil { // otherwise it runs until it is killed
		t.Error(err)
	}
}

// hollow is a fleet of simulated nodes.
type hollow struct {
	*bed
	kubefleet.Fleet
	slow time.Duration // longest time in which the API server stored a change
}

func (f *hollow) say(what, format string, args ...any) {
	f.T.Helper()
	f.T.Logf("%-50s %s", what, fmt.Sprintf(format, args...))
}

// start starts the process of the nodes, and returns its PID.
func (f *hollow) start(dir string) int {
	f.T.Helper()
	text, err := os.ReadFile(f.kubeconfig)
	if err == nil {
		err = os.WriteFile(kubefleet.Kubeconfig(dir), text, 0o600)
	}
	if err != nil {
		f.T.Fatal(err)
	}
	cmd := f.Lab.Node().Command(context.Background(), os.Args[0], "-test.run=^TestFleetNodes$", "-test.timeout=0")
	cmd.Env = append(os.Environ(), fleetDir+"="+dir)
	cmd.Stderr = f.log
	if err := sandbox.Start(cmd); err != nil {
		f.T.Fatal(err)
	}
	f.T.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process.Pid
}

// change changes a module on all nodes at once, and returns how long each node took.
func (f *hollow) change(mark string) []time.Duration {
	f.T.Helper()
	took, stored, err := f.Change(f.T.Context(), mark)
	if err != nil {
		f.T.Fatal(err)
	}
	f.slow = max(f.slow, stored)
	return took
}

// rollout rolls out a new version.
func (f *hollow) rollout() {
	f.T.Helper()
	before, began := f.requests(), time.Now()
	m, steps, err := f.Rollout(f.T.Context(), "rollout", "previous")
	if status, reason, message := m.RolledOut(); err != nil || status != "True" {
		f.T.Fatal(reason, message, err)
	}
	f.say("rollout of all nodes without soak", "%.1f s, in %d steps", time.Since(began).Seconds(), steps)
	f.say("rollout: writes of Kerb but the Lease", "%d, of %d nodes", f.requests().Writes-before.Writes, f.Size)
	if n := len(f.Agents.Arrived("rollout")); n != f.Size {
		f.T.Errorf("%d nodes run the version of a rollout that is complete", n)
	}
}

func (f *hollow) requests() kubefleet.Requests {
	f.T.Helper()
	out, err := kubefleet.CountRequests(f.Server)
	if err != nil {
		f.T.Fatal(err)
	}
	return out
}

// process is a process of the fleet.
type process struct {
	name string
	pid  int
}

// cpuOf returns the CPU times of processes.
func cpuOf(t *testing.T, processes []process) (all []time.Duration) {
	t.Helper()
	for _, p := range processes {
		used, err := lab.CPUOf(p.pid)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, used)
	}
	return all
}

// residentOf returns the resident memory of a process in MiB.
func residentOf(t *testing.T, pid int) float64 {
	t.Helper()
	sizes, err := lab.Kibibytes(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	return float64(sizes["VmRSS"]) / 1024
}
