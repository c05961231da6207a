// SPDX-License-Identifier: Apache-2.0

// Package kubefleet simulates the nodes of a large Kubernetes cluster, for tests and benchmarks of kerb-kube-node and
// kerb-kube-controller: agents that respond immediately and do nothing, and statistics of requests and rollouts. The
// caller runs the code of kerb-kube-node.
package kubefleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// Mark is the field of a module's config that distinguishes its versions.
const Mark = "mark"

// Owners are the owners of the resources that kerb-kube-node applies: modules, services of pods, and virtual services.
type Owners struct{ Modules, Pods, Services string }

// Agents are the agents of a fleet.
type Agents struct {
	owners  Owners
	dir     string
	servers []*http.Server

	mu      sync.Mutex
	virtual map[string]bool        // names of virtual services that agents have received
	seen    map[string][]time.Time // by the mark of a module: when agents received it
	refused map[string]string      // by node and mark: why its kernel rejects the version
}

// NodeName returns the name of a node.
func NodeName(i int) string { return fmt.Sprintf("node-%04d", i) }

// StateOf returns the state directory of a node.
func StateOf(dir string, i int) string { return filepath.Join(dir, fmt.Sprint(i)) }

// SocketOf returns the socket of a node's agent.
func SocketOf(dir string, i int) string { return StateOf(dir, i) + ".sock" }

// NewAgents serves agents with sockets in a directory. Only the first node has services.
func NewAgents(dir string, n int, owners Owners, first []v1.Service) (*Agents, error) {
	a := &Agents{owners: owners, dir: dir, virtual: map[string]bool{}, seen: map[string][]time.Time{},
		refused: map[string]string{}}
	for i := range n {
		one := &agent{of: a, number: i, modules: map[string]v1.Module{}}
		if i == 0 {
			one.services = first
		}
		l, err := net.Listen("unix", SocketOf(dir, i))
		if err != nil {
			return nil, errors.Join(err, a.Close())
		}
		server := &http.Server{Handler: one.handler()}
		a.servers = append(a.servers, server)
		go func() { _ = server.Serve(l) }()
	}
	return a, nil
}

// Close stops the agents.
func (a *Agents) Close() (err error) {
	for _, s := range a.servers {
		err = errors.Join(err, s.Close())
	}
	return err
}

// Arrived returns the times at which agents received the version of a module with the mark.
func (a *Agents) Arrived(mark string) []time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.seen[mark])
}

// Refuse makes the agent of a node reject the version of a module with the mark, as if its kernel's verifier did.
func (a *Agents) Refuse(node int, mark, why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refused[fmt.Sprint(node, "/", mark)] = why
}

func (a *Agents) why(node int, mark string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.refused[fmt.Sprint(node, "/", mark)]
}

func (a *Agents) arrive(mark string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen[mark] = append(a.seen[mark], time.Now())
}

// agent has the applied resources of a node.
type agent struct {
	of     *Agents
	number int

	mu       sync.Mutex
	modules  map[string]v1.Module
	services []v1.Service
}

func (a *agent) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/services", func(w http.ResponseWriter, _ *http.Request) { answer(w, a.allServices()) })
	mux.HandleFunc("GET /v1/packages", func(w http.ResponseWriter, _ *http.Request) { answer(w, []v1.Package{}) })
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, v1.NodeStatus{Version: "hollow", Kernel: "6.1.0-13-amd64"})
	})
	mux.HandleFunc("GET /v1/modules", func(w http.ResponseWriter, _ *http.Request) { answer(w, a.allModules()) })
	mux.HandleFunc("GET /v1/modules/{name}", func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		m, ok := a.modules[r.PathValue("name")]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
		}
		answer(w, m)
	})
	mux.HandleFunc("POST /v1/apply", a.apply)
	return mux
}

func answer(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }

func (a *agent) allServices() []v1.Service {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]v1.Service{}, a.services...)
}

func (a *agent) allModules() []v1.Module {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := []v1.Module{}
	for _, m := range a.modules {
		all = append(all, m)
	}
	return all
}

func (a *agent) apply(w http.ResponseWriter, r *http.Request) {
	switch owner := r.URL.Query().Get("owner"); owner {
	case a.of.owners.Modules:
		a.applyModules(w, r)
	case a.of.owners.Pods:
		a.applyServices(r)
		answer(w, v1.ApplyResult{})
	case a.of.owners.Services:
		a.of.applyVirtual(r)
		answer(w, v1.ApplyResult{})
	default:
		answer(w, v1.ApplyResult{})
	}
}

func (a *agent) applyModules(w http.ResponseWriter, r *http.Request) {
	var all []v1.Module
	_ = json.NewDecoder(r.Body).Decode(&all)
	dry := r.URL.Query().Has("dryRun")
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range all {
		mark := markOf(m)
		if why := a.of.why(a.number, mark); why != "" {
			w.WriteHeader(http.StatusUnprocessableEntity)
			answer(w, map[string]string{"detail": why})
			return
		}
		if dry {
			continue
		}
		m.Metadata.Owner = a.of.owners.Modules
		if mark != "" && mark != markOf(a.modules[m.Metadata.Name]) {
			a.of.arrive(mark)
		}
		a.modules[m.Metadata.Name] = m
	}
	answer(w, v1.ApplyResult{})
}

func markOf(m v1.Module) string {
	mark, _ := m.Spec.Config[Mark].(string)
	return mark
}

func (a *agent) applyServices(r *http.Request) {
	var all []v1.Service
	_ = json.NewDecoder(r.Body).Decode(&all)
	a.mu.Lock()
	defer a.mu.Unlock()
	number := map[string]int{}
	for i, s := range a.services {
		number[s.Metadata.Name] = i
	}
	for _, s := range all {
		if i, ok := number[s.Metadata.Name]; ok {
			s.Metadata.Owner = a.of.owners.Pods
			a.services[i] = s
		}
	}
}

func (a *Agents) applyVirtual(r *http.Request) {
	var all []v1.VirtualService
	_ = json.NewDecoder(r.Body).Decode(&all)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range all {
		a.virtual[s.Metadata.Name] = true
	}
}

// VirtualServices returns the number of virtual services that agents have received.
func (a *Agents) VirtualServices() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.virtual)
}

// Services returns the services of the first node.
func (a *Agents) Services() ([]v1.Service, error) {
	client := http.Client{Transport: &http.Transport{Dial: func(string, string) (net.Conn, error) {
		return net.Dial("unix", SocketOf(a.dir, 0))
	}}}
	defer client.CloseIdleConnections()
	r, err := client.Get("http://agent/v1/services")
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	var all []v1.Service
	err = json.NewDecoder(r.Body).Decode(&all)
	return all, err
}
