// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/cgroup"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/observe"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/sdk"
)

// onBoth has code for both directions on TC and XDP, and reads Ethernet.
func onBoth(name, services string, interfaces ...string) *Module {
	selector, err := service.ParseSelector(services)
	if err != nil {
		panic(err)
	}
	both := map[chain.Direction]bool{chain.Egress: true, chain.Ingress: true}
	m := &Module{Selector: selector, Member: chain.Member{Name: name, ID: name + "1"}, Package: "pkg-" + name,
		Hooks: []chain.Hook{chain.XDP, chain.TC}, Entries: map[chain.Hook]map[chain.Direction]bool{chain.XDP: both,
			chain.TC: both},
		LinkTypes: []string{"ethernet"}}
	m.Resource.Metadata.Name = name
	m.Resource.Spec.Attach = v1.Attach{Services: services, Interfaces: interfaces}
	return m
}

func with(m *Module, change func(*Module)) *Module {
	change(m)
	return m
}

const ethernet, raw = 1, 65534 // ARPHRD_ETHER, ARPHRD_NONE

// node has two services, on veths with the indexes 1 and 2, and the interfaces eth0 (10), veth9 (9) and tun0 (11).
func node(modules ...*Module) Inputs {
	in := Inputs{Modules: map[string]*Module{}, Linker: "l1",
		Services: map[string]v1.Service{
			"db":  {Metadata: v1.ObjectMeta{Name: "db", Labels: map[string]string{"tier": "back"}}},
			"web": {Metadata: v1.ObjectMeta{Name: "web", Labels: map[string]string{"tier": "front"}}},
		},
		Observed: observe.Snapshot{
			Services: map[string]service.State{
				"db":  {Links: []service.Link{{Name: "vdb", Ifindex: 2, Kind: "veth", Type: ethernet}}},
				"web": {Links: []service.Link{{Name: "vweb", Ifindex: 1, Kind: "veth", Type: ethernet}}},
			},
			Owners: map[int]string{1: "web", 2: "db"},
			Interfaces: map[string]service.Link{
				"eth0":  {Name: "eth0", Ifindex: 10, Type: ethernet},
				"veth9": {Name: "veth9", Ifindex: 9, Kind: "veth", Type: ethernet},
				"tun0":  {Name: "tun0", Ifindex: 11, Type: raw},
				"vweb":  {Name: "vweb", Ifindex: 1, Kind: "veth", Type: ethernet},
			},
		}}
	for _, m := range modules {
		in.Modules[m.Member.Name] = m
	}
	return in
}

// texts are placements as POINT: SERVICE DIRECTION MEMBERS.
func texts(placed Placements) (out []string) {
	for _, p := range placed.Sorted() {
		at := placed[p]
		out = append(out, fmt.Sprintf("%s: %s %s %s", p, at.Service, at.Chain.Direction, names(at.Chain)))
	}
	return out
}

func TestPlace(t *testing.T) {
	for name, c := range map[string]struct {
		modules []*Module
		want    []string
	}{
		"nothing": {nil, nil},
		"a selector": {[]*Module{onBoth("a", "tier=front")},
			[]string{"1_tc-egress: web ingress a", "1_tc-ingress: web egress a"}},
		"all services, in order": {[]*Module{onBoth("b", "*"), with(onBoth("a", "tier=back"), func(m *Module) {
			m.Resource.Spec.Order.After = []string{"b"}
		})},
			[]string{"1_tc-egress: web ingress b", "1_tc-ingress: web egress b", "2_tc-egress: db ingress a, b",
				"2_tc-ingress: db egress b, a"}},
		"an interface": {[]*Module{onBoth("a", "", "eth0")}, []string{"10_xdp:  ingress a"}},
		"an interface on TC": {[]*Module{with(onBoth("a", "", "eth0"), func(m *Module) { m.Resource.Spec.Hook = v1.HookTC })},
			[]string{"10_tc-egress:  egress a", "10_tc-ingress:  ingress a"}},
		"an interface that is not there": {[]*Module{onBoth("a", "", "eth7")}, nil},
		"an interface of a service belongs to it": {[]*Module{onBoth("a", "", "vweb"), onBoth("b", "tier=front", "vweb")},
			[]string{"1_tc-egress: web ingress b, a", "1_tc-ingress: web egress a, b"}},
		"one direction": {[]*Module{with(onBoth("a", "tier=front"), func(m *Module) {
			m.OnServices = []chain.Direction{chain.Egress}
		})},
			[]string{"1_tc-ingress: web egress a"}},
		"directions of interfaces are others": {[]*Module{with(onBoth("a", "", "eth0"), func(m *Module) {
			m.OnServices, m.OnInterfaces = []chain.Direction{chain.Egress}, []chain.Direction{chain.Ingress}
		})}, []string{"10_xdp:  ingress a"}},
		"idle": {[]*Module{with(onBoth("a", "tier=front"), func(m *Module) { m.Idle = []chain.Direction{chain.Egress} })},
			[]string{"1_tc-egress: web ingress a"}},
		"no code": {[]*Module{with(onBoth("a", "tier=front"), func(m *Module) { m.Entries[chain.TC] = nil })}, nil},
		"frames that only one can read": {[]*Module{onBoth("a", "", "tun0"), with(onBoth("b", "", "tun0"), func(m *Module) {
			m.LinkTypes = []string{service.Link{Type: raw}.LinkType()}
		})}, []string{"11_xdp:  ingress b"}},
		"cannot run, fails closed": {[]*Module{with(onBoth("a", "tier=front", "tun0"), func(m *Module) {
			*m = Module{Resource: m.Resource, Selector: m.Selector, CannotRun: true,
				Member: chain.Member{Name: "a", ID: "none", FailClosed: true}}
		})}, []string{"1_tc-egress: web ingress a", "1_tc-ingress: web egress a", "11_tc-egress:  egress a",
			"11_tc-ingress:  ingress a"}},
		"cannot run, fails open": {[]*Module{with(onBoth("a", "tier=front"), func(m *Module) { m.CannotRun = true })}, nil},
	} {
		in := node(c.modules...)
		placed, err := in.Place()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, texts(placed)); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", name, diff)
		}
		d := in.Desired(placed, true)
		if len(d.MapSets) != len(c.modules) || len(d.Points) != len(placed) || !d.Keep {
			t.Errorf("%s: desired %+v", name, d)
		}
		for p, spec := range d.Points {
			if spec.Linker != "l1" || spec.ID() != placed[p].Chain.ID() {
				t.Errorf("%s: %s has %+v", name, p, spec)
			}
		}
	}
}

func TestPlaceRefusesCycles(t *testing.T) {
	a := with(onBoth("a", "*"), func(m *Module) { m.Resource.Spec.Order.Before = []string{"b"} })
	b := with(onBoth("b", "*"), func(m *Module) { m.Resource.Spec.Order.Before = []string{"a"} })
	var cycle *CycleError
	if _, err := node(a, b).Place(); !errors.As(err, &cycle) {
		t.Errorf("%v, want a *CycleError", err)
	}
}

// auto means TC for services, and for interfaces what the package lists first.
func TestHookAuto(t *testing.T) {
	for _, hooks := range [][]chain.Hook{{chain.XDP, chain.TC}, {chain.TC, chain.XDP}, {chain.XDP}, {chain.TC}} {
		tcIfPossible := hooks[0]
		if slices.Contains(hooks, chain.TC) {
			tcIfPossible = chain.TC
		}
		for _, c := range []struct {
			isService bool
			kind      string
			long      bool
			want      chain.Hook
		}{
			{false, "", false, hooks[0]}, {false, "veth", false, hooks[0]}, {true, "veth", false, tcIfPossible},
			{false, "", true, hooks[0]}, {false, "veth", true, tcIfPossible}, {true, "", true, tcIfPossible},
		} {
			m := &Module{Hooks: hooks, LongReplies: c.long}
			if got := m.Hook(c.isService, c.kind); got != c.want {
				t.Errorf("%v, %+v: %s", hooks, c, got)
			}
		}
	}
}

// Replies on a veth need another program there: it has another identity.
func TestVethReplies(t *testing.T) {
	m := with(onBoth("a", "", "eth0", "veth9"), func(m *Module) { m.Replies = true })
	placed, err := node(m).Place()
	if err != nil {
		t.Fatal(err)
	}
	for ifindex, want := range map[int]bool{9: true, 10: false} {
		if got := placed[chain.Point{Ifindex: ifindex, Side: chain.OnXDP}].Chain; got.Veth != want || len(got.Members) != 1 {
			t.Errorf("interface %d: %+v", ifindex, got)
		}
	}
}

func always(rank int) func(bool) int { return func(bool) int { return rank } }

func TestShadowed(t *testing.T) {
	modules := map[string]int{"tap": 10, "answer": 20, "fw": 40, "count": 40, "px": 50, "tun": 60, "late": 45, "later": 50}
	for _, c := range []struct {
		dir         chain.Direction
		chain, want []string
	}{
		{chain.Egress, []string{"tap", "answer", "count", "fw", "px", "tun"}, nil},
		{chain.Egress, []string{"px", "fw"}, []string{"fw"}},
		{chain.Egress, []string{"fw", "tun", "px", "count"}, []string{"count", "px"}},
		{chain.Egress, []string{"count", "answer"}, nil},
		{chain.Ingress, []string{"tun", "px", "fw", "count", "answer", "tap"}, nil},
		{chain.Ingress, []string{"fw", "px"}, nil},
		{chain.Ingress, []string{"answer", "fw"}, []string{"fw"}},
		{chain.Ingress, []string{"tap", "gone", "answer"}, []string{"answer", "gone"}},
		{chain.Ingress, []string{"late", "fw", "count"}, []string{"fw"}}, // whatever its rank
		{chain.Egress, []string{"late", "fw"}, nil},
		{chain.Egress, []string{"later", "fw", "count"}, nil},
		{chain.Egress, []string{"later", "px", "fw"}, []string{"fw"}},
		{chain.Ingress, []string{"fw", "late"}, nil},
	} {
		at := Placement{Service: "web", Chain: chain.Spec{Side: chain.OnTCIngress, Direction: c.dir}}
		for _, name := range c.chain {
			at.Chain.Members = append(at.Chain.Members, chain.Member{Name: name})
		}
		in := Inputs{Modules: map[string]*Module{}}
		for name, rank := range modules {
			in.Modules[name] = &Module{Rank: always(rank)}
		}
		in.Modules["later"].DeferredRedirect = true
		in.Modules["fw"].Inbound, in.Modules["late"].Replies = &sdk.Inbound{}, true
		placed := Placements{{Ifindex: 7, Side: chain.OnTCIngress}: at}
		if got := slices.Sorted(maps.Keys(in.Shadowed(placed))); !slices.Equal(got, c.want) {
			t.Errorf("%s %v: %v, want %v", c.dir, c.chain, got, c.want)
		}
	}
}

// On interfaces of the node, modules on XDP run before filters on TC.
func TestShadowedByXDP(t *testing.T) {
	fw := with(onBoth("fw", "", "eth0"), func(m *Module) { m.Hooks, m.Inbound = []chain.Hook{chain.TC}, &sdk.Inbound{} })
	count := with(onBoth("count", "", "eth0"), func(m *Module) { m.Hooks = []chain.Hook{chain.TC} })
	for name, c := range map[string]struct {
		first *Module
		want  string
	}{
		"replies": {with(onBoth("answer", "", "eth0"), func(m *Module) { m.Rank, m.Replies = always(45), true }),
			"set hook: tc for answer"},
		"takes":  {with(onBoth("tap", "", "eth0"), func(m *Module) { m.Rank = always(10) }), "set hook: tc for tap"},
		"counts": {onBoth("other", "", "eth0"), ""},
		"on TC": {with(onBoth("tap", "", "eth0"), func(m *Module) {
			m.Rank, m.Resource.Spec.Hook = always(10),
				v1.HookTC
		}), ""},
		"farther":   {with(onBoth("px", "", "eth0"), func(m *Module) { m.Rank = always(50) }), ""},
		"elsewhere": {with(onBoth("tap", "", "veth9"), func(m *Module) { m.Rank = always(10) }), ""},
	} {
		in := node(fw, count, c.first)
		placed, err := in.Place()
		if err != nil {
			t.Fatal(err)
		}
		got := in.Shadowed(placed)
		if !strings.HasSuffix(got["fw"], c.want) || (c.want == "") != (len(got) == 0) || got["count"] != "" {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Packets from a service meet the modules outwards, packets to it inwards: also on interfaces of the node, where the
// tunnel is nearer to the services than what guards the underlay.
func TestMirroredOrder(t *testing.T) {
	ranked := func(name string, onService, onInterface int) *Module {
		return with(onBoth(name, "tier=front", "eth0"), func(m *Module) {
			m.Resource.Spec.Hook = v1.HookTC
			m.Rank = func(service bool) int { return map[bool]int{true: onService, false: onInterface}[service] }
		})
	}
	order := func(dir v1.OrderDirection) []string {
		fw := with(ranked("fw", 40, 40), func(m *Module) { m.Resource.Spec.Order.Direction = dir })
		placed, err := node(ranked("tun", 60, 25), ranked("answer", 20, 20), fw, ranked("px", 50, 50)).Place()
		if err != nil {
			t.Fatal(err)
		}
		return texts(placed)
	}
	if diff := cmp.Diff([]string{"1_tc-egress: web ingress tun, px, fw, answer",
		"1_tc-ingress: web egress answer, fw, px, tun",
		"10_tc-egress:  egress answer, tun, fw, px", "10_tc-ingress:  ingress px, fw, tun, answer"},
		order(v1.OrderMirrored)); diff != "" {
		t.Errorf("mirrored, want (-), got (+):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"1_tc-egress: web ingress answer, fw, px, tun",
		"1_tc-ingress: web egress answer, fw, px, tun",
		"10_tc-egress:  egress answer, tun, fw, px", "10_tc-ingress:  ingress answer, tun, fw, px"},
		order(v1.OrderSame)); diff != "" {
		t.Errorf("same, want (-), got (+):\n%s", diff)
	}
}

func TestWarnings(t *testing.T) {
	first := with(onBoth("px", "tier=front"), func(m *Module) { m.Rank, m.Resource.Spec.Order.Priority = always(50), -1 })
	in := node(first, onBoth("fw", "tier=front"), onBoth("tap", "", "tun0", "eth0"))
	placed, err := in.Place()
	if err != nil {
		t.Fatal(err)
	}
	got := in.Warnings(placed)
	if len(got) != 2 || !strings.HasPrefix(got[0], "Module fw: px runs before it on web (egress) and takes") ||
		!strings.HasPrefix(got[1], "Module tap: cannot read the frames of tun0 (") {
		t.Errorf("%q", got)
	}
	in = node(onSockets("acc", "*"), onBoth("count", "*"))
	for _, c := range []struct {
		view error
		want []string
	}{{nil, nil}, {cgroup.ErrOwnOnly, []string{"Module acc: " + cgroup.ErrOwnOnly.Error()}}} {
		in.Observed.Sockets = &observe.Sockets{View: c.view}
		if placed, err = in.Place(); err != nil {
			t.Fatal(err)
		}
		if got := in.Warnings(placed); !slices.Equal(got, c.want) {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// onSockets has programs for whole cgroups and for services.
func onSockets(name, services string, cgroups ...string) *Module {
	m := onBoth(name, services)
	m.Sockets, m.Hooks, m.Resource.Spec.Attach.Cgroups = true, []chain.Hook{chain.Sockets}, cgroups
	return m
}

// Services whose cookie is not known, such as db, are left out.
func TestPlaceSockets(t *testing.T) {
	in := node(onSockets("acc", "*", "/apps", "/apps/one", "/gone"), onSockets("idle", "tier=none"), onBoth("fw", "*"))
	if placed, err := in.Place(); err != nil || len(placed) != 4 {
		t.Errorf("before sockets are observed: %v, %v", texts(placed), err)
	}
	in.Observed.Sockets = &observe.Sockets{Root: "/", Cookies: map[string]uint64{"web": 70},
		Cgroups: map[string]cgroup.Cgroup{
			"/": {Path: "/", ID: 1}, "/apps": {Path: "/apps", ID: 5}, "/apps/one": {Path: "/apps/one", ID: 6}}}
	placed, err := in.Place()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, text := range texts(placed) {
		if strings.HasPrefix(text, "cgroup") {
			got = append(got, text)
		}
	}
	// the kernel runs /apps' programs below it, too
	want := []string{"cgroup1_services_acc:  both acc", "cgroup5_all_acc:  both acc"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	instances := placed[chain.Point{Side: chain.OnSockets, Cgroup: 1, Entry: chain.Services, Module: "acc"}].Attachments
	wanted := []sdk.Attachment{{Service: "web", Interface: "vweb", Ifindex: 1, NetnsCookie: 70,
		Chain: []sdk.ChainMember{{Module: "fw", Package: "pkg-fw"}}}}
	if diff := cmp.Diff(wanted, instances); diff != "" {
		t.Errorf("instances, want (-), got (+):\n%s", diff)
	}
}
