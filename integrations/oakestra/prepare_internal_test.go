// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// busyAgent makes one change at a time, as a transaction, whether or not the client waits. It responds to reads in the
// meantime.
type busyAgent struct {
	changes sync.Mutex
	hold    chan struct{} // a change waits until it is closed

	mu      sync.Mutex
	modules map[string]v1.Module
	asked   []string // paths of changes, when they arrive
	done    []string // and when they are made
}

// newBusyAgent returns an agent with a listener that uses it.
func newBusyAgent(t *testing.T) (*busyAgent, *Listener) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "agent.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	a := &busyAgent{hold: make(chan struct{}), modules: map[string]v1.Module{}}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(a.serve)}}
	server.Start()
	t.Cleanup(func() { a.resume(); server.Close() })
	return a, &Listener{agent: newAgent(socket), file: t.TempDir() + "/oakestra.json",
		log: slog.New(slog.DiscardHandler)}
}

// resume lets changes be made.
func (a *busyAgent) resume() {
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-a.hold:
	default:
		close(a.hold)
	}
}

func (a *busyAgent) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		a.show(w, strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/v1/modules"), "/"))
		return
	}
	var all []v1.Module
	var refs []ref
	var err error
	if r.URL.Path == "/v1/apply" {
		err = json.NewDecoder(r.Body).Decode(&all)
	} else {
		err = json.NewDecoder(r.Body).Decode(&refs)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	a.asked = append(a.asked, r.URL.Path)
	a.mu.Unlock()
	a.changes.Lock()
	defer a.changes.Unlock()
	<-a.hold
	a.mu.Lock()
	defer a.mu.Unlock()
	a.done = append(a.done, r.URL.Path)
	for _, x := range refs {
		if _, there := a.modules[x.Name]; !there {
			http.Error(w, x.Name+" does not exist", http.StatusNotFound)
			return
		}
	}
	for _, m := range all {
		m.Metadata.Owner = owner
		a.modules[m.Metadata.Name] = m
	}
	for _, x := range refs {
		delete(a.modules, x.Name)
	}
	fmt.Fprint(w, "{}")
}

func (a *busyAgent) show(w http.ResponseWriter, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := []v1.Module{}
	for _, m := range a.modules {
		all = append(all, m)
	}
	var out any = all
	if m, there := a.modules[name]; there {
		out = m
	} else if name != "" {
		http.Error(w, name+" does not exist", http.StatusNotFound)
		return
	}
	_ = json.NewEncoder(w).Encode(out) // fails only if the client has disconnected
}

func (a *busyAgent) counts() (asked, done, modules int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.asked), len(a.done), len(a.modules)
}

func jobOf(app string) job { return job{Name: app, Modules: json.RawMessage(`[{"name":"firewall"}]`)} }

// A deployment waits for at most one preparation: while the agent processes one, no further one is sent.
func TestOnePreparationAtATime(t *testing.T) {
	a, l := newBusyAgent(t)
	for i := range 3 {
		l.state.Jobs = append(l.state.Jobs, jobOf(fmt.Sprintf("a.b.c%d.d", i)))
	}
	for range 2 { // two sweeps
		l.prepareJobs(t.Context())
		if asked, _, _ := a.counts(); asked != 1 {
			t.Errorf("the agent, which works at a preparation, has been sent %d", asked)
		}
	}
	a.resume()
	wait.Until(t, "the first is prepared", func() bool { _, _, there := a.counts(); return there == 1 })
	l.prepareJobs(t.Context())
	if _, _, there := a.counts(); there != 3 {
		t.Errorf("%d of 3 services are prepared when the agent has answered", there)
	}
}

// A preparation that the agent is still processing does not outlast the deployment with other modules.
func TestUnconfirmedPreparationEnds(t *testing.T) {
	a, l := newBusyAgent(t)
	l.state.Jobs = []job{jobOf(testApp)}
	l.prepareJobs(t.Context())
	taken := make(chan error, 1)
	go func() { taken <- l.endPreparation(t.Context(), testApp, []moduleRequest{{Name: "counter"}}) }()
	wait.Until(t, "a request behind the preparation, or the end", func() bool {
		asked, _, _ := a.counts()
		return asked > 1 || len(taken) > 0
	})
	a.resume()
	if err := <-taken; err != nil {
		t.Error(err)
	}
	wait.Until(t, "the agent is done", func() bool { asked, done, _ := a.counts(); return asked == done })
	if _, _, there := a.counts(); there != 0 || len(l.state.Modules) != 0 {
		t.Errorf("%d modules of the preparation are left, %d in the state", there, len(l.state.Modules))
	}
}

// Expired preparations are removed with one request, since each request delays the node's deployments. If some of them
// are already removed, the rest is removed nevertheless.
func TestExpiredPreparationsAreRemovedAtOnce(t *testing.T) {
	for missing, requests := range map[int]int{0: 1, 1: 2} {
		a, l := newBusyAgent(t)
		a.resume()
		l.prepared = map[string]time.Time{"a.b.kept.d": time.Now().Add(time.Hour)}
		for id := range 20 {
			m := module{ID: id, Name: "firewall", Service: testApp, Pending: pendingPrepared}
			if id == 19 {
				m.Service = "a.b.kept.d"
			}
			l.state.Modules = append(l.state.Modules, m)
			if r := (v1.Module{Metadata: v1.ObjectMeta{Name: resourceOf(id), Owner: owner}}); id >= missing {
				a.modules[r.Metadata.Name] = r
			}
		}
		if err := l.settle(t.Context()); err != nil {
			t.Fatal(err)
		}
		asked, _, there := a.counts()
		if asked != requests || there != 1 || len(l.state.Modules) != 1 {
			t.Errorf("%d missing: %d requests, want %d; %d modules are left, %d in the state, want the kept one", missing,
				asked, requests, there, len(l.state.Modules))
		}
	}
}
