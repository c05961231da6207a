// SPDX-License-Identifier: Apache-2.0

// Package servertest holds a Backend for tests of the server and of the command line: it keeps the contract of the real
// one over a real store, and runs nothing in the kernel.
package servertest

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"path"
	"slices"
	"sync"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/models"
	"github.com/kerb-edge/kerb/internal/promtext"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/server"
	"github.com/kerb-edge/kerb/internal/store"
	"github.com/kerb-edge/kerb/internal/suggest"
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
func (f *Fake) Apply(_ context.Context, r resource.Request) (v1alpha1.ApplyResult, error) {
	return f.change(r.DryRun, func(d resource.State, result *v1alpha1.ApplyResult) error {
		for _, m := range resource.Module.Of(r.Resources) {
			if err := checkPackage(m); err != nil {
				return err
			}
		}
		_, err := r.Change(d, result)
		return err
	})
}

// Events implements server.Backend.
func (f *Fake) Events(_ context.Context, _ v1alpha1.EventsRequest, send func(v1alpha1.Event) error) error {
	return send(v1alpha1.Event{Number: 1, Count: 1, Kind: "Service", Name: "web", Type: "Ready", Reason: "NotFound"})
}

// Flows implements server.Backend: there is one flow, and some of its service are missing.
func (f *Fake) Flows(_ context.Context, r v1alpha1.FlowsRequest, send func(v1alpha1.FlowLine) error) error {
	if r.Service == "off" {
		return &apierrors.Conflict{Reason: "no module records flows"}
	}
	flow := v1alpha1.Flow{Module: "flows", Service: "web", Interface: "veth0", Direction: "ingress", Protocol: "tcp",
		Source: "198.51.100.7", SourcePort: 40000, Destination: "10.0.0.2", DestinationPort: 80, DestinationService: "web",
		Packets: 12, Bytes: 3400, ReplyPackets: 10, ReplyBytes: 1200000, Verdict: "mixed", Dropped: 2, DropModule: "fw",
		DropReason: "policy", State: "established", ToResponderNanoseconds: 120_000, ToInitiatorNanoseconds: 23_400_000,
		Retransmits: 1, Connections: 1}
	if err := send(v1alpha1.FlowLine{Flow: &flow}); err != nil {
		return err
	}
	return send(v1alpha1.FlowLine{Missing: &v1alpha1.MissingFlows{Module: "flows", Service: "web", Interface: "veth0",
		UnrecordedPackets: 7, UnrecordedBytes: 420}})
}

// History implements server.Backend: there are two samples of one series.
func (f *Fake) History(_ context.Context, r v1alpha1.HistoryRequest, send func(v1alpha1.HistoryLine) error) error {
	if r.Name == "off" {
		return &apierrors.Conflict{Reason: "history is off"}
	}
	lines := []v1alpha1.HistoryLine{{Step: 10, Series: []v1alpha1.Series{{Name: "kerb_module_packets_per_second",
		Module: "fw", Direction: "in", Verdict: "drop"}}},
		{Time: 1700000000, Values: v1alpha1.Values{1.5}}, {Time: 1700000010, Values: v1alpha1.Values{3}}}
	for _, line := range lines {
		if err := send(line); err != nil {
			return err
		}
	}
	return nil
}

// Changes implements server.Backend: the fake remembers none.
func (f *Fake) Changes(context.Context, v1alpha1.ChangesRequest) ([]v1alpha1.ChangeRecord, error) {
	return nil, nil
}

// Change implements server.Backend.
func (f *Fake) Change(_ context.Context, n int64) (v1alpha1.ChangeRecord, error) {
	return v1alpha1.ChangeRecord{}, &apierrors.NotFound{Kind: "Change", Name: fmt.Sprint(n)}
}

// Revert implements server.Backend.
func (f *Fake) Revert(ctx context.Context, r v1alpha1.RevertRequest) (v1alpha1.ApplyResult, error) {
	_, err := f.Change(ctx, r.Number)
	return v1alpha1.ApplyResult{}, err
}

// ChangeSet implements server.Backend.
func (f *Fake) ChangeSet(_ context.Context, r resource.SetRequest) (result v1alpha1.SetChanged, err error) {
	_, err = f.change(false, func(d resource.State, _ *v1alpha1.ApplyResult) error {
		set, ok := resource.Set.Get(d, r.Name)
		if !ok {
			return &apierrors.NotFound{Kind: v1alpha1.KindSet, Name: r.Name}
		}
		added, removed, err := r.Change(&set)
		d.Put(resource.ObjectOf(set))
		result = v1alpha1.SetChanged{Added: len(added), Deleted: len(removed), Elements: len(set.Spec.Elements)}
		return err
	})
	return result, err
}

// change runs do on a snapshot and commits it, unless it is a dry run, as the agent does.
func (f *Fake) change(dryRun bool, do func(resource.State, *v1alpha1.ApplyResult) error) (v1alpha1.ApplyResult, error) {
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
	case "counter", "firewall", Capture:
		return nil
	case RejectedPackage:
		return fmt.Errorf("module %s: %w", m.Metadata.Name, &apierrors.Rejected{
			Summary: "the kernel refused the program: it reads past the end of the packet",
			Log:     "0: R1=ctx() R10=fp0\n1: (71) r0 = *(u8 *)(r1 +14)\ninvalid access to packet\n",
		})
	}
	return &apierrors.Invalid{Resource: "Module " + m.Metadata.Name, Field: "spec.package", Reason: "no package " +
		m.Spec.Package + suggest.DidYouMean(m.Spec.Package, []string{"counter", "firewall"})}
}

// List implements server.Backend.
func (f *Fake) List(_ context.Context, kind resource.Kind) ([]resource.Object, error) {
	d, err := f.store.Snapshot()
	table := models.NewTable(slog.New(slog.DiscardHandler)) // no module uses them
	table.Apply(resource.Model.Of(slices.Collect(maps.Values(d[v1alpha1.KindModel]))), nil)
	var all []resource.Object
	for _, name := range d.Names(kind) {
		o := d[kind.Names().Kind][name]
		switch o := o.(type) {
		case *v1alpha1.Module:
			o.Status = status(*o)
		case *v1alpha1.Service:
			o.Status = serviceStatus()
		case *v1alpha1.VirtualService:
			o.Status = virtualStatus(o.Spec)
		case *v1alpha1.Model:
			o.Status = table.Status(name)
		}
		all = append(all, o)
	}
	return all, err
}

// Get implements server.Backend.
func (f *Fake) Get(ctx context.Context, kind resource.Kind, name string) (resource.Object, error) {
	all, err := f.List(ctx, kind)
	o, err := find(all, err, kind.Names().Kind, name, func(o resource.Object) string { return o.Meta().Name })
	if m, ok := o.(*v1alpha1.Model); ok {
		m.Status.Versions, err = f.store.Versions(kind, name)
	}
	return o, err
}

// Brief implements server.Backend.
func (f *Fake) Brief(ctx context.Context, kind resource.Kind, name string) (resource.Object, error) {
	return f.Get(ctx, kind, name)
}

// Version implements server.Backend.
func (f *Fake) Version(ctx context.Context, kind resource.Kind, name string,
	generation int64) (resource.Object, error) {
	o, err := f.Get(ctx, kind, name)
	if err != nil || o.Meta().Generation == generation {
		return o, err
	}
	document, err := f.store.Document(kind, name, generation)
	kind.Restore(o, generation, document)
	return o, err
}

func serviceStatus() *v1alpha1.ServiceStatus {
	return &v1alpha1.ServiceStatus{
		Links:     []v1alpha1.ServiceLink{{Interface: "veth0", Ifindex: 7, Peer: "eth0", MTU: 1500}},
		Addresses: []string{"10.0.0.2/24"},
		Drops:     []v1alpha1.ModuleDrop{{Module: "fw", Reason: "rule", Packets: 2}},
	}
}

func virtualStatus(spec v1alpha1.VirtualServiceSpec) *v1alpha1.VirtualServiceStatus {
	s := &v1alpha1.VirtualServiceStatus{Source: v1alpha1.SourceStatic, Modules: []string{"proxy"}}
	for _, i := range spec.Instances {
		s.Instances = append(s.Instances, v1alpha1.VirtualInstanceStatus{Name: i.Name, Addresses: i.Addresses, Node: i.Node})
	}
	return s
}

// Capture is a package of a third party that delivers packets to programs.
const Capture = "capture"

func status(m v1alpha1.Module) *v1alpha1.ModuleStatus {
	digest := "sha256:0123"
	if m.Spec.Package == Capture {
		digest = "sha256:" + Capture
	}
	return &v1alpha1.ModuleStatus{
		Conditions: []v1alpha1.Condition{{Type: "Ready", Status: "True", Reason: "Running"}},
		Package:    v1alpha1.PackageRef{Name: m.Spec.Package, Version: "0.1.0", Digest: digest},
		Attachments: []v1alpha1.Attachment{{
			Service: "web", Interface: "veth0", Ifindex: 7, Hook: "tc-ingress", Direction: "egress", Chain: "c0ffee",
		}},
		Memory: 64 << 10,
		Cost: &v1alpha1.Cost{Memory: 64 << 10, Latency: []v1alpha1.Latency{
			{Hook: "tc", Direction: "egress", Worst: 42.5, Packet: "IPv6 UDP 64 B", Median: 30, Least: 40},
		}},
		Counts: []v1alpha1.ModuleCount{{Module: "fw", Hook: "tc-ingress", Direction: "egress", Packets: 10, Bytes: 1000,
			Verdicts: []v1alpha1.VerdictCount{{Verdict: "next", Packets: 7, Bytes: 700},
				{Verdict: "drop", Packets: 3, Bytes: 300}},
			Latency: &v1alpha1.Sampled{Packets: 2, P50: 95, P99: 1535}}},
		Drops: []v1alpha1.Drop{{Reason: "rule", Packets: 3, Services: []v1alpha1.ServiceDrop{{Service: "web", Packets: 2}}}},
	}
}

// Counts implements server.Backend: no packet was seen.
func (f *Fake) Counts(ctx context.Context) (v1alpha1.NodeCounts, error) {
	out := v1alpha1.NodeCounts{Chains: []v1alpha1.ChainCounts{}, Modules: []v1alpha1.ModuleDrops{}}
	all, err := f.List(ctx, resource.Module)
	for _, m := range resource.Module.Of(all) {
		out.Modules = append(out.Modules, v1alpha1.ModuleDrops{Module: m.Metadata.Name})
	}
	return out, err
}

// Chains implements server.Backend: one chain of all modules.
func (f *Fake) Chains(ctx context.Context) ([]v1alpha1.Chain, error) {
	all, err := f.List(ctx, resource.Module)
	if len(all) == 0 {
		return nil, err
	}
	modules := resource.Module.Of(all)
	c := v1alpha1.Chain{ID: "c0ffee", Hook: "tc-ingress", Direction: "egress", Program: 42, Parts: 1}
	for _, m := range modules {
		c.Modules = append(c.Modules, m.Metadata.Name)
	}
	c.Points = modules[0].Status.Attachments
	return []v1alpha1.Chain{c}, err
}

// Packages implements server.Backend.
func (f *Fake) Packages(context.Context) ([]v1alpha1.Package, error) {
	return []v1alpha1.Package{
		{Name: "counter", Version: "0.1.0", Digest: "sha256:0123", Source: "builtin", Description: "Counts packets",
			Hooks: []string{"xdp", "tc"}, Memory: 4096},
		{Name: "firewall", Version: "0.1.0", Digest: "sha256:4567", Source: "builtin", Description: "Filters packets",
			Hooks: []string{"tc"}, Memory: 65536,
			Queries: map[string]string{"rules": "rules in order", "connections": "tracked connections"}},
		{Name: Capture, Version: "0.1.0", Digest: "sha256:" + Capture, Source: "/opt/capture", Hooks: []string{"xdp"},
			Queries: map[string]string{"classes": "classes"}, Capabilities: []string{"clients"}},
	}, nil
}

// Package implements server.Backend.
func (f *Fake) Package(ctx context.Context, name string) (v1alpha1.Package, error) {
	all, err := f.Packages(ctx)
	return find(all, err, "Package", name, func(p v1alpha1.Package) string { return p.Name })
}

// PullPackage implements server.Backend: no registry answers.
func (f *Fake) PullPackage(_ context.Context, r v1alpha1.PackageRequest) (v1alpha1.Package, error) {
	return v1alpha1.Package{}, &apierrors.Unavailable{Resource: "package " + r.Source, Reason: "no registry answers"}
}

// RemovePackage implements server.Backend: none was pulled.
func (f *Fake) RemovePackage(_ context.Context, r v1alpha1.PackageRequest) (v1alpha1.PackageRemoved, error) {
	return v1alpha1.PackageRemoved{}, &apierrors.NotFound{Kind: "pulled package", Name: r.Source}
}

// Status implements server.Backend.
func (f *Fake) Status(context.Context) (v1alpha1.NodeStatus, error) {
	d, err := f.store.Snapshot()
	return v1alpha1.NodeStatus{
		Version: "test", Kernel: "6.18.0", PID: 1, Uptime: "1m0s", Modules: d.Len(resource.Module),
		Services:   d.Len(resource.Service),
		Conditions: []v1alpha1.Condition{{Type: "Ready", Status: "True", Reason: "Running"}},
	}, err
}

// ServeModule implements server.Backend: a module answers with the path that it was asked for.
func (f *Fake) ServeModule(w http.ResponseWriter, r *http.Request, name string) error {
	if _, err := f.Get(r.Context(), resource.Module, name); err != nil {
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

// Collect implements server.Backend.
func (f *Fake) Collect(out *promtext.Set) {
	d, _ := f.store.Snapshot()
	out.Gauge("kerb_modules", "Modules.", float64(d.Len(resource.Module)))
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
	return zero, &apierrors.NotFound{Kind: kind, Name: name}
}

// Explain implements server.Backend: the firewall would drop any packet.
func (f *Fake) Explain(ctx context.Context, r v1alpha1.ExplainRequest) (out v1alpha1.ExplainedPacket, err error) {
	out = v1alpha1.ExplainedPacket{Verdict: "drop", Module: "fw", Reason: "policy"}
	err = f.Trace(ctx, v1alpha1.TraceRequest{}, func(line v1alpha1.TraceLine) error {
		out.Packets = append(out.Packets, *line.TracedPacket)
		return nil
	})
	return out, err
}

// Drops implements server.Backend: the packet of Trace was dropped.
func (f *Fake) Drops(ctx context.Context, r v1alpha1.DropsRequest) (out []v1alpha1.TracedPacket, err error) {
	err = f.Trace(ctx, v1alpha1.TraceRequest{Host: r.Host}, func(line v1alpha1.TraceLine) error {
		p := *line.TracedPacket
		p.Steps = p.Steps[1:]
		if r.Service == "" || r.Service == p.Service {
			out = append(out, p)
		}
		return nil
	})
	return out, err
}

// Trace implements server.Backend: there is one packet, which the firewall drops.
func (f *Fake) Trace(_ context.Context, r v1alpha1.TraceRequest, send func(v1alpha1.TraceLine) error) error {
	if r.Host == "nonsense" {
		return &apierrors.Invalid{Field: "host", Reason: "no IP address"}
	}
	return send(v1alpha1.TraceLine{TracedPacket: &v1alpha1.TracedPacket{
		Service: "web", Interface: "veth0", Hook: "tc-egress", Direction: "ingress", Length: 60, Protocol: "tcp",
		Source: "192.0.2.1:4000", Destination: "192.0.2.2:80", Outcome: "ok",
		Steps: []v1alpha1.TraceStep{{Module: "count", Verdict: "next"}, {Module: "fw", Verdict: "drop", Reason: "policy"}},
	}})
}
