// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/seed"
)

// runs reports whether a host's veth has the chain of a service, with modules in this order for packets from it. It
// checks in the kernel that there is one program on each side, which is the one that the agent reports.
func (n *node) runs(h *netlab.Host, want string) bool {
	n.T.Helper()
	hooks := n.hooks(h.Name())
	if want == "" {
		return len(hooks) == 0 && len(n.attached(h, tcxIngress)) == 0 && len(n.attached(h, tcxEgress)) == 0
	}
	from, to := n.attached(h, tcxIngress), n.attached(h, tcxEgress)
	return len(from) == 1 && hooks["tc-ingress"] == fmt.Sprintf("%s %d", want, from[0]) &&
		len(to) == 1 && hooks["tc-egress"] == fmt.Sprintf("%s %d", mirrored(want), to[0])
}

// mirrored returns the order of modules for packets to a service, which is the reverse of that for packets from it.
func mirrored(modules string) string {
	names := strings.Split(modules, ",")
	slices.Reverse(names)
	return strings.Join(names, ",")
}

// Thirty services are added and removed in any order: each existing one has the chain that its labels select, removed
// ones leave nothing, and one that returns under its name gets its chain automatically.
func TestServicesComeAndGo(t *testing.T) {
	const count = 30
	n := newRunningNode(t)
	n.apply(n.pass("all", "*"), n.pass("odd", "kind=odd"))
	kinds, chains := []string{"kind=even", "kind=odd"}, []string{"all", "all,odd"}
	hosts := make([]*netlab.Host, count)
	for i := range hosts {
		hosts[i] = n.Host(fmt.Sprintf("s%d", i))
		n.must("service", "add", hosts[i].Name(), "--netns", hosts[i].Path(), "--label", kinds[i%2])
	}
	allRun := func() {
		t.Helper()
		for i, h := range hosts {
			n.Eventually(fmt.Sprintf("%s runs %s", h.Name(), chains[i%2]), func() bool { return n.runs(h, chains[i%2]) })
		}
	}
	allRun()
	if c := get[[]v1.Chain](n, "chain"); len(c) != 4 {
		t.Errorf("%d chains instead of two kinds of service times two directions: %+v", len(c), c)
	}
	r := seed.Rand(t)
	order := r.Perm(count)
	for _, i := range order[:20] {
		if err := hosts[i].Remove(); err != nil {
			t.Fatal(err)
		}
	}
	n.settled(map[string]int{"all": 2 * (2 + count - 20)})
	for _, i := range order[:20] {
		s := get[v1.Service](n, "service", fmt.Sprintf("s%d", i))
		if len(s.Status.Links) != 0 || s.Status.Conditions[0].Status != "False" {
			t.Errorf("vanished service: %+v", s.Status)
		}
	}
	n.checkPins()
	for _, i := range r.Perm(count) {
		if name := fmt.Sprintf("s%d", i); hosts[i].Namespace == nil {
			hosts[i] = n.Host(name)
		}
	}
	allRun()
	n.checkPins()
	if lines := strings.Count(n.must("service", "list"), "\n"); lines != 1+2+count {
		t.Errorf("%d lines in the list of services", lines)
	}
	for i := range hosts {
		n.must("service", "delete", fmt.Sprintf("s%d", i))
	}
	for _, h := range hosts {
		if ids := n.attached(h, tcxIngress); len(ids) > 0 {
			t.Errorf("deleted service %s still runs %v", h.Name(), ids)
		}
	}
	n.checkPins()
}

// A change of labels moves chains, under traffic, without a change of modules.
func TestLabelsMoveChains(t *testing.T) {
	n := newRunningNode(t)
	n.apply(n.stamp(1), n.pass("tail", "tier=edge"))
	udp := startStream(t, n.db, n.web)
	if !n.runs(n.web, "stamp") || !n.runs(n.db, "") {
		t.Errorf("before: web %v, db %v", n.hooks("web"), n.hooks("db"))
	}
	n.apply(service(n.web, "tier=edge"), service(n.db, "tier=edge"))
	if !n.runs(n.web, "stamp,tail") || !n.runs(n.db, "tail") {
		t.Errorf("with the label: web %v, db %v", n.hooks("web"), n.hooks("db"))
	}
	n.apply(n.both())
	if !n.runs(n.web, "stamp") || !n.runs(n.db, "") {
		t.Errorf("without it: web %v, db %v", n.hooks("web"), n.hooks("db"))
	}
	udp.finish(1)
	n.checkPins()
}

// foreign is a foreign program that counts and passes packets.
type foreign struct {
	program *ebpf.Program
	counter *ebpf.Map
}

func newForeign(t *testing.T, kind ebpf.ProgramType, name string, verdict int32) foreign {
	t.Helper()
	counter, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { counter.Close() })
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: kind, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, counter.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.Mov.Imm(asm.R1, 1),
			asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R0, verdict).WithSymbol("out"),
			asm.Return(),
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return foreign{program, counter}
}

func (f foreign) packets(t *testing.T) (count uint64) {
	t.Helper()
	if err := f.counter.Lookup(uint32(0), &count); err != nil {
		t.Fatal(err)
	}
	return count
}

// tcx attaches the program to a host's veth by a link, as other tools do.
func (f foreign) tcx(n *node, h *netlab.Host, at ebpf.AttachType) {
	n.T.Helper()
	err := n.Lab.Node().Do(func() error {
		l, err := link.AttachTCX(link.TCXOptions{Interface: h.OuterIndex(), Program: f.program, Attach: at})
		if err == nil {
			n.T.Cleanup(func() { l.Close() })
		}
		return err
	})
	if err != nil {
		n.T.Fatal(err)
	}
}

// clsact attaches the program to a host's veth as tc does.
func (f foreign) clsact(n *node, h *netlab.Host, parent uint32, name string) {
	n.T.Helper()
	err := n.Lab.Node().Do(func() error {
		qdisc := &netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: h.OuterIndex(), Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
		if err := netlink.QdiscAdd(qdisc); err != nil {
			return err
		}
		return netlink.FilterAdd(&netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: h.OuterIndex(),
			Parent: parent,
			Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 7}, Fd: f.program.FD(), Name: name, DirectAction: true})
	})
	if err != nil {
		n.T.Fatal(err)
	}
}

// shown returns the programs that an operator sees on a hook of web, in order.
func (n *node) shown(hook string) string {
	n.T.Helper()
	for _, l := range get[v1.Service](n, "service", "web").Status.Links {
		for _, h := range l.Hooks {
			if h.Hook == hook {
				return strings.Join(h.Programs, " > ")
			}
		}
	}
	return ""
}

// Foreign programs stay, run and are shown at their position, regardless of Kerb's changes.
func TestForeignProgramsStay(t *testing.T) {
	n := newRunningNode(t)
	tcx := newForeign(t, ebpf.SchedCLS, "foreign_tcx", -1)      // TCX_NEXT
	filter := newForeign(t, ebpf.SchedCLS, "foreign_filter", 0) // TC_ACT_OK
	tcx.tcx(n, n.web, tcxEgress)
	filter.clsact(n, n.web, netlink.HANDLE_MIN_EGRESS, "foreign_filter")
	n.apply(n.stamp(1))
	udp := startStream(t, n.db, n.web)
	check := func(when string) {
		t.Helper()
		seenByTCX, seenByFilter := tcx.packets(t), filter.packets(t)
		n.Eventually(when+" both foreign programs see packets", func() bool {
			return tcx.packets(t) > seenByTCX+10 && filter.packets(t) > seenByFilter+10
		})
	}
	check("with a chain")
	shown := n.shown("tc-egress")
	kerb, other, last := strings.Index(shown, "kerb"), strings.Index(shown, "foreign_tcx"),
		strings.Index(shown, "foreign_filter")
	if kerb != 0 || other < kerb || last < other {
		t.Errorf("service get shows %q, want Kerb's chain, foreign_tcx, foreign_filter", shown)
	}
	if text := n.must("service", "get", "web"); !strings.Contains(text, "foreign_tcx") ||
		!strings.Contains(text, "foreign_filter") {
		t.Errorf("service get shows\n%s", text)
	}
	n.apply(n.stamp(2), n.pass("count", "*"))
	check("after a swap")
	n.Kill()
	check("without an agent")
	n.start()
	n.settled(map[string]int{"stamp": 2})
	udp.finish(1, 2)
	requests := startRequests(t, n.db, n.web)
	n.must("module", "delete", "stamp", "count")
	check("after the chain is gone")
	n.Stop()
	n.must("purge", n.Flags()...)
	check("after a purge")
	requests.finish()
}

// XDP permits one program: a foreign one stays, and the conflict is reported.
func TestForeignXDPIsAConflict(t *testing.T) {
	n := newRunningNode(t)
	n.apply(n.pass("count", "*"))
	before := n.programs()
	xdp := newForeign(t, ebpf.XDP, "foreign_xdp", 2) // XDP_PASS
	var l link.Link
	err := n.Lab.Node().Do(func() (err error) {
		l, err = link.AttachXDP(link.XDPOptions{Program: xdp.program, Interface: n.web.OuterIndex(),
			Flags: link.XDPGenericMode})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	module := n.pass("fast", "*")
	module.Spec.Hook = "xdp"
	n.refused(n.tryApply(module), 5, "another program is attached to the hook", n.web.Outer(), "bpftool net")
	if after := n.programs(); after != before {
		t.Errorf("programs were %s and are %s", before, after)
	}
	n.checkPins()
	requests := startRequests(t, n.db, n.web)
	seen := xdp.packets(t)
	n.Eventually("the foreign program sees packets", func() bool { return xdp.packets(t) > seen })
	requests.finish()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	n.Eventually("the foreign program is off", func() bool { return !n.hasXDP(n.web) })
	n.apply(module)
	n.settled(map[string]int{"fast": 2, "count": 4})
}

// hasXDP queries the kernel.
func (n *node) hasXDP(h *netlab.Host) (has bool) {
	n.T.Helper()
	err := n.Lab.Node().Do(func() error {
		l, err := netlink.LinkByIndex(h.OuterIndex())
		has = err == nil && l.Attrs().Xdp != nil && l.Attrs().Xdp.Attached
		return err
	})
	if err != nil {
		n.T.Fatal(err)
	}
	return has
}

// An interface that reuses the index of one that was removed while no agent ran gets its chain like any other.
func TestInterfaceIndexUsedAgain(t *testing.T) {
	n := newRunningNode(t)
	n.addVeth()
	n.must("service", "add", "odd", "--interface", oddName)
	n.apply(n.pass("count", "app!=web"))
	if hooks := n.hooks("odd"); len(hooks) != 2 {
		t.Fatalf("the interface runs %v", hooks)
	}
	n.Kill()
	err := n.Lab.Node().Do(func() error {
		return netlink.LinkDel(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: oddName, Index: oddIndex}})
	})
	if err != nil {
		t.Fatal(err)
	}
	n.addVeth()
	n.start()
	n.Eventually("the new interface runs a chain", func() bool {
		var programs int
		err := n.Lab.Node().Do(func() error {
			r, err := link.QueryPrograms(link.QueryOptions{Target: oddIndex, Attach: tcxIngress})
			if err == nil {
				programs = len(r.Programs)
			}
			return err
		})
		return err == nil && programs == 1
	})
	n.checkPins()
}

const (
	oddName  = "ke2eodd"
	oddIndex = 4321
)

func (n *node) addVeth() {
	n.T.Helper()
	err := n.Lab.Node().Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.Index = oddName, oddIndex
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: oddName + "p"}); err != nil {
			return err
		}
		l, err := netlink.LinkByName(oddName)
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	})
	if err != nil {
		n.T.Fatal(err)
	}
}
