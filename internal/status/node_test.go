// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/cgroup"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/control"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/observe"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/sdk"
)

type noVirtual struct{}

func (noVirtual) Names() []string                       { return nil }
func (noVirtual) View(string) (v1.VirtualService, bool) { return v1.VirtualService{}, false }

// counted are the counters of a module.
type counted struct {
	drops    []uint64
	services map[dataplane.DropKey]uint64
}

func (c counted) Memory() int64                                  { return 4096 }
func (c counted) Events() *v1.Events                             { return nil }
func (c counted) Drops() ([]uint64, error)                       { return c.drops, nil }
func (c counted) DropsByInterface() map[dataplane.DropKey]uint64 { return c.services }

func (c counted) DropsOf(keys []dataplane.DropKey) map[dataplane.DropKey]uint64 {
	out := map[dataplane.DropKey]uint64{}
	for _, key := range keys {
		out[key] = c.services[key]
	}
	return out
}

const veth = 7 // ifindex of the service web

// newNode is a node with the service web and the module m, which runs on both sides of its veth.
func newNode(t *testing.T) *Node {
	t.Helper()
	selector, err := service.ParseSelector("*")
	if err != nil {
		t.Fatal(err)
	}
	d := &deploy.Module{Pkg: &pkgs.Package{Manifest: pkgs.Manifest{Name: "p", Version: "1.0.0"}},
		Module: plan.Module{Selector: selector, LinkTypes: []string{"ethernet"}, Hooks: []chain.Hook{chain.TC}}}
	d.Resource.Metadata = v1.ObjectMeta{Name: "m", Generation: 3}
	d.Resource.Spec = v1.ModuleSpec{Package: "p", Attach: v1.Attach{Services: "*"}}
	d.Dataplane.Name = "m"
	web := v1.Service{Metadata: v1.ObjectMeta{Name: "web"}}
	nd := &Node{Modules: map[string]*deploy.Module{"m": d}, Desired: resource.State{}, Points: plan.Placements{},
		Services: map[string]service.State{"web": {Links: []service.Link{{Name: "veth7", Ifindex: veth, Kind: "veth"}}}}}
	var result v1.ApplyResult
	all := append(resource.Objects(web), resource.Objects(d.Resource)...)
	if _, err := nd.Desired.Apply(all, resource.Writer{}, &result); err != nil {
		t.Fatal(err)
	}
	for side, dir := range map[chain.Side]chain.Direction{chain.OnTCIngress: chain.Egress,
		chain.OnTCEgress: chain.Ingress} {
		nd.place(side, dir, "m")
	}
	nd.Sources = Sources{Recorder: NewRecorder(), Virtual: noVirtual{}, Agent: func() Agent { return Agent{} },
		Model:      func(string) *v1.ModelStatus { return nil },
		Counters:   func(string) Counters { return nil },
		Cost:       func(string) (apply.Measured, bool) { return apply.Measured{}, false },
		Mode:       func(chain.Point) string { return "tcx" },
		Interfaces: func() map[string]service.Link { return map[string]service.Link{} },
		LostMetric: func(string) string { return "" }}
	return nd
}

// place puts a chain on the veth of web.
func (nd *Node) place(side chain.Side, dir chain.Direction, members ...string) {
	c := chain.Spec{Side: side, Direction: dir}
	for _, m := range members {
		c.Members = append(c.Members, chain.Member{Name: m})
	}
	nd.Points[chain.Point{Ifindex: veth, Side: side}] = plan.Placement{Service: "web", Chain: c,
		Link: service.Link{Name: "veth7", Ifindex: veth, Kind: "veth"}}
}

// brief are conditions as TYPE=STATUS REASON.
func brief(all []v1.Condition) (out []string) {
	for _, c := range all {
		out = append(out, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason))
	}
	return out
}

func TestModuleConditions(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Node, *deploy.Module)
		want   []string
		says   string
	}{
		"running":      {func(*Node, *deploy.Module) {}, []string{"Ready=True Running"}, "on 2 attach points"},
		"not prepared": {func(nd *Node, _ *deploy.Module) { nd.Modules = nil }, []string{"Ready=False Starting"}, ""},
		"failed, open": {func(_ *Node, d *deploy.Module) { d.Err = errors.New("no package") },
			[]string{"Ready=False ModuleFailed"}, "no package; packets bypass it"},
		"failed, closed": {func(_ *Node, d *deploy.Module) { d.Err, d.Dataplane.FailClosed = errors.New("no package"), true },
			[]string{"Ready=False ModuleFailed"}, "all packets are dropped"},
		"not reconciled": {func(nd *Node, _ *deploy.Module) { nd.Problem = errors.New("no memory") },
			[]string{"Ready=False NotReconciled"}, "no memory"},
		"nothing selected": {func(nd *Node, d *deploy.Module) {
			nd.Points, d.Selector, d.Resource.Spec.Attach.Services = nil, service.Selector{}, "app=wbe"
		}, []string{"Ready=False NoAttachPoint"}, `its selector "app=wbe" matches no service`},
		"nowhere by XDP": {func(nd *Node, d *deploy.Module) { nd.Points, d.Resource.Spec.Hook = nil, v1.HookXDP },
			[]string{"Ready=False NoAttachPoint"}, "hook: tc sees both"},
		"an interface is missing": {func(_ *Node, d *deploy.Module) { d.Resource.Spec.Attach.Interfaces = []string{"eth9"} },
			[]string{"Ready=True Running", "AttachPoints=False NotFound"}, "the node has no interface eth9"},
		"another link type": {func(nd *Node, d *deploy.Module) {
			d.Resource.Spec.Attach.Interfaces = []string{"tun0"}
			nd.Interfaces = func() map[string]service.Link {
				return map[string]service.Link{"tun0": {Name: "tun0", Type: 65534}}
			}
		}, []string{"Ready=True Running", "LinkTypeSupported=False LinkTypeMismatch"}, "tun0"},
		"behind a module that takes packets": {func(nd *Node, _ *deploy.Module) {
			nd.Modules["vip"] = &deploy.Module{Module: plan.Module{Rank: func(bool) int { return 50 }}}
			nd.place(chain.OnTCIngress, chain.Egress, "vip", "m")
		}, []string{"Ready=True Running", "SeesAllPackets=False Shadowed"}, "vip runs before it"},
		"invalid verdicts": {func(nd *Node, _ *deploy.Module) {
			drops := make([]uint64, kerbabi.DropReasonCount)
			drops[kerbabi.DropBadVerdict] = 5
			nd.Counters = func(string) Counters { return counted{drops: drops} }
		}, []string{"Ready=True Running", "ValidVerdicts=False InvalidVerdict"}, "5 packets"},
		"replies are lost": {func(nd *Node, d *deploy.Module) {
			d.Pkg.Replies = true
			nd.place(chain.OnXDP, chain.Egress, "m")
			nd.NoReplies = map[int]error{veth: errors.New("no GRO")}
		}, []string{"Ready=True Running", "Replies=False RepliesLost"}, "no GRO; set hook: tc"},
		"no room for long replies": {func(nd *Node, d *deploy.Module) {
			d.Pkg.Replies, d.Dataplane.Settings.LongReplies = true, true
			nd.place(chain.OnXDP, chain.Egress, "m")
			nd.Mode = func(chain.Point) string { return dataplane.ModeXDPNative }
		}, []string{"Ready=True Running", "Replies=False NoHeadroom"}, "no room"},
		"over its budget": {func(nd *Node, d *deploy.Module) {
			d.Resource.Spec.Budget.Memory = "1Ki"
			nd.Cost = func(string) (apply.Measured, bool) { return apply.Measured{Cost: chain.Cost{Memory: 2048}}, true }
		}, []string{"Ready=True Running", "WithinBudget=False MemoryExceeded"}, "2.0 KiB"},
		"on sockets, not on all": {func(nd *Node, d *deploy.Module) {
			d.Module.Sockets = true
			nd.Sockets = &observe.Sockets{Errs: map[string]error{observe.ServiceKey("web"): errors.New("no cookie")}}
		}, []string{"Ready=True Running", "Placed=False PartiallyAttached"}, "service web: no cookie"},
		"on sockets of its own container only": {func(nd *Node, d *deploy.Module) {
			d.Module.Sockets = true
			nd.Sockets = &observe.Sockets{View: cgroup.ErrOwnOnly}
		}, []string{"Ready=True Running", "Placed=False OwnCgroupsOnly"}, "node.cgroups"},
	} {
		nd := newNode(t)
		m, _ := resource.Module.Get(nd.Desired, "m")
		c.change(nd, nd.Modules["m"])
		if n := nd.attached("m"); n != len(nd.Attachments("m")) {
			t.Errorf("%s: %d attachments, want %d", name, n, len(nd.Attachments("m")))
		}
		got := nd.RecordModule(m, nd.Modules["m"], nd.attached("m"))
		if !slices.Equal(brief(got), c.want) || !strings.Contains(got[len(got)-1].Message, c.says) {
			t.Errorf("%s: %+v, want %v with %q", name, got, c.want, c.says)
		}
		if of := got[0].ObservedGeneration; of != m.Metadata.Generation {
			t.Errorf("%s: of generation %d", name, of)
		}
	}
}

// A control plane is reported to run when it has said that it is well, not before.
func TestControlPlaneIsStartingUntilItAnswers(t *testing.T) {
	for _, c := range []struct {
		state          control.State
		status, reason string
	}{
		{control.State{}, "False", "NotRunning"},
		{control.State{Running: true}, "False", "Starting"},
		{control.State{Running: true, Started: true}, "False", "Starting"},
		{control.State{Running: true, Started: true, HealthKnown: true}, "False", "Unhealthy"},
		{control.State{Running: true, Started: true, HealthKnown: true, Healthy: true}, "True", "Running"},
	} {
		if got := ControlCondition(c.state); got.Status != c.status || got.Reason != c.reason {
			t.Errorf("%+v: %s (%s)", c.state, got.Status, got.Reason)
		}
	}
}

// A module on sockets is attached for each service and cgroup.
func TestAttachedOnSockets(t *testing.T) {
	nd := newNode(t)
	nd.Points[chain.Point{Side: chain.OnSockets, Module: "fast", Cgroup: 7}] = plan.Placement{
		Chain:       chain.Spec{Side: chain.OnSockets, Members: []chain.Member{{Name: "fast"}}},
		Attachments: []sdk.Attachment{{Service: "web"}, {Service: "db"}, {}}}
	if n := nd.attached("fast"); n != 3 || n != len(nd.Attachments("fast")) {
		t.Errorf("%d attachments, and %+v", n, nd.Attachments("fast"))
	}
	if diff := cmp.Diff(map[string][]string{"web": {"fast"}, "db": {"fast"}}, nd.serviceSockets()); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
}

func TestServiceStatus(t *testing.T) {
	nd := newNode(t)
	nd.Counters = func(string) Counters {
		return counted{make([]uint64, kerbabi.DropReasonCount), nil}
	}
	s, _ := resource.Service.Get(nd.Desired, "web")
	programs := map[chain.Point]uint32{{Ifindex: veth, Side: chain.OnTCIngress}: 42}
	got := nd.ServiceView(programs)(s).Status
	if !slices.Equal(brief(got.Conditions), []string{"Ready=True Found"}) || len(got.Links) != 1 ||
		len(got.Links[0].Hooks) != 2 {
		t.Fatalf("%+v", got)
	}
	want := v1.HookState{Hook: "tc-ingress", Mode: "tcx", Chain: got.Links[0].Hooks[0].Chain, Program: 42,
		Modules: []string{"m"}}
	if diff := cmp.Diff(want, got.Links[0].Hooks[0]); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	nd.Programs = func(p chain.Point) []string { return []string{"other (id 7)", fmt.Sprint(p.Ifindex, p.Side)} }
	detailed := nd.ServiceView(programs)(s)
	nd.AddPrograms(&detailed)
	want.Programs = []string{"other (id 7)", fmt.Sprint(veth, chain.OnTCIngress)}
	if diff := cmp.Diff(want, detailed.Status.Links[0].Hooks[0]); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	for want, state := range map[string]service.State{
		"Ready=False NotFound":    {Err: errors.New("no such namespace")},
		"Ready=False NoInterface": {},
		"Ready=False NoInterface InterfacesInPlace=False InterfaceMoved": {Links: []service.Link{
			{Name: "veth7", Left: true}}},
	} {
		if got := strings.Join(brief(nd.RecordService(s, state)), " "); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// Drops of the interfaces of services have the names of the services, and reasons those of the package.
func TestDrops(t *testing.T) {
	nd := newNode(t)
	nd.Modules["m"].Pkg.DropReasons = map[string]int{"rule": 32}
	drops := make([]uint64, kerbabi.DropReasonCount)
	drops[32] = 5
	counts := counted{drops, map[dataplane.DropKey]uint64{{Ifindex: veth, Reason: 32}: 3, {Ifindex: 99, Reason: 32}: 2}}
	nd.Counters = func(module string) Counters {
		if module != "m" {
			return nil
		}
		return counts
	}
	want := []v1.Drop{{Reason: "rule", Packets: 5, Services: []v1.ServiceDrop{{Service: "web", Packets: 3}}}}
	if diff := cmp.Diff(want, nd.Drops("m")); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	s, _ := resource.Service.Get(nd.Desired, "web")
	if got := nd.ServiceView(nil)(s).Status.Drops; !slices.Equal(got,
		[]v1.ModuleDrop{{Module: "m", Reason: "rule", Packets: 3}}) {
		t.Errorf("of the service: %+v", got)
	}
	if diff := cmp.Diff(nd.ServiceView(nil)(s).Status, nd.ServiceDetail(s, nil).Status); diff != "" {
		t.Errorf("of the service alone, want (-), got (+):\n%s", diff)
	}
	if got := nd.Drops("other"); got != nil {
		t.Errorf("of a module that does not run: %+v", got)
	}
}

// A change need not wait until all resources are looked at, and those that it deletes meanwhile are left out.
func TestProblemsPause(t *testing.T) {
	nd := newNode(t)
	nd.Modules["m"].Err = errors.New("no package")
	nd.Services["web"] = service.State{Err: errors.New("no namespace")}
	paused := 0
	deleteAll := func() {
		paused++
		nd.Desired, nd.Modules, nd.Services = resource.State{}, nil, nil
	}
	var got []string
	for _, p := range nd.Problems(deleteAll) {
		got = append(got, p.Kind+"/"+p.Name)
	}
	if want := []string{"Agent/", "Module/m"}; !slices.Equal(got, want) || paused != 1 {
		t.Errorf("problems %v, want %v; paused %d times, want once", got, want, paused)
	}
}

// The problems of a node are all conditions that are False, and the loss of the store.
func TestProblems(t *testing.T) {
	nd := newNode(t)
	if got := nd.Problems(func() {}); len(got) != 0 {
		t.Errorf("a node without problems: %+v", got)
	}
	nd.Agent = func() Agent {
		return Agent{StoreReadOnly: true, StoreLost: true,
			Integrations: &v1.Condition{Type: "Integrations", Status: "False", Reason: "NotRunning"}}
	}
	nd.Modules["m"].Err = errors.New("no package")
	nd.Services["web"] = service.State{Err: errors.New("no namespace")}
	var result v1.ApplyResult
	model := resource.Objects(v1.Model{Metadata: v1.ObjectMeta{Name: "tree"}})
	if _, err := nd.Desired.Apply(model, resource.Writer{}, &result); err != nil {
		t.Fatal(err)
	}
	nd.Model = func(string) *v1.ModelStatus {
		return &v1.ModelStatus{Conditions: []v1.Condition{{Type: "Ready", Status: "False", Reason: "Refused"}}}
	}
	var got []string
	for _, p := range nd.Problems(func() {}) {
		got = append(got, p.Kind+"/"+p.Name+" "+p.Reason)
	}
	want := []string{"Agent/ ModuleFailed", "Agent/ ReadOnly", "Agent/ NotRunning",
		"Agent/ Corrupted",
		"Module/m ModuleFailed", "Service/web NotFound", "Model/tree Refused"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
}

func TestAgentConditions(t *testing.T) {
	nd := newNode(t)
	nd.Agent = func() Agent { return Agent{Starting: true, ControlProblem: errors.New("no Landlock")} }
	if got := brief(nd.RecordAgent()); !slices.Equal(got,
		[]string{"Reconciled=False Starting", "StoreWritable=True Writable",
			"ControlPlanes=False SandboxFailed"}) {
		t.Errorf("%v", got)
	}
	nd.Agent, nd.Problem, nd.Reordered = func() Agent { return Agent{} }, errors.New("no memory"),
		map[chain.Point]string{}
	for i := range 12 {
		nd.Reordered[chain.Point{Ifindex: i}] = fmt.Sprint("web", i, " ingress")
	}
	if got := brief(nd.RecordAgent()); !slices.Equal(got,
		[]string{"Reconciled=False Retrying", "StoreWritable=True Writable",
			"ControlPlanes=True Running", "ChainOrderKept=False OrderChanged"}) {
		t.Errorf("%v", got)
	}
	text := nd.orderConditions()[0].Message
	if !strings.Contains(text, "web8 ingress; web9 ingress; and 2 more. ") || strings.Contains(text, "order.direction") {
		t.Error(text)
	}
}
