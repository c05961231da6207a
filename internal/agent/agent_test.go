// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/config"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/tempdir"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/lockfile"
	"github.com/kerb-edge/kerb/internal/resource"
)

// node is an agent on directories of its own, with two services.
type node struct {
	*Agent
	cfg  config.Config
	web  *netlab.Host
	db   *netlab.Host
	stop func()

	opened func(*Agent) // called before it runs; may be nil
}

func newNode(t *testing.T) *node { return newNodeIn(t, "") }

// newNodeIn is newNode with an agent that looks for sockets in a cgroup.
func newNodeIn(t *testing.T, cgroup string) *node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	lab, err := netlab.New("kag")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Close() })
	n := &node{cfg: config.Default()}
	dir := openDir(t)
	n.cfg.Paths.State, n.cfg.Paths.Run, n.cfg.Cgroup = dir, dir, cgroup
	n.cfg.Paths.BPF = tempdir.PinPath(dir)
	if n.web, err = lab.Host("web", netlab.HostOptions{}); err != nil {
		t.Fatal(err)
	}
	if n.db, err = lab.Host("db", netlab.HostOptions{}); err != nil {
		t.Fatal(err)
	}
	if cgroup != "" {
		knownFacts(t, n.cfg.Paths.SocketFacts())
	}
	n.start(t)
	t.Cleanup(func() {
		n.stop()
		dp, err := dataplane.Open(dataplane.Options{Root: n.cfg.Paths.BPF})
		if err != nil {
			t.Fatal(err)
		}
		if err := dp.Purge(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// start runs the agent as kerb agent does, in this process.
func (n *node) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	log := slog.New(slog.NewTextHandler(testWriter{t}, nil))
	release, err := lockfile.AcquireNode(n.cfg.Paths)
	if err != nil {
		t.Fatal(err)
	}
	if n.Agent, err = open(ctx, n.cfg, log); err != nil {
		t.Fatal(err)
	}
	if n.opened != nil {
		n.opened(n.Agent)
	}
	done := make(chan error)
	a := n.Agent
	go func() { done <- a.run(ctx, n.cfg) }()
	n.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		a.close()
		if err := release(); err != nil {
			t.Error(err)
		}
		n.stop = func() {}
	}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func testPackage(t *testing.T, name string) string {
	t.Helper()
	dir, err := filepath.Abs("../dataplane/testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func module(name, pkg, selector string, config map[string]any) v1.Module {
	return v1.Module{
		TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindModule},
		Metadata: v1.ObjectMeta{Name: name},
		Spec: v1.ModuleSpec{Package: pkg, Attach: v1.Attach{Services: selector},
			CommonModuleSpec: v1.CommonModuleSpec{Config: config}},
	}
}

func serviceOf(name string, h *netlab.Host) v1.Service {
	return v1.Service{
		TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindService},
		Metadata: v1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec:     v1.ServiceSpec{Netns: h.Path()},
	}
}

func get[T any](ctx context.Context, n *node, kind *resource.Definition[T], name string) (v T, err error) {
	o, err := n.Get(ctx, kind, name)
	if err != nil {
		return v, err
	}
	return kind.Of([]resource.Object{o})[0], nil
}

func list[T any](ctx context.Context, n *node, kind *resource.Definition[T]) ([]T, error) {
	all, err := n.List(ctx, kind)
	return kind.Of(all), err
}

func (n *node) apply(t *testing.T, services []v1.Service, modules ...v1.Module) v1.ApplyResult {
	t.Helper()
	r, err := n.Apply(t.Context(),
		resource.Request{Resources: append(resource.Objects(services...), resource.Objects(modules...)...)})
	if err != nil {
		t.Fatalf("%v\nsteps: %v", err, r.Steps)
	}
	return r
}

// remove deletes resources.
func (n *node) remove(t *testing.T, refs ...resource.Ref) {
	t.Helper()
	if _, err := n.Apply(t.Context(), resource.Request{Remove: refs}); err != nil {
		t.Fatal(err)
	}
}

func (n *node) both() []v1.Service {
	return []v1.Service{serviceOf("web", n.web), serviceOf("db", n.db)}
}

// chainsOn describes what runs on a host's interface, by hook.
func (n *node) chainsOn(t *testing.T, h *netlab.Host) map[string]string {
	t.Helper()
	return n.chainsAt(t, h.OuterIndex())
}

func (n *node) chainsAt(t *testing.T, ifindex int) map[string]string {
	t.Helper()
	chains, err := n.Chains(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, c := range chains {
		for _, p := range c.Points {
			if p.Ifindex == ifindex {
				out[c.Hook] = fmt.Sprintf("%s %d", strings.Join(c.Modules, ","), c.Program)
			}
		}
	}
	return out
}

// patience is how long anything may take that takes a second at most: more is a hang, also on a busy machine.
const patience = 30 * time.Second

func TestApplySelectsOrdersAndRemoves(t *testing.T) {
	n := newNode(t)
	late := module("a-late", testPackage(t, "pass"), "*", nil)
	late.Spec.Order.After = []string{"z-early"}
	n.apply(t, n.both(), late, module("z-early", testPackage(t, "pass"), "app=web", nil))
	if got := n.chainsOn(t, n.web)["tc-ingress"]; !strings.HasPrefix(got, "z-early,a-late ") {
		t.Errorf("web runs %q", got)
	}
	if got := n.chainsOn(t, n.db)["tc-egress"]; !strings.HasPrefix(got, "a-late ") {
		t.Errorf("db runs %q", got)
	}
	n.remove(t, resource.Ref{Kind: v1.KindModule, Name: "z-early"})
	if web, db := n.chainsOn(t, n.web), n.chainsOn(t, n.db); web["tc-ingress"] != db["tc-ingress"] {
		t.Errorf("equal chains are not the same program: %v, %v", web, db)
	}
	if r := n.apply(t, n.both(), late); len(r.Steps) != 0 || r.Changes[0].Action != "unchanged" {
		t.Errorf("applying the same again: %+v", r)
	}
}

func TestServicesComeAndGo(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), module("count", testPackage(t, "pass"), "*", nil))
	ifindex := n.db.OuterIndex()
	if err := n.db.Remove(); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the vanished service loses its chain", func() bool {
		s, err := get(t.Context(), n, resource.Service, "db")
		return err == nil && len(s.Status.Links) == 0 && len(n.chainsAt(t, ifindex)) == 0
	})
	if got := n.chainsOn(t, n.web); len(got) != 2 {
		t.Errorf("the other service runs %v", got)
	}
}

// On a veth a module whose replies are longer than their requests runs on TC; native XDP, where an operator asks for
// it, has no room for them, which a condition reports.
func TestLongRepliesOnVeth(t *testing.T) {
	n := newNode(t)
	resources := []any{map[string]any{"path": "a", "value": "a value that is longer than the request for it"}}
	things := module("things", "responder", "",
		map[string]any{"listeners": []any{map[string]any{"app": "coap", "port": 5683, "resources": resources}}})
	things.Spec.Attach.Interfaces = []string{n.web.Outer()}
	n.apply(t, nil, things)
	if on := n.chainsOn(t, n.web); len(on) != 1 || on["tc-ingress"] == "" {
		t.Errorf("hook auto: %v", on)
	}
	if got := n.replies(t, "things"); got.Status != "True" {
		t.Errorf("hook auto: %+v", got)
	}
	things.Spec.Hook = v1.HookXDP
	n.apply(t, nil, things)
	if got := n.replies(t, "things"); got.Status != "False" || got.Reason != "NoHeadroom" ||
		!strings.Contains(got.Message, "hook: tc") {
		t.Errorf("hook xdp: %+v", got)
	}
}

// replies is the condition of that name.
func (n *node) replies(t *testing.T, name string) v1.Condition {
	t.Helper()
	m, err := get(t.Context(), n, resource.Module, name)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(m.Status.Conditions, func(c v1.Condition) bool { return c.Type == "Replies" })
	if i < 0 {
		t.Fatalf("no condition Replies: %+v", m.Status.Conditions)
	}
	return m.Status.Conditions[i]
}

// A module receives the addresses of an interface, also those that are added later; the responder answers on them.
func TestAddressesOfInterfaces(t *testing.T) {
	n := newNode(t)
	sign := module("sign", "responder", "",
		map[string]any{"listeners": []any{map[string]any{"app": "echo", "port": 7000}}})
	sign.Spec.Attach.Interfaces = []string{n.web.Outer()}
	n.apply(t, nil, sign)
	if _, on := n.chainsOn(t, n.web)["xdp"]; !on {
		t.Errorf("hook auto is not XDP: %v", n.chainsOn(t, n.web))
	}
	nic, err := netlink.LinkByName(n.web.Outer())
	if err != nil {
		t.Fatal(err)
	}
	address, err := netlink.ParseAddr("192.0.2.9/24")
	if err != nil {
		t.Fatal(err)
	}
	kind := func() (kind uint32) {
		n.Lock.Lock()
		defer n.Lock.Unlock()
		key := append(binary.NativeEndian.AppendUint32(nil, uint32(n.web.OuterIndex())), address.IP.To4()...)
		_ = n.Live.Maps("sign")["local4"].Lookup(key, &kind) // 0: not known
		return kind
	}
	if err := netlink.AddrAdd(nic, address); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the new address is answered", func() bool { return kind() == 1 })
	if err := netlink.AddrDel(nic, address); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the old address is not answered", func() bool { return kind() == 0 })
}

// A restarted agent adopts the chains: the same programs, nothing done.
func TestRestartAdopts(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), module("count", testPackage(t, "pass"), "*", nil),
		module("drop", testPackage(t, "drop"), "*", map[string]any{}))
	before := n.chainsOn(t, n.web)
	n.stop()
	n.start(t)
	wait.Until(t, "the modules are live again", func() bool {
		m, err := get(t.Context(), n, resource.Module, "count")
		return err == nil && len(m.Status.Attachments) == 4
	})
	if after := n.chainsOn(t, n.web); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("before the restart %v, after it %v", before, after)
	}
}

// A restarted agent leaves connections to whom they belong, though it has only begun to look for services.
func TestRestartKeepsConnections(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), module("fw", "firewall", "*", map[string]any{}),
		module("later", testPackage(t, "pass"), "*", nil))
	n.stop()
	pins, err := filepath.Glob(filepath.Join(n.cfg.Paths.BPF, "modules/fw/*/established4"))
	if err != nil || len(pins) != 1 {
		t.Fatal(pins, err)
	}
	m, err := ebpf.LoadPinnedMap(pins[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
	binary.NativeEndian.PutUint32(key, uint32(n.web.OuterIndex()))
	binary.NativeEndian.PutUint64(value, 1<<62) // seen: not old
	if err := m.Put(key, value); err != nil {
		t.Fatal(err)
	}
	n.start(t)
	wait.Until(t, "the firewall is live again", func() bool {
		answer := httptest.NewRecorder()
		err := n.ServeModule(answer, httptest.NewRequest("GET", "/rules", nil), "fw")
		return err == nil && answer.Code == http.StatusOK
	})
	n.stop() // waits for the sweep that has begun
	if err := m.Lookup(key, &value); err != nil {
		t.Errorf("the connection is lost: %v", err)
	}
}

// After a reboot every pin is gone: all is rebuilt from the store.
func TestRebootRebuilds(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), module("count", testPackage(t, "pass"), "*", nil))
	n.stop()
	dp, err := dataplane.Open(dataplane.Options{Root: n.cfg.Paths.BPF})
	if err != nil {
		t.Fatal(err)
	}
	if err := dp.Purge(); err != nil {
		t.Fatal(err)
	}
	n.start(t)
	wait.Until(t, "the chains are back", func() bool {
		return len(n.chainsOn(t, n.web)) == 2 && len(n.chainsOn(t, n.db)) == 2
	})
}

// Every error in a change is reported, and the old state keeps running.
func TestBadChangesLeaveAllAsItWas(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), module("count", testPackage(t, "pass"), "*", nil))
	before := n.chainsOn(t, n.web)
	cycle := module("x", testPackage(t, "pass"), "*", nil)
	cycle.Spec.Order = v1.Order{Before: []string{"count"}, After: []string{"count"}}
	budget := module("x", testPackage(t, "pass"), "*", nil)
	budget.Spec.Budget.Memory = "1"
	gone := serviceOf("gone", n.web)
	gone.Spec.Netns = "/run/netns/kag-nosuch"
	for name, c := range map[string]struct {
		request resource.Request
		says    string
	}{
		"unknown package": {resource.Request{Resources: resource.Objects(module("x", "nosuch", "*", nil))}, "nosuch"},
		"no such config": {resource.Request{
			Resources: resource.Objects(module("x", testPackage(t, "drop"), "*", map[string]any{"prot": 1}))}, "prot"},
		"bad selector": {resource.Request{Resources: resource.Objects(module("x", testPackage(t, "pass"), "app in web",
			nil))}, "selector"},
		"selects nothing": {resource.Request{Resources: resource.Objects(module("x", testPackage(t, "pass"), "", nil))},
			"spec.attach"},
		"order cycle": {resource.Request{Resources: resource.Objects(cycle)}, "order"},
		"over budget": {resource.Request{Resources: resource.Objects(budget)}, "budget"},
		"verifier": {resource.Request{Resources: resource.Objects(module("x", testPackage(t, "bad"), "*", nil))},
			"verifier"},
		"verifier, unused": {resource.Request{
			Resources: resource.Objects(module("x", testPackage(t, "bad"), "app=none", nil))}, "verifier"},
		"no namespace": {resource.Request{Resources: resource.Objects(gone)}, "namespace"},
	} {
		_, err := n.Apply(t.Context(), c.request)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %v, want one with %q", name, err, c.says)
		}
		if after := n.chainsOn(t, n.web); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("%s: chains were %v, are %v", name, before, after)
		}
		if now := n.present(); now.Len(resource.Module) != 1 || now.Len(resource.Service) != 2 {
			t.Errorf("%s: desired state has changed", name)
		}
	}
}

// A removed package directory does not affect changes of other modules; applying the module reports it.
func TestPackageVanishes(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(testPackage(t, "pass"))); err != nil {
		t.Fatal(err)
	}
	count := module("count", dir, "*", nil)
	n.apply(t, n.both(), count)
	if err := os.Remove(filepath.Join(dir, "kerb.yaml")); err != nil {
		t.Fatal(err)
	}
	n.apply(t, nil, module("other", testPackage(t, "pass"), "app=web", nil))
	if got := n.chainsOn(t, n.web)["tc-ingress"]; !strings.HasPrefix(got, "count,other ") {
		t.Errorf("web runs %q", got)
	}
	if _, err := n.Apply(t.Context(), resource.Request{Resources: resource.Objects(count)}); err == nil ||
		!strings.Contains(err.Error(), "not a package") {
		t.Errorf("applying it again: %v", err)
	}
}

// A module that the kernel starts to reject is left out, and other modules can still be changed.
func TestRefusedModuleBlocksNothing(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(testPackage(t, "pass"))); err != nil {
		t.Fatal(err)
	}
	open := module("was-good", dir, "*", nil)
	open.Spec.FailurePolicy = v1.FailOpen
	n.apply(t, n.both(), open)
	n.stop()
	for _, object := range []string{"tc", "xdp"} {
		data, err := os.ReadFile(filepath.Join(testPackage(t, "bad"), "bad."+object+".o"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "pass."+object+".o"), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.start(t)
	wait.Until(t, "the rejected module is reported", func() bool {
		m, err := get(t.Context(), n, resource.Module, "was-good")
		return err == nil && m.Status.Conditions[0].Reason == "ModuleFailed"
	})
	n.apply(t, nil, module("other", testPackage(t, "pass"), "*", nil))
	if got := n.chainsOn(t, n.web)["tc-ingress"]; !strings.HasPrefix(got, "other ") {
		t.Errorf("web runs %q", got)
	}
}

// A module that cannot run does what its failure policy says to the services that it selects, and runs again once it
// can.
func TestFailurePolicy(t *testing.T) {
	n := newNode(t)
	packages := map[v1.FailurePolicy]string{}
	for _, policy := range []v1.FailurePolicy{v1.FailOpen, v1.FailClosed} {
		dir := filepath.Join(t.TempDir(), string(policy))
		if err := os.CopyFS(dir, os.DirFS(testPackage(t, "pass"))); err != nil {
			t.Fatal(err)
		}
		edit(t, filepath.Join(dir, "kerb.yaml"), func(text string) string {
			return strings.Replace(text, "failurePolicy: open", "failurePolicy: "+string(policy), 1)
		})
		packages[policy] = dir
	}
	byResource := module("guard", packages[v1.FailOpen], "app=web", nil)
	byResource.Spec.FailurePolicy = v1.FailClosed
	n.apply(t, n.both(), byResource, module("watch", packages[v1.FailClosed], "app=db", nil),
		module("count", packages[v1.FailOpen], "*", nil))
	hidden := func(dir string) string { return dir + ".away" }
	n.stop()
	for _, dir := range packages {
		if err := os.Rename(dir, hidden(dir)); err != nil {
			t.Fatal(err)
		}
	}
	n.start(t)
	wait.Until(t, "those that fail closed drop everything, the other is left out", func() bool {
		web, db := n.chainsOn(t, n.web)["tc-ingress"], n.chainsOn(t, n.db)["tc-egress"]
		return strings.HasPrefix(web, "guard ") && strings.HasPrefix(db, "watch ")
	})
	if reached(t, n.web, n.db, time.Second) {
		t.Error("a packet has passed a module that fails closed and cannot run")
	}
	if c := n.reconciled(t); c.Reason != "ModuleFailed" ||
		!strings.Contains(c.Message, "module guard cannot run, all packets are dropped") ||
		!strings.Contains(c.Message, "module count cannot run, packets bypass it") {
		t.Errorf("the node's state: %+v", c)
	}
	for _, dir := range packages {
		if err := os.Rename(hidden(dir), dir); err != nil {
			t.Fatal(err)
		}
	}
	n.RetryFailed()
	wait.Until(t, "with their packages back all run", func() bool {
		web, db := n.chainsOn(t, n.web)["tc-ingress"], n.chainsOn(t, n.db)["tc-egress"]
		return strings.HasPrefix(web, "count,guard ") && strings.HasPrefix(db, "watch,count ")
	})
	if !reached(t, n.web, n.db, patience) {
		t.Error("no packet passes modules that run again")
	}
	if c := n.reconciled(t); c.Status != "True" {
		t.Errorf("the node's state: %+v", c)
	}
}

func (n *node) reconciled(t *testing.T) v1.Condition {
	t.Helper()
	st, err := n.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return st.Conditions[0]
}

func edit(t *testing.T, path string, change func(string) string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(change(string(data))), 0o600); err != nil {
		t.Fatal(err)
	}
}

// reached reports whether a datagram arrives at another host within a time.
func reached(t *testing.T, from, to *netlab.Host, within time.Duration) bool {
	t.Helper()
	var server net.PacketConn
	err := to.Do(func() (err error) {
		server, err = net.ListenPacket("udp", net.JoinHostPort(to.Addr4().String(), "0"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	var client net.Conn
	err = from.Do(func() (err error) {
		client, err = net.Dial("udp", server.LocalAddr().String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for end := time.Now().Add(within); time.Now().Before(end); {
		// Again and again: a neighbour that was not found while packets were dropped takes its first datagrams along.
		_, _ = io.WriteString(client, "x")
		_ = server.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if _, _, err := server.ReadFrom(make([]byte, 1)); err == nil {
			return true
		}
	}
	return false
}

// An interface whose hook another program holds is reported; all others get their chains.
func TestBusyInterfaceBlocksNothing(t *testing.T) {
	n := newNode(t)
	count := module("count", testPackage(t, "pass"), "*", nil)
	count.Spec.Hook = v1.HookXDP
	n.apply(t, n.both(), count)
	n.stop()
	dp, err := dataplane.Open(dataplane.Options{Root: n.cfg.Paths.BPF})
	if err != nil {
		t.Fatal(err)
	}
	if err := dp.Purge(); err != nil {
		t.Fatal(err)
	}
	foreign, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	taken, err := link.AttachXDP(link.XDPOptions{Program: foreign, Interface: n.db.OuterIndex()})
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	n.start(t)
	wait.Until(t, "the free interface has its chain", func() bool { return n.chainsOn(t, n.web)["xdp"] != "" })
	m, err := get(t.Context(), n, resource.Module, "count")
	if err != nil || len(m.Status.Attachments) != 1 || !strings.Contains(m.Status.Conditions[0].Message,
		"another program is attached") {
		t.Errorf("status %+v, %v", m.Status, err)
	}
	n.apply(t, nil, module("other", testPackage(t, "pass"), "*", nil))
	if got := n.chainsOn(t, n.db)["tc-ingress"]; !strings.HasPrefix(got, "other ") {
		t.Errorf("db runs %q", got)
	}
	taken.Close()
	wait.Until(t, "the interface that is free again has its chain", func() bool {
		return n.chainsOn(t, n.db)["xdp"] != ""
	})
}

func TestVerifierLogReachesOperator(t *testing.T) {
	n := newNode(t)
	_, err := n.Apply(t.Context(),
		resource.Request{Resources: append(resource.Objects(n.both()...),
			resource.Objects(module("x", testPackage(t, "bad"), "*", nil))...)})
	var rejected *apierrors.Rejected
	if !errors.As(err, &rejected) || !strings.Contains(rejected.Summary, "before checking that they are there") ||
		len(rejected.Log) < 100 {
		t.Errorf("error %v", err)
	}
}

func TestTwoAgents(t *testing.T) {
	n := newNode(t)
	if _, err := lockfile.AcquireNode(n.cfg.Paths); err == nil || !strings.Contains(err.Error(), "another kerb agent") {
		t.Errorf("second agent: %v", err)
	}
}

// A lost store must not cut traffic: chains stay until modules are applied again.
func TestCorruptStoreKeepsChains(t *testing.T) {
	n := newNode(t)
	count := module("count", testPackage(t, "pass"), "*", nil)
	n.apply(t, n.both(), count)
	before := n.chainsOn(t, n.web)
	n.stop()
	if err := os.WriteFile(n.cfg.Paths.Store(), []byte("no store"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.start(t)
	time.Sleep(500 * time.Millisecond) // several reconciliations
	if after := n.chainsOn(t, n.web); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("before the loss %v, after it %v", before, after)
	}
	n.apply(t, n.both(), count)
	if after := n.chainsOn(t, n.web); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("before the loss %v, after applying again %v", before, after)
	}
	if n.Store.RecoveryPending() {
		t.Error("the loss is still flagged")
	}
}

// A trace shows which module dropped a packet; afterwards the chains without tracing are attached again.
func TestTrace(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), module("count", testPackage(t, "pass"), "*", nil), module("drop", testPackage(t, "drop"), "*",
		map[string]any{"port": float64(53)}))
	before := n.chainsOn(t, n.web)
	stop := make(chan struct{})
	defer close(stop)
	go sendUDP(n.web, n.db, 53, stop)
	var got []v1.TracedPacket
	err := n.Trace(t.Context(), v1.TraceRequest{Service: "web", Protocol: "udp", Port: 53, Count: 3, Seconds: 60},
		func(line v1.TraceLine) error {
			got = append(got, *line.TracedPacket)
			return nil
		})
	if err != nil || len(got) != 3 {
		t.Fatalf("%d packets traced (%v)", len(got), err)
	}
	for _, p := range got {
		if p.Service != "web" || p.Direction != "egress" || len(p.Steps) != 2 || p.Steps[1].Module != "drop" ||
			p.Steps[1].Verdict != "drop" || p.Steps[1].Reason != "policy" {
			t.Errorf("traced %+v", p)
		}
	}
	if after := n.chainsOn(t, n.web); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("before the trace %v, after it %v", before, after)
	}
	for _, r := range []v1.TraceRequest{{Host: "x", Seconds: 1}, {Protocol: "x", Seconds: 1},
		{Service: "nosuch", Seconds: 1}} {
		if err := n.Trace(t.Context(), r, nil); err == nil {
			t.Errorf("%+v was accepted", r)
		}
	}
}

// A trace that is too slow for its packets loses whole packets: none is shown without the verdict that decided.
func TestSlowTraceShowsWholePackets(t *testing.T) {
	n := newNode(t)
	drop := module("drop", testPackage(t, "drop"), "*", map[string]any{"port": float64(53)})
	n.apply(t, n.both(), module("count", testPackage(t, "pass"), "*", nil), drop)
	stop := make(chan struct{})
	defer close(stop)
	go floodUDP(n.web, n.db, 53, stop)
	shown, lost := 0, uint64(0)
	r := v1.TraceRequest{Service: "web", Protocol: "udp", Port: 53, Count: 20000, Seconds: 60}
	told := uint64(0)
	err := n.Trace(t.Context(), r, func(p v1.TraceLine) error {
		if p.Lost > 0 {
			told = p.Lost
			return nil
		}
		if len(p.Steps) != 2 || p.Steps[1].Verdict != "drop" {
			t.Fatalf("packet %d is shown with the steps %+v", shown, p.Steps)
		}
		if shown++; shown%2000 == 1 { // until the ring is full, and more
			wait.Until(t, "the trace loses events", func() bool { return n.lost() > lost+100 })
			lost = n.lost()
		}
		return nil
	})
	if err != nil || shown != r.Count {
		t.Errorf("%d packets are shown: %v", shown, err)
	}
	if told < lost {
		t.Errorf("the trace says that it has lost %d events of at least %d", told, lost)
	}
}

// lost is how many events the trace that runs has had no room for.
func (n *node) lost() uint64 {
	n.Exclusive.Lock()
	defer n.Exclusive.Unlock()
	return n.Sessions[len(n.Sessions)-1].Source.Lost()
}

func floodUDP(from, to *netlab.Host, port int, stop chan struct{}) {
	_ = from.Do(func() error {
		c, err := net.Dial("udp4", netip.AddrPortFrom(to.Addr4(), uint16(port)).String())
		if err != nil {
			return err
		}
		defer c.Close()
		for {
			select {
			case <-stop:
				return nil
			default:
				_, _ = c.Write([]byte("x"))
			}
		}
	})
}

// A trace that begins while the one of a client that has just been killed is ending waits for it.
func TestTraceAfterKilledOne(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), module("count", testPackage(t, "pass"), "*", nil))
	stop := make(chan struct{})
	defer close(stop)
	go sendUDP(n.web, n.db, 53, stop)
	for range 3 {
		ctx, kill := context.WithCancel(t.Context())
		begun, done := make(chan struct{}, 100), make(chan error)
		go func() {
			done <- n.Trace(ctx, v1.TraceRequest{Port: 53, Seconds: 60}, func(v1.TraceLine) error {
				begun <- struct{}{}
				return nil
			})
		}()
		select {
		case <-begun:
		case err := <-done:
			t.Fatal(err)
		}
		kill()
		if err := n.Trace(t.Context(), v1.TraceRequest{Port: 53, Count: 1, Seconds: 60},
			func(v1.TraceLine) error { return nil }); err != nil {
			t.Error(err)
		}
		<-done
	}
}

// Traces run at the same time, of services that share a chain and of all: each shows the packets that its own filter
// matches at its own service, whichever begins and ends first. A change elsewhere ends none; a fifth is refused.
func TestTracesSideBySide(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), module("count", testPackage(t, "pass"), "*", nil))
	stop := make(chan struct{})
	defer close(stop)
	go sendUDP(n.web, n.db, 53, stop)
	go sendUDP(n.db, n.web, 54, stop)
	type session struct {
		v1.TraceRequest
		came chan v1.TracedPacket
		done chan error
		end  context.CancelFunc
	}
	begin := func(r v1.TraceRequest) session {
		ctx, cancel := context.WithCancel(t.Context())
		s := session{r, make(chan v1.TracedPacket, 1), make(chan error, 1), cancel}
		s.Seconds = 120
		go func() {
			s.done <- n.Trace(ctx, s.TraceRequest, func(l v1.TraceLine) error {
				select {
				case s.came <- *l.TracedPacket:
				case <-ctx.Done():
				}
				return nil
			})
		}()
		return s
	}
	match := func(expression string) string {
		return map[string]string{"": "", "udp": "6,40 0 0 12,21 0 3 2048,48 0 0 23," +
			"21 0 1 17,6 0 0 262144,6 0 0 0", "none": "1,6 0 0 0"}[expression]
	}
	shows := func(s session, want int) {
		t.Helper()
		for range 20 {
			var p v1.TracedPacket
			select {
			case p = <-s.came:
			case err := <-s.done:
				t.Fatalf("%+v: %v", s.TraceRequest, err)
			}
			at := netip.MustParseAddrPort(p.Destination)
			if want != 0 && int(at.Port()) != want || s.Service != "" && p.Service != s.Service || len(p.Steps) != 1 {
				t.Fatalf("%+v shows %+v", s.TraceRequest, p)
			}
		}
	}
	web := begin(v1.TraceRequest{Service: "web", Port: 53})
	shows(web, 53)
	all := begin(v1.TraceRequest{Protocol: "udp", Program: match("udp")})
	none := begin(v1.TraceRequest{Program: match("none")})
	db := begin(v1.TraceRequest{Service: "db", Port: 54})
	for range 3 {
		shows(web, 53)
		shows(all, 0)
		shows(db, 54)
	}
	var busy *apierrors.Conflict
	if err := n.Trace(t.Context(), v1.TraceRequest{Seconds: 1}, nil); !errors.As(err, &busy) ||
		!strings.Contains(busy.Reason, "4 traces are running") {
		t.Errorf("a fifth trace: %v", err)
	}
	web.end()
	if err := <-web.done; err != nil {
		t.Error(err)
	}
	shows(all, 0)
	shows(db, 54)
	again := begin(v1.TraceRequest{Service: "web", Port: 54})
	shows(again, 54)
	shows(db, 54)
	if got := none.came; len(got) != 0 {
		t.Errorf("an expression that matches nothing shows %+v", <-got)
	}
	for _, s := range []session{all, none, db, again} {
		s.end()
		if err := <-s.done; err != nil {
			t.Error(err)
		}
	}
	n.Exclusive.Lock()
	defer n.Exclusive.Unlock()
	state, err := n.Dataplane.Observe()
	if err != nil {
		t.Fatal(err)
	}
	plain := map[uint32]bool{}
	for _, c := range state.Chains {
		plain[c.Program] = true
	}
	for _, p := range state.Points {
		if !plain[p.Program] {
			t.Errorf("a traced chain is left on %+v", p)
		}
	}
}

// A change of the node ends a trace: its chains are replaced.
func TestChangeEndsTrace(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), module("count", testPackage(t, "pass"), "*", nil))
	done := make(chan error)
	go func() {
		done <- n.Trace(context.Background(), v1.TraceRequest{Port: 1, Seconds: 60},
			func(v1.TraceLine) error { return nil })
	}()
	wait.Until(t, "the trace runs", func() bool {
		n.Exclusive.Lock()
		defer n.Exclusive.Unlock()
		return len(n.Sessions) == 1 && n.Sessions[0].Runs()
	})
	n.apply(t, nil, module("drop", testPackage(t, "drop"), "*", nil))
	if err := <-done; err == nil || !strings.Contains(err.Error(), "changed") {
		t.Errorf("trace ended with %v", err)
	}
	if got := n.chainsOn(t, n.web)["tc-ingress"]; !strings.HasPrefix(got, "count,drop ") {
		t.Errorf("web runs %q", got)
	}
}

// sendUDP sends packets until stop.
func sendUDP(from, to *netlab.Host, port int, stop chan struct{}) {
	var c net.Conn
	_ = from.Do(func() (err error) {
		c, err = net.Dial("udp4", netip.AddrPortFrom(to.Addr4(), uint16(port)).String())
		return err
	})
	if c == nil {
		return
	}
	defer c.Close()
	for {
		select {
		case <-stop:
			return
		case <-time.After(10 * time.Millisecond):
			_, _ = c.Write([]byte("kerb"))
		}
	}
}
