// SPDX-License-Identifier: Apache-2.0

// Package servertest holds a Backend for tests of the server and of the command line: it keeps the contract of the real one
// over a real store, and runs nothing in the kernel.
package servertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"path"
	"reflect"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/fault"
	"github.com/kerb-edge/kerb/internal/models"
	"github.com/kerb-edge/kerb/internal/nearest"
	"github.com/kerb-edge/kerb/internal/server"
	"github.com/kerb-edge/kerb/internal/store"
)

// RejectedPackage is a package that the verifier refuses.
const RejectedPackage = "broken"

// Fake is a Backend that knows the packages counter, firewall and RejectedPackage.
type Fake struct {
	mu    sync.Mutex
	store *store.Store
}

// New makes a Fake over s.
func New(s *store.Store) *Fake { return &Fake{store: s} }

var _ server.Backend = (*Fake)(nil)

// Apply implements server.Backend.
func (f *Fake) Apply(_ context.Context, r server.Request) (v1alpha1.ApplyResult, error) {
	return f.change(r.DryRun, func(d store.Desired, result *v1alpha1.ApplyResult) error {
		if err := server.CheckUnchanged(d, r.Expected()); err != nil {
			return err
		}
		for _, m := range r.Modules {
			if err := checkPackage(m); err != nil {
				return err
			}
			old, exists := d.Modules[m.Metadata.Name]
			d.Modules[m.Metadata.Name] = m
			note(result, v1alpha1.KindModule, m.Metadata.Name, exists, old.Spec, m.Spec)
		}
		for _, s := range r.Services {
			old, exists := d.Services[s.Metadata.Name]
			d.Services[s.Metadata.Name] = s
			note(result, v1alpha1.KindService, s.Metadata.Name, exists, old.Spec, s.Spec)
		}
		for _, s := range r.VirtualServices {
			old, exists := d.VirtualServices[s.Metadata.Name]
			d.VirtualServices[s.Metadata.Name] = s
			note(result, v1alpha1.KindVirtualService, s.Metadata.Name, exists, old.Spec, s.Spec)
		}
		for _, m := range r.Models {
			old, exists := d.Models[m.Metadata.Name]
			m.Metadata.Generation = old.Metadata.Generation
			if old.Spec != m.Spec {
				m.Metadata.Generation++
			}
			d.Models[m.Metadata.Name] = m
			note(result, v1alpha1.KindModel, m.Metadata.Name, exists, old.Spec, m.Spec)
		}
		return nil
	})
}

// Delete implements server.Backend.
func (f *Fake) Delete(_ context.Context, refs []server.Ref, dryRun bool) (v1alpha1.ApplyResult, error) {
	return f.change(dryRun, func(d store.Desired, result *v1alpha1.ApplyResult) error {
		if err := server.CheckUnchanged(d, refs); err != nil {
			return err
		}
		for _, ref := range refs {
			if err := remove(d, ref); err != nil {
				return err
			}
			result.Changes = append(result.Changes, v1alpha1.Change{Action: "delete", Kind: ref.Kind, Name: ref.Name})
		}
		return nil
	})
}

func (f *Fake) change(dryRun bool, do func(store.Desired, *v1alpha1.ApplyResult) error) (v1alpha1.ApplyResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	result := v1alpha1.ApplyResult{DryRun: dryRun, Changes: []v1alpha1.Change{}, Steps: []string{}}
	d, err := f.store.Snapshot()
	if err == nil {
		err = do(d, &result)
	}
	if err == nil && !dryRun {
		err = f.store.Commit(d)
	}
	return result, err
}

func checkPackage(m v1alpha1.Module) error {
	switch m.Spec.Package {
	case "counter", "firewall":
		return nil
	case RejectedPackage:
		return fmt.Errorf("module %s: %w", m.Metadata.Name, &fault.Rejected{
			Plain: "the kernel refused the program: it reads past the end of the packet",
			Log:   "0: R1=ctx() R10=fp0\n1: (71) r0 = *(u8 *)(r1 +14)\ninvalid access to packet\n",
		})
	}
	return &fault.Invalid{Resource: "Module " + m.Metadata.Name, Field: "spec.package", Reason: "no package " + m.Spec.Package + nearest.Hint(m.Spec.Package, []string{"counter", "firewall"})}
}

func note(result *v1alpha1.ApplyResult, kind, name string, exists bool, before, after any) {
	c := v1alpha1.Change{Kind: kind, Name: name, Before: before, After: after}
	switch {
	case !exists:
		c.Action, c.Before = "create", nil
	case sameJSON(before, after):
		c.Action, c.Before, c.After = "unchanged", nil, nil
	default:
		c.Action = "update"
	}
	result.Changes = append(result.Changes, c)
}

// sameJSON compares as the store does: a map that is nil and one that is empty are the same.
func sameJSON(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && reflect.DeepEqual(x, y)
}

func remove(d store.Desired, ref server.Ref) error {
	_, module := d.Modules[ref.Name]
	_, service := d.Services[ref.Name]
	_, virtual := d.VirtualServices[ref.Name]
	_, model := d.Models[ref.Name]
	switch {
	case ref.Kind == v1alpha1.KindModule && module:
		delete(d.Modules, ref.Name)
	case ref.Kind == v1alpha1.KindService && service:
		delete(d.Services, ref.Name)
	case ref.Kind == v1alpha1.KindVirtualService && virtual:
		delete(d.VirtualServices, ref.Name)
	case ref.Kind == v1alpha1.KindModel && model:
		delete(d.Models, ref.Name)
	default:
		return &fault.NotFound{Kind: ref.Kind, Name: ref.Name}
	}
	return nil
}

// Modules implements server.Backend.
func (f *Fake) Modules(context.Context) ([]v1alpha1.Module, error) {
	d, err := f.store.Snapshot()
	all := sorted(d.Modules)
	for i := range all {
		all[i].Status = status(all[i])
	}
	return all, err
}

func status(m v1alpha1.Module) *v1alpha1.ModuleStatus {
	return &v1alpha1.ModuleStatus{
		Conditions: []v1alpha1.Condition{{Type: "Ready", Status: "True", Reason: "Running"}},
		Package:    v1alpha1.PackageRef{Name: m.Spec.Package, Version: "0.1.0", Digest: "sha256:0123"},
		Instances: []v1alpha1.Instance{{
			Service: "web", Interface: "veth0", Ifindex: 7, Hook: "tc-ingress", Direction: "egress", Chain: "c0ffee",
		}},
		Memory: 64 << 10,
		Cost: &v1alpha1.Cost{Memory: 64 << 10, Latency: []v1alpha1.Latency{
			{Hook: "tc", Direction: "egress", Worst: 42.5, Packet: "IPv6 UDP 64 B", Median: 30, Least: 40},
		}},
		Drops: []v1alpha1.Drop{{Reason: "rule", Packets: 3, Services: []v1alpha1.ServiceDrop{{Service: "web", Packets: 2}}}},
	}
}

// Module implements server.Backend.
func (f *Fake) Module(ctx context.Context, name string) (v1alpha1.Module, error) {
	all, err := f.Modules(ctx)
	return find(all, err, v1alpha1.KindModule, name, func(m v1alpha1.Module) string { return m.Metadata.Name })
}

// Services implements server.Backend.
func (f *Fake) Services(context.Context) ([]v1alpha1.Service, error) {
	d, err := f.store.Snapshot()
	all := sorted(d.Services)
	for i := range all {
		all[i].Status = &v1alpha1.ServiceStatus{
			Links:     []v1alpha1.ServiceLink{{Interface: "veth0", Ifindex: 7, Peer: "eth0", MTU: 1500}},
			Addresses: []string{"10.0.0.2/24"},
			Drops:     []v1alpha1.ModuleDrop{{Module: "fw", Reason: "rule", Packets: 2}},
		}
	}
	return all, err
}

// Service implements server.Backend.
func (f *Fake) Service(ctx context.Context, name string) (v1alpha1.Service, error) {
	all, err := f.Services(ctx)
	return find(all, err, v1alpha1.KindService, name, func(s v1alpha1.Service) string { return s.Metadata.Name })
}

// VirtualServices implements server.Backend.
func (f *Fake) VirtualServices(context.Context) ([]v1alpha1.VirtualService, error) {
	d, err := f.store.Snapshot()
	all := sorted(d.VirtualServices)
	for i := range all {
		all[i].Status = &v1alpha1.VirtualServiceStatus{Source: v1alpha1.SourceStatic, Modules: []string{"proxy"}}
		for _, in := range all[i].Spec.Instances {
			all[i].Status.Instances = append(all[i].Status.Instances, v1alpha1.VirtualInstanceStatus{Name: in.Name, Addresses: in.Addresses, Node: in.Node})
		}
	}
	return all, err
}

// VirtualService implements server.Backend.
func (f *Fake) VirtualService(ctx context.Context, name string) (v1alpha1.VirtualService, error) {
	all, err := f.VirtualServices(ctx)
	return find(all, err, v1alpha1.KindVirtualService, name, func(s v1alpha1.VirtualService) string { return s.Metadata.Name })
}

// Models implements server.Backend: no module uses them.
func (f *Fake) Models(context.Context) ([]v1alpha1.Model, error) {
	d, err := f.store.Snapshot()
	table := models.NewTable(slog.New(slog.DiscardHandler))
	table.Apply(slices.Collect(maps.Values(d.Models)), nil)
	all := sorted(d.Models)
	for i := range all {
		all[i].Spec.Document = ""
		all[i].Status = table.Status(all[i].Metadata.Name)
	}
	return all, err
}

// Model implements server.Backend.
func (f *Fake) Model(ctx context.Context, name string) (v1alpha1.Model, error) {
	all, err := f.Models(ctx)
	m, err := find(all, err, v1alpha1.KindModel, name, func(m v1alpha1.Model) string { return m.Metadata.Name })
	if err != nil {
		return m, err
	}
	d, err := f.store.Snapshot()
	m.Spec = d.Models[name].Spec
	versions, versionsErr := f.store.ModelVersions(name)
	m.Status.Versions = versions
	return m, errors.Join(err, versionsErr)
}

// ModelVersion implements server.Backend.
func (f *Fake) ModelVersion(ctx context.Context, name string, generation int64) (v1alpha1.Model, error) {
	m, err := f.Model(ctx, name)
	if err != nil || m.Metadata.Generation == generation {
		return m, err
	}
	m.Spec, err = f.store.ModelVersion(name, generation)
	return m, err
}

// Chains implements server.Backend: one chain of all modules.
func (f *Fake) Chains(ctx context.Context) ([]v1alpha1.Chain, error) {
	modules, err := f.Modules(ctx)
	if len(modules) == 0 {
		return nil, err
	}
	c := v1alpha1.Chain{ID: "c0ffee", Hook: "tc-ingress", Direction: "egress", Program: 42, Parts: 1}
	for _, m := range modules {
		c.Modules = append(c.Modules, m.Metadata.Name)
	}
	c.Points = modules[0].Status.Instances
	return []v1alpha1.Chain{c}, err
}

// Packages implements server.Backend.
func (f *Fake) Packages(context.Context) ([]v1alpha1.Package, error) {
	return []v1alpha1.Package{
		{Name: "counter", Version: "0.1.0", Digest: "sha256:0123", Source: "builtin", Description: "Counts packets", Hooks: []string{"xdp", "tc"}, Memory: 4096},
		{Name: "firewall", Version: "0.1.0", Digest: "sha256:4567", Source: "builtin", Description: "Filters packets", Hooks: []string{"tc"}, Memory: 65536,
			Queries: map[string]string{"rules": "rules in order", "connections": "tracked connections"}},
	}, nil
}

// Package implements server.Backend.
func (f *Fake) Package(ctx context.Context, name string) (v1alpha1.Package, error) {
	all, err := f.Packages(ctx)
	return find(all, err, "Package", name, func(p v1alpha1.Package) string { return p.Name })
}

// Status implements server.Backend.
func (f *Fake) Status(context.Context) (v1alpha1.NodeStatus, error) {
	d, err := f.store.Snapshot()
	return v1alpha1.NodeStatus{
		Version: "test", Kernel: "6.18.0", PID: 1, Uptime: "1m0s", Modules: len(d.Modules), Services: len(d.Services),
		Conditions: []v1alpha1.Condition{{Type: "Ready", Status: "True", Reason: "Running"}},
	}, err
}

// ServeModule implements server.Backend: a module tells the path that it was asked for.
func (f *Fake) ServeModule(w http.ResponseWriter, r *http.Request, name string) error {
	if _, err := f.Module(r.Context(), name); err != nil {
		return err
	}
	if r.URL.Path == "/broken" { // as of a stream that ends before its time
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "application/json")
	if path.Base(r.URL.Path) == "nothing" { // as http.ServeMux does
		http.NotFound(w, r)
		return nil
	}
	fmt.Fprintf(w, `[{"module":%q,"path":%q}]`+"\n", name, r.URL.Path)
	return nil
}

// Collector implements server.Backend.
func (f *Fake) Collector() prometheus.Collector {
	g := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "kerb_modules", Help: "Modules."}, func() float64 {
		d, _ := f.store.Snapshot()
		return float64(len(d.Modules))
	})
	return g
}

func sorted[T any](all map[string]T) []T {
	var list []T
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, all[name])
	}
	return list
}

func find[T any](all []T, err error, kind, name string, nameOf func(T) string) (T, error) {
	for _, v := range all {
		if nameOf(v) == name {
			return v, err
		}
	}
	var zero T
	if err != nil {
		return zero, err
	}
	return zero, &fault.NotFound{Kind: kind, Name: name}
}

// Trace implements server.Backend: there is one packet, which the firewall drops.
func (f *Fake) Trace(_ context.Context, r v1alpha1.TraceRequest, tell func(v1alpha1.TracedPacket) error) error {
	if r.Host == "nonsense" {
		return &fault.Invalid{Field: "host", Reason: "no IP address"}
	}
	return tell(v1alpha1.TracedPacket{
		Service: "web", Interface: "veth0", Hook: "tc-egress", Direction: "ingress", Length: 60, Protocol: "tcp",
		Source: "192.0.2.1:4000", Destination: "192.0.2.2:80", Outcome: "ok",
		Steps: []v1alpha1.TraceStep{{Module: "count", Verdict: "next"}, {Module: "fw", Verdict: "drop", Reason: "policy"}},
	})
}
