// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// The modules of each worker are applied once, and again when one of them was deleted.
func TestModulesOfAWorkerAreRestored(t *testing.T) {
	m := newMember(t)
	m.register(testWorker)
	socket, err := net.Listen("unix", filepath.Join(t.TempDir(), "agent"))
	if err != nil {
		t.Fatal(err)
	}
	var there []v1.Module // used in turn with the agent
	applied := 0
	agent := &httptest.Server{Listener: socket,
		Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/apply" {
				applied++
				if err := json.NewDecoder(r.Body).Decode(&there); err != nil {
					t.Error(err)
				}
				for i := range there {
					there[i].Metadata.Owner = r.URL.Query().Get("owner")
				}
				_, _ = w.Write([]byte("{}"))
				return
			}
			if err := json.NewEncoder(w).Encode(there); err != nil {
				t.Error(err)
			}
		})}}
	agent.Start()
	defer agent.Close()
	m.l.agent = newAgent(socket.Addr().String())
	ensure := func(what string, times int) {
		t.Helper()
		m.l.mu.Lock()
		defer m.l.mu.Unlock()
		if err := m.l.ensurePlane(t.Context()); err != nil || applied != times {
			t.Errorf("%s: %v, applied %d times, want %d", what, err, applied, times)
		}
	}
	ensure("at first", 1)
	ensure("as it was", 1)
	there = slices.DeleteFunc(there, func(r v1.Module) bool { return r.Metadata.Name == proxyResource })
	ensure("deleted", 2)
	if got := len(there); got != 2 {
		t.Errorf("%d modules", got)
	}
	ensure("back again", 2)
	there = slices.DeleteFunc(there, func(r v1.Module) bool { return r.Metadata.Name == tunnelResource })
	there[0].Metadata.Owner = "" // a user has taken it over
	ensure("of a user", 3)
	if len(there) != 1 || there[0].Metadata.Name != tunnelResource {
		t.Errorf("applied instead of the one of a user: %+v", there)
	}
}

// chainAgent is an agent that responds to requests for its chains with a sequence, whose last element it repeats.
type chainAgent struct {
	answers [][]v1.Chain // the agent fails if there is none
	asked   int          // used in turn with the agent
}

func newChainAgent(m *member, answers ...[]v1.Chain) *chainAgent {
	m.Helper()
	socket, err := net.Listen("unix", filepath.Join(m.TempDir(), "agent"))
	if err != nil {
		m.Fatal(err)
	}
	a := &chainAgent{answers: answers}
	server := &httptest.Server{Listener: socket,
		Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			a.asked++
			if len(a.answers) == 0 {
				http.Error(w, "the store is damaged", http.StatusInternalServerError)
				return
			}
			if err := json.NewEncoder(w).Encode(a.answers[min(a.asked, len(a.answers))-1]); err != nil {
				m.Error(err)
			}
		})}}
	server.Start()
	m.Cleanup(server.Close)
	m.l.agent = newAgent(socket.Addr().String())
	return a
}

// registerNode sends a registration as NodeEngine does.
func (m *member) registerNode() {
	m.Helper()
	w := httptest.NewRecorder()
	m.l.registerNode(w, httptest.NewRequest(http.MethodPost, "/register",
		strings.NewReader(`{"client_id":"`+testWorker+`","cluster_address":"127.0.0.1"}`)))
	if w.Code != http.StatusOK {
		m.Errorf("%d %s", w.Code, w.Body)
	}
}

func chainsBeingLinked() [][]v1.Chain {
	of := func(direction string, ready bool, modules ...string) v1.Chain {
		return v1.Chain{Direction: direction, Ready: ready, Modules: modules}
	}
	return [][]v1.Chain{
		{},
		{of("ingress", false, tunnelResource)},
		{of("egress", true, proxyResource), of("ingress", false, proxyResource)}, // of a removed service
		{of("egress", true, proxyResource, tunnelResource), of("ingress", true, tunnelResource, proxyResource)},
	}
}

// NodeEngine may deploy when it has the response to its registration: that is sent when the agent has linked the chains
// of services in both directions, or after a timeout.
func TestRegistrationWaitsForChains(t *testing.T) {
	m := newMember(t)
	m.register(testWorker)
	a := newChainAgent(m, chainsBeingLinked()...)
	if m.registerNode(); a.asked != len(a.answers) {
		t.Errorf("answered after %d of %d requests for the agent's chains", a.asked, len(a.answers))
	}
	a.answers = a.answers[:1]
	if m.registerNode(); !strings.Contains(m.log.String(), "before the modules of the worker are linked") {
		t.Errorf("a slow agent: %s", m.log)
	}
	a.answers = nil
	if m.registerNode(); !strings.Contains(m.log.String(), "the store is damaged") {
		t.Errorf("an agent without a result: %s", m.log)
	}
}

// A node with a configured subnet connects while it registers: the modules are applied immediately, and the
// registration waits for them.
func TestRegistrationWithASubnetWaitsForChains(t *testing.T) {
	m := newMember(t)
	o := Options{Bridge: "oaktest-none", Subnet: "10.18.0.0/26", Subnet6: "fc00::/120"}
	m.l.options.Subnet, m.l.options.Subnet6, m.l.net = o.Subnet, o.Subnet6, newNetwork(o)
	close(m.l.subnet)
	a := newChainAgent(m, chainsBeingLinked()...)
	if m.registerNode(); a.asked != len(a.answers) {
		t.Errorf("answered after %d of %d requests for the agent's chains", a.asked, len(a.answers))
	}
	wait.Until(t, "the connection leads to a check of the modules", func() bool { return len(m.l.wakeup) > 0 })
}

// Without a broker there are no modules to wait for.
func TestRegistrationWithoutABrokerDoesNotWaitForChains(t *testing.T) {
	m := newMember(t)
	m.register(testWorker)
	m.broker.Stop()
	wait.Until(t, "the connection is lost", func() bool {
		reason, _ := m.l.describe()
		return reason == notConnected
	})
	newChainAgent(m, nil)
	if m.registerNode(); strings.Contains(m.log.String(), "modules of the worker are linked") {
		t.Errorf("waited for the modules: %s", m.log)
	}
}

// The name of a cluster is resolved while deployments wait: an unresponsive DNS server does not block them.
func TestNameOfAClusterIsResolvedInTime(t *testing.T) {
	saved := net.DefaultResolver
	t.Cleanup(func() { net.DefaultResolver = saved })
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		<-t.Context().Done()
		return nil, t.Context().Err()
	}}
	l := &Listener{session: &session{sessionOptions: sessionOptions{cluster: "cluster.kerb.test"}}}
	done := make(chan error, 1)
	go func() {
		_, err := l.underlay(t.Context())
		done <- err
	}()
	wait.Until(t, "the attempt ends", func() bool { return len(done) > 0 })
	if err := <-done; err == nil {
		t.Error("a name without an address")
	}
}

// If the agent takes long for the modules of the worker, one message is logged until they are in place.
func TestLateModulesOfAWorkerAreLogged(t *testing.T) {
	m := newMember(t)
	m.register(testWorker)
	a, l := newBusyAgent(t)
	m.l.agent = l.agent
	m.l.mu.Lock()
	defer m.l.mu.Unlock()
	for range 2 { // two sweeps
		if err := m.l.ensurePlane(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if got := strings.Count(m.log.String(), "takes long"); got != 1 {
		t.Errorf("%d messages in the log, want one:\n%s", got, m.log)
	}
	a.resume()
	if err := m.l.ensurePlane(t.Context()); err != nil || len(m.l.planeApplied) != 2 || m.l.planeUnconfirmed {
		t.Errorf("%v, applied %+v, late %v", err, m.l.planeApplied, m.l.planeUnconfirmed)
	}
}
