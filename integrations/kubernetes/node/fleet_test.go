// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/integrations/kubernetes/node"
	"github.com/kerb-edge/kerb/internal/control/sandbox"
)

// Variables of the environment: how many nodes TestFleet has, and where they are, for the process that they run in.
const (
	fleetSize = "KERB_FLEET"
	fleetDir  = "KERB_FLEET_DIR"
)

const (
	fleetChanges = 10              // of a module, one after the other
	fleetSteady  = time.Minute     // without a change
	fleetPatient = 8 * time.Minute // for all nodes to do something

	goalRequests = 5 // of Kerb in a second without a change
)

// ofKerb are the resources that nodes and the controller follow and write.
var ofKerb = []string{api.ClusterModules, api.Modules, api.KerbNodes, api.PackageTrusts, api.ModuleRevisions,
	"namespaces", "pods", "nodes", "events"}

// TestFleet measures kerb-kube-node and kerb-kube-controller with many nodes (make test-fleet), and that nothing is
// written and little is asked while nothing changes. They run the code of
// the program, each with connections of its own to a real API server, all in one process. Their agents are in this one:
// they answer at once, do nothing, and have no pods.
func TestFleet(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv(fleetSize))
	if n == 0 || os.Getenv(fleetDir) != "" {
		t.Skip("takes minutes: make test-fleet")
	}
	b := newBed(t)
	b.stop(syscall.SIGKILL)
	_ = b.api.Call(http.MethodDelete, nodesPath+"n1", nil, nil) // it may not have come that far
	dir, err := os.MkdirTemp("/dev/shm", "kf")                  // each node has a disk of its own
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	f := &hollow{bed: b, size: n, seen: map[string][]time.Time{}}
	for i := range n {
		f.agent(filepath.Join(dir, fmt.Sprint(i)))
	}
	controller := b.controller(b.controllerConfig())
	began := time.Now()
	nodes := f.start(dir)
	f.await("all nodes report", func() bool { return len(f.nodes()) == n })
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
	time.Sleep(fleetSteady) // what is sent while nothing changes
	after, seconds := f.requests(), fleetSteady.Seconds()
	rate := float64(after.all-before.all) / seconds
	f.say("steady: requests of Kerb", "%.2f/s; goal %d/s", rate, goalRequests)
	f.say("steady: writes of Kerb but the Lease", "%d in %.0f s; goal 0", after.writes-before.writes, seconds)
	if writes := after.writes - before.writes; writes != 0 || rate > goalRequests {
		t.Errorf("without a change there were %d writes, and %.2f requests in a second:\n%s", writes, rate,
			strings.Join(after.since(before), "\n"))
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
	var running sync.WaitGroup
	for i := range n {
		at := filepath.Join(dir, fmt.Sprint(i))
		running.Go(func() {
			err := node.Run(t.Context(), node.Options{Node: fmt.Sprintf("node-%04d", i), Agent: at + ".sock", State: at,
				Kubeconfig: filepath.Join(dir, "kubeconfig")}, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait() // until it is killed
}

// hollow is a fleet.
type hollow struct {
	*bed
	size int
	slow time.Duration // the longest time in which the API server has stored a change
	mu   sync.Mutex
	seen map[string][]time.Time // by the mark of a module: when agents got it
}

func (f *hollow) say(what, format string, args ...any) {
	f.T.Helper()
	f.T.Logf("%-50s %s", what, fmt.Sprintf(format, args...))
}

func (f *hollow) await(what string, ok func() bool) {
	f.T.Helper()
	for until := time.Now().Add(fleetPatient); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(until) {
			f.T.Fatalf("still not: %s", what)
		}
	}
}

// start starts the process of the nodes, and returns its PID.
func (f *hollow) start(dir string) int {
	f.T.Helper()
	text, err := os.ReadFile(f.kubeconfig)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "kubeconfig"), text, 0o600)
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

// agent serves an agent that has what was applied.
func (f *hollow) agent(at string) {
	f.T.Helper()
	l, err := net.Listen("unix", at+".sock")
	if err != nil {
		f.T.Fatal(err)
	}
	var mu sync.Mutex
	modules := map[string]v1.Module{}
	answer := func(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/services", func(w http.ResponseWriter, _ *http.Request) { answer(w, []v1.Service{}) })
	mux.HandleFunc("GET /v1/packages", func(w http.ResponseWriter, _ *http.Request) { answer(w, []v1.Package{}) })
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, v1.NodeStatus{Version: "hollow", Kernel: "6.1.0-13-amd64"})
	})
	mux.HandleFunc("GET /v1/modules", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		all := []v1.Module{}
		for _, m := range modules {
			all = append(all, m)
		}
		answer(w, all)
	})
	mux.HandleFunc("GET /v1/modules/{name}", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		m, ok := modules[r.PathValue("name")]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
		}
		answer(w, m)
	})
	mux.HandleFunc("POST /v1/apply", func(w http.ResponseWriter, r *http.Request) {
		var all []v1.Module
		if r.URL.Query().Get("owner") == names.Owner && !r.URL.Query().Has("dryRun") {
			_ = json.NewDecoder(r.Body).Decode(&all)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, m := range all {
			m.Metadata.Owner = names.Owner
			mark, _ := m.Spec.Config["mark"].(string)
			if before, _ := modules[m.Metadata.Name].Spec.Config["mark"].(string); mark != "" && mark != before {
				f.mu.Lock()
				f.seen[mark] = append(f.seen[mark], time.Now())
				f.mu.Unlock()
			}
			modules[m.Metadata.Name] = m
		}
		answer(w, v1.ApplyResult{})
	})
	server := &http.Server{Handler: mux}
	f.T.Cleanup(func() { server.Close() })
	go func() { _ = server.Serve(l) }()
}

func (f *hollow) arrived(mark string) []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.seen[mark])
}

// change changes a module of all nodes at once, and returns how long each took.
func (f *hollow) change(mark string) (took []time.Duration) {
	f.T.Helper()
	began := time.Now()
	f.module("web", "{package: {name: firewall}, config: {mark: "+mark+"}, attach: {pods: {}}}")
	f.slow = max(f.slow, time.Since(began))
	f.await(mark+" is on all nodes", func() bool { return len(f.arrived(mark)) >= f.size })
	for _, at := range f.arrived(mark) {
		took = append(took, at.Sub(began))
	}
	return took
}

// rollout rolls a version out by the default waves without a time between them.
func (f *hollow) rollout() {
	f.T.Helper()
	before, began := f.requests(), time.Now()
	f.module("web", "{package: {name: firewall}, config: {mark: rollout}, attach: {pods: {}}, rollout: {soakSeconds: 0, "+
		"previous: {package: {name: firewall}, config: {mark: previous}}}}")
	last, waves := "", 0
	f.await("the rollout is complete", func() bool {
		var m api.ClusterModule
		f.api.Must(http.MethodGet, modulesPath+"web", nil, &m)
		if m.Status == nil || len(m.Status.Conditions) == 0 || m.Status.Rollout == nil {
			return false
		}
		if is := fmt.Sprint(m.Status.Rollout.Percent, m.Status.Rollout.Canaries); is != last {
			last, waves = is, waves+1
		}
		if c := m.Status.Conditions[0]; m.Status.Rollout.Halted != nil {
			f.T.Fatal(c.Message)
		}
		return m.Status.Conditions[0].Status == "True"
	})
	f.say("rollout of all nodes without soak", "%.1f s, in %d steps", time.Since(began).Seconds(), waves)
	f.say("rollout: writes of Kerb but the Lease", "%d, of %d nodes", f.requests().writes-before.writes, f.size)
	if n := len(f.arrived("rollout")); n != f.size {
		f.T.Errorf("%d nodes run the version of a rollout that is complete", n)
	}
}

func (f *hollow) nodes() []api.KerbNode {
	f.T.Helper()
	var list struct{ Items []api.KerbNode }
	f.api.Must(http.MethodGet, nodesPath, nil, &list)
	return slices.DeleteFunc(list.Items, func(n api.KerbNode) bool { return n.Status == nil })
}

// requests are those that the API server has answered to Kerb, but for those of the Lease.
type requests struct {
	all, writes int
	by          map[string]int // by the line of the metric
}

// since are the lines that have become more.
func (r requests) since(before requests) (out []string) {
	for line, n := range r.by {
		if more := n - before.by[line]; more > 0 {
			out = append(out, fmt.Sprint(more, " ", line))
		}
	}
	return out
}

func (f *hollow) requests() requests {
	f.T.Helper()
	out := requests{by: map[string]int{}}
	answer, err := f.api.Admin.Get(f.api.URL + "/metrics")
	if err != nil {
		f.T.Fatal(err)
	}
	defer answer.Body.Close()
	for lines := bufio.NewReader(answer.Body); ; {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			return out
		}
		if err != nil {
			f.T.Fatal(err)
		}
		ours := slices.ContainsFunc(ofKerb, func(r string) bool { return strings.Contains(line, `resource="`+r+`"`) })
		if !strings.HasPrefix(line, "apiserver_request_total{") || !ours {
			continue
		}
		name, value, _ := strings.Cut(line, "} ")
		count, _ := strconv.ParseFloat(strings.TrimSpace(value), 64)
		out.all, out.by[name] = out.all+int(count), int(count)
		if !strings.Contains(line, `verb="GET"`) && !strings.Contains(line, `verb="LIST"`) &&
			!strings.Contains(line, `verb="WATCH"`) {
			out.writes += int(count)
		}
	}
}

// process is one of those that a fleet consists of.
type process struct {
	name string
	pid  int
}

// cpuOf returns the times that processes have had of CPUs.
func cpuOf(t *testing.T, processes []process) (all []time.Duration) {
	t.Helper()
	for _, p := range processes {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		user, _ := strconv.Atoi(fields[11])
		system, _ := strconv.Atoi(fields[12])
		all = append(all, time.Duration(user+system)*10*time.Millisecond) // USER_HZ
	}
	return all
}

// residentOf is the memory of a process, in MiB.
func residentOf(t *testing.T, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	kib, _ := strconv.Atoi(strings.Fields(rest)[0])
	return float64(kib) / 1024
}
