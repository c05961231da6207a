// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// entry is a module in a response.
type entry struct {
	ID       int    `json:"id"`
	Name     string `json:"name"`
	Priority int    `json:"priority"`
	Config   any    `json:"config"`
	// Warnings of the agent, only when the module is created.
	Warnings []string `json:"warnings,omitempty"`
}

func (m module) entry() entry {
	return entry{ID: m.ID, Name: m.Name, Priority: m.Priority, Config: m.Config}
}

func (l *Listener) addModuleRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /ebpf", l.listModules)
	mux.HandleFunc("POST /ebpf", l.createModule)
	mux.HandleFunc("DELETE /ebpf", l.deleteModules)
	mux.HandleFunc("GET /ebpf/{id}", l.byID(l.getModule))
	mux.HandleFunc("DELETE /ebpf/{id}", l.deleteModule)
	mux.HandleFunc("GET /ebpf/{id}/alive", l.byID(l.alive))
	mux.HandleFunc("GET /ebpf/{id}/counts", l.byID(l.getCounts))
	mux.HandleFunc("POST /ebpf/{id}/rule", l.byID(l.addRule))
	mux.HandleFunc("/ebpf/{id}/{path...}", l.byID(l.forwardToModule))
}

// writeJSON responds like Oakestra: status 200, without a trailing newline.
func writeJSON(w http.ResponseWriter, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data) // fails only if the client has disconnected
}

// readJSON decodes a body with exactly one value. Unknown fields are ignored: newer clients send more.
func readJSON(w http.ResponseWriter, r *http.Request, v any) bool {
	d := json.NewDecoder(r.Body)
	err := d.Decode(v)
	if err == nil {
		if _, err = d.Token(); errors.Is(err, io.EOF) {
			return true
		}
		err = errors.New("unexpected data after the JSON value")
	}
	http.Error(w, "not the JSON of this request: "+err.Error(), http.StatusBadRequest)
	return false
}

// fail maps errors to the statuses of Oakestra: 400 for an invalid request, else 500.
func fail(w http.ResponseWriter, what string, err error) {
	status := http.StatusInternalServerError
	var wrong *invalid
	var r *refused
	switch {
	case errors.As(err, &wrong):
		status = http.StatusBadRequest
	case errors.As(err, &r) && (r.status == http.StatusBadRequest || r.status == http.StatusNotFound):
		status = r.status
	}
	http.Error(w, what+": "+err.Error(), status)
}

// byID calls next with the module of the path, or responds with 404.
func (l *Listener) byID(next func(http.ResponseWriter, *http.Request, module)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id, ok := pathID(w, r)
		if !ok {
			return
		}
		all, err := l.present(r.Context())
		if err != nil {
			fail(w, "modules", err)
			return
		}
		for _, m := range all {
			if m.ID == id {
				next(w, r, m)
				return
			}
		}
		http.Error(w, fmt.Sprintf("no ebpf module with id %d exists", id), http.StatusNotFound)
	}
}

func pathID(w http.ResponseWriter, r *http.Request) (int, bool) {
	id, err := strconv.ParseUint(r.PathValue("id"), 10, 31)
	if err != nil {
		http.Error(w, fmt.Sprintf("%q is not the id of a module", r.PathValue("id")), http.StatusBadRequest)
	}
	return int(id), err == nil
}

// present returns the modules that also exist in the agent: `kerb module delete` may have removed some.
func (l *Listener) present(ctx context.Context) ([]module, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all, err := l.presentLocked(ctx)
	return slices.DeleteFunc(all, func(m module) bool { return !m.deployed() }), err
}

// presentLocked returns the modules of the state that still exist in the agent, without those deleted by other clients.
// The caller holds mu.
func (l *Listener) presentLocked(ctx context.Context) ([]module, error) {
	there, err := l.agent.modules(ctx)
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, m := range there {
		names[m.Metadata.Name] = true
	}
	out := []module{}
	for _, m := range l.state.Modules {
		if names[resourceOf(m.ID)] {
			out = append(out, m)
		}
	}
	return out, nil
}

func (l *Listener) listModules(w http.ResponseWriter, r *http.Request) {
	all, err := l.present(r.Context())
	if err != nil {
		fail(w, "modules", err)
		return
	}
	entries := []entry{}
	for _, m := range all {
		entries = append(entries, m.entry())
	}
	writeJSON(w, entries)
}

// alive responds with 503 and the reason if the module or its control plane does not run. A starting module, and one
// without a service, are alive.
func (l *Listener) alive(w http.ResponseWriter, r *http.Request, m module) {
	there, err := l.agent.module(r.Context(), resourceOf(m.ID))
	if err != nil {
		fail(w, "alive", err)
		return
	}
	for _, c := range there.Status.Conditions {
		waits := c.Reason == "Starting" || c.Reason == "NoAttachPoint"
		if (c.Type == "Ready" || c.Type == "ControlPlane") && c.Status == "False" && !waits {
			http.Error(w, fmt.Sprintf("%s: %s: %s", c.Type, c.Reason, c.Message), http.StatusServiceUnavailable)
			return
		}
	}
}

func (l *Listener) getModule(w http.ResponseWriter, _ *http.Request, m module) {
	writeJSON(w, m.entry())
}

// moduleRequest is a module as requested by POST /ebpf and by ebpfModules.
type moduleRequest struct {
	Name   string `json:"name"`
	Config any    `json:"config"`
}

// createModule serves the request of Oakestra's API that adds a module. Configurations that refer to files of the node
// are rejected. The response is sent only after the state was written.
func (l *Listener) createModule(w http.ResponseWriter, r *http.Request) {
	var want moduleRequest
	if !readJSON(w, r, &want) {
		return
	}
	if err := refuseFile("config", want.Config); err != nil {
		fail(w, "request", err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	added, warnings, err := l.deploy(r.Context(), "", []moduleRequest{want}, nil)
	if err == nil {
		err = l.confirm(added, nil)
	}
	if err != nil {
		http.Error(w, "Error creating Ebpf: "+err.Error(), http.StatusInternalServerError)
		return
	}
	created := added[0].entry()
	created.Warnings = warnings
	writeJSON(w, created)
}

// deploy applies modules for one service, or for all, and in the same transaction services. The modules stay pending
// until confirm. If the agent rejects them, the state is restored, except for the counters, since the agent has
// received the ids. It also returns the agent's warnings.
func (l *Listener) deploy(ctx context.Context, only string, want []moduleRequest,
	services []v1.Service) ([]module, []string, error) {
	before := slices.Clone(l.state.Modules)
	all, resources, err := l.registerAll(only, want)
	if err != nil {
		return nil, nil, err
	}
	var warnings []string
	if err = l.save(); err == nil {
		warnings, err = l.agent.apply(ctx, services, resources)
	}
	var open *unconfirmed
	if errors.As(err, &open) {
		l.expectLateRequests()
	}
	if err == nil || open != nil {
		return all, warnings, err
	}
	l.state.Modules = before
	return nil, nil, errors.Join(err, l.save())
}

// registerAll adds modules to the state, as pending, and returns them with their resources.
func (l *Listener) registerAll(only string, want []moduleRequest) (all []module, resources []v1.Module, err error) {
	before := l.state.clone()
	for _, x := range want {
		m := l.register(only, x, all)
		resource, err := m.resource(l.options)
		if err != nil {
			l.state = before
			return nil, nil, err
		}
		all, resources = append(all, m), append(resources, resource)
	}
	return all, resources, nil
}

// register adds a module to the state. A module that the service has under the same name keeps its id and its place;
// two of one name in one request are two modules.
func (l *Listener) register(only string, want moduleRequest, taken []module) module {
	for i, m := range l.state.Modules {
		same := func(t module) bool { return t.ID == m.ID }
		if only != "" && m.Service == only && m.Name == want.Name && !slices.ContainsFunc(taken, same) {
			if m.Pending == "" {
				l.state.Modules[i].Pending = pendingUpdate
			}
			m.Config = want.Config
			return m
		}
	}
	m := module{ID: l.state.NextID, Name: want.Name, Priority: l.state.Priority, Config: want.Config, Service: only,
		Pending: pendingCreate, Behind: slices.ContainsFunc(l.state.Modules, func(m module) bool {
			return m.Name == "proxy" && (m.Service == "" || m.Service == only)
		})}
	l.state.NextID++
	l.state.Priority++
	l.state.Modules = append(l.state.Modules, m)
	return m
}

// resourcePrefix is the prefix of the agent's names for the listener's modules; the id follows.
const resourcePrefix = "oakestra-"

func resourceOf(id int) string { return resourcePrefix + strconv.Itoa(id) }

// Labels of the agent's resources.
const (
	labelModule   = "oakestra.io/module"
	labelService  = "oakestra.io/service"
	labelApp      = "oakestra.io/app"
	labelInstance = "oakestra.io/instance"
)

// resource returns the agent's resource for the module.
func (m module) resource(o Options) (v1.Module, error) {
	pkg, err := packageOf(m.Name, o.Packages)
	if err != nil {
		return v1.Module{}, err
	}
	config, err := m.translate(o.Ranges)
	if err != nil {
		return v1.Module{}, err
	}
	return v1.Module{
		TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindModule},
		Metadata: v1.ObjectMeta{Name: resourceOf(m.ID), Labels: map[string]string{labelModule: labelValue(m.Name)}},
		Spec: v1.ModuleSpec{
			Package: pkg, Attach: v1.Attach{Services: selector(m.Service)}, Hook: v1.HookAuto,
			CommonModuleSpec: v1.CommonModuleSpec{Config: config, Order: v1.Order{Priority: m.Priority}},
		},
	}, nil
}

// selector selects the instances of a service, or all services.
func selector(only string) string {
	if only == "" {
		return "*"
	}
	return labelService + "=" + labelValue(only)
}

// translate returns the config for Kerb's package. Oakestra's proxy has no settings; Kerb's gets the ranges of virtual
// addresses.
func (m module) translate(ranges []string) (map[string]any, error) {
	given, ok := m.Config.(map[string]any)
	if !ok && m.Config != nil {
		return nil, errors.New("config is not an object")
	}
	switch m.Name {
	case "packetCounter":
		return nil, nil // Oakestra's has no settings and accepts any
	case "firewall":
		config := allowList()
		if m.Behind {
			config["antiSpoof"] = false // it would take virtual addresses for those of other hosts
		}
		maps.Copy(config, given)
		return config, nil
	case "proxy":
		config := map[string]any{"ranges": ranges, "source": "instance"}
		maps.Copy(config, given)
		return config, nil
	case "nat":
		config := map[string]any{"except": ranges} // the proxy translates packets to these
		maps.Copy(config, given)
		return config, nil
	}
	return given, nil
}

func (l *Listener) deleteModules(w http.ResponseWriter, r *http.Request) {
	l.remove(w, r, func(module) bool { return true })
}

func (l *Listener) deleteModule(w http.ResponseWriter, r *http.Request) {
	if id, ok := pathID(w, r); ok {
		l.remove(w, r, func(m module) bool { return m.ID == id })
	}
}

func (l *Listener) remove(w http.ResponseWriter, r *http.Request, which func(module) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	deployed := func(m module) bool { return m.deployed() && which(m) }
	if err := l.removeModules(r.Context(), deployed); err != nil {
		http.Error(w, "Error deleting Ebpf: "+err.Error(), http.StatusInternalServerError)
	}
}

// removeModules removes modules from the agent in one transaction, and then from the state.
func (l *Listener) removeModules(ctx context.Context, which func(module) bool) error {
	there, err := l.presentLocked(ctx)
	if err != nil {
		return err
	}
	var refs []ref
	for _, m := range there {
		if which(m) {
			refs = append(refs, ref{v1.KindModule, resourceOf(m.ID)})
		}
	}
	if len(refs) > 0 {
		if err := l.discard(ctx, refs); err != nil {
			return err
		}
	}
	before := l.state.clone()
	l.state.Modules = slices.DeleteFunc(l.state.Modules, which)
	if reflect.DeepEqual(before, l.state) {
		return nil
	}
	return l.save()
}

// forwardToModule forwards a request to the module's own API.
func (l *Listener) forwardToModule(w http.ResponseWriter, r *http.Request, m module) {
	l.agent.serve(w, r, resourceOf(m.ID), r.PathValue("path"))
}
