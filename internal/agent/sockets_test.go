// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/cgroup"
	"github.com/kerb-edge/kerb/internal/lab/cgrouptest"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/sockprobe"
	"github.com/kerb-edge/kerb/sdk"
)

// socketsCommand makes the test binary the control plane of the package that socketsPackage makes.
const socketsCommand = "sockets-control"

// socketsControl writes the services' namespaces into the data plane, and reports to tests what it receives.
type socketsControl struct {
	live sdk.Live

	mu          sync.Mutex
	attachments map[sdk.AttachmentKey]sdk.Attachment // that the data plane knows
}

func (*socketsControl) Compile(json.RawMessage) (sdk.Compiled, error) {
	return &socketsControl{}, nil
}
func (*socketsControl) Settings() sdk.Settings { return sdk.Settings{} }
func (*socketsControl) Fill(sdk.Maps) error    { return nil }

func (*socketsControl) Open(live sdk.Live) (sdk.Running, error) {
	return &socketsControl{live: live, attachments: map[sdk.AttachmentKey]sdk.Attachment{}}, nil
}

func (c *socketsControl) AttachmentChanged(i sdk.Attachment, there bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.attachments, i.Key())
	if there {
		c.attachments[i.Key()] = i
	}
	if i.NetnsCookie == 0 {
		return
	}
	if there {
		_ = c.live.Maps["netns"].Put(i.NetnsCookie, uint32(1))
	} else {
		_ = c.live.Maps["netns"].Delete(i.NetnsCookie)
	}
}

// socketsState is what the control plane reports.
type socketsState struct {
	Attachments []sdk.Attachment
	Kernel      sdk.Kernel
	Redirected  uint64
}

func (c *socketsControl) Handler() http.Handler {
	for _, i := range c.live.Attachments() {
		c.AttachmentChanged(i, true)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		s := socketsState{Attachments: slices.Collect(maps.Values(c.attachments)), Kernel: c.live.Kernel}
		_ = c.live.Maps["counts"].Lookup(uint32(1), &s.Redirected)
		_ = json.NewEncoder(w).Encode(s)
	})
	return mux
}

// socketsPackage makes a package of the data plane's test module and the control plane above.
func socketsPackage(t *testing.T) string {
	t.Helper()
	dir := openDir(t)
	if err := os.CopyFS(dir, os.DirFS(testPackage(t, "sockets"))); err != nil {
		t.Fatal(err)
	}
	manifest, err := os.ReadFile(dir + "/kerb.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := string(manifest) + "capabilities: [kernelFacts]\nbudget: {memory: 64Mi}\n" +
		"control: {command: [./control, " + socketsCommand + "], files: [control], memory: 256Mi}\n"
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(dir+"/kerb.yaml", []byte(text), 0o600),
		os.WriteFile(dir+"/control", self, 0o600)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// newSocketsNode is a node whose agent looks for sockets in a cgroup that the test's process is in.
func newSocketsNode(t *testing.T) (*node, string) {
	t.Helper()
	dir := cgrouptest.New(t, "", "kag")
	cgrouptest.Enter(t, dir)
	return newNodeIn(t, dir), dir
}

// sharedFacts is a file for all tests of this process.
func sharedFacts() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("kerb-agent-sockets-%d.json", os.Getpid()))
}

// knownFacts gives a node's agent how sockets behave on this kernel, which takes seconds to find out.
func knownFacts(t *testing.T, file string) {
	t.Helper()
	if _, err := sockprobe.RunOnce(t.Context(), sharedFacts()); err != nil {
		t.Fatal(err)
	}
	facts, err := os.ReadFile(sharedFacts())
	if err == nil {
		err = os.WriteFile(file, facts, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (n *node) socketsState(t *testing.T, module string) (s socketsState) {
	t.Helper()
	if status, text := n.ask(t, module, "GET", "/state", nil); status == http.StatusOK {
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// talk connects from one host to another (or to itself) and sends text both ways.
func talk(t *testing.T, from, to *netlab.Host, text string) {
	t.Helper()
	client, server := dial(t, from, to)
	defer client.Close()
	defer server.Close()
	exchange(t, client, server, text)
	exchange(t, server, client, text)
}

func exchange(t *testing.T, from, to net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(from, text); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	_ = to.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(to, got); err != nil || string(got) != text {
		t.Fatalf("%q, %v, want %q", got, err, text)
	}
}

func dial(t *testing.T, from, to *netlab.Host) (client, server net.Conn) {
	t.Helper()
	var l net.Listener
	err := to.Do(func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(to.Addr4().String(), "0"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	err = from.Do(func() (err error) {
		client, err = net.Dial("tcp", l.Addr().String())
		return err
	})
	if err == nil {
		server, err = l.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	return client, server
}

func TestSocketsOfServices(t *testing.T) {
	n, dir := newSocketsNode(t)
	pkg := socketsPackage(t)
	n.apply(t, n.both(), module("fast", pkg, "app=web", nil), module("count", testPackage(t, "pass"), "app=web", nil))
	wait.Until(t, "the control plane knows the service", func() bool {
		return len(n.socketsState(t, "fast").Attachments) == 1
	})
	i := n.socketsState(t, "fast").Attachments[0]
	others := []sdk.ChainMember{{Module: "count", Package: "pass"}}
	if i.Service != "web" || i.NetnsCookie == 0 || i.Ifindex != uint32(n.web.OuterIndex()) ||
		!slices.Equal(i.Chain, others) {
		t.Errorf("attachment %+v", i)
	}
	talk(t, n.web, n.web, "within the service")
	if got := n.socketsState(t, "fast").Redirected; got != 2 {
		t.Errorf("%d messages were redirected within the service, want 2", got)
	}
	talk(t, n.web, n.db, "to another")
	talk(t, n.db, n.db, "within another")
	if got := n.socketsState(t, "fast").Redirected; got != 2 {
		t.Errorf("%d messages were redirected, though the other end is no service of the module's", got)
	}
	if k := n.socketsState(t, "fast").Kernel; len(k.Sockets) < 2 {
		t.Errorf("how the kernel behaves: %+v", k)
	}
	n.apply(t, n.both(), module("fast", pkg, "*", nil))
	wait.Until(t, "the second service is known", func() bool { return len(n.socketsState(t, "fast").Attachments) == 2 })
	talk(t, n.web, n.db, "between both")
	if got := n.socketsState(t, "fast").Redirected; got != 4 {
		t.Errorf("%d messages were redirected, want 4", got)
	}
	m, err := get(t.Context(), n, resource.Module, "fast")
	if err != nil {
		t.Fatal(err)
	}
	found, err := cgroup.Find(dir)
	if err != nil {
		t.Fatal(err)
	}
	if one := m.Status.Attachments[0]; len(m.Status.Attachments) != 2 || one.Cgroup != found.Path ||
		one.Hook != "sockets" || one.Service != "db" {
		t.Errorf("attachments %+v", m.Status.Attachments)
	}
	if s, err := get(t.Context(), n, resource.Service, "db"); err != nil ||
		!slices.Equal(s.Status.Sockets, []string{"fast"}) {
		t.Errorf("the service says %+v, %v", s.Status, err)
	}
	if c := condition(m.Status, "Ready"); c.Status != "True" {
		t.Errorf("%+v", c)
	}
	if c := condition(m.Status, "Placed"); c.Status != "True" {
		t.Errorf("%+v", c)
	}
	wait.Until(t, "the module is measured", func() bool {
		m, err := get(t.Context(), n, resource.Module, "fast")
		c := condition(m.Status, "WithinBudget")
		return err == nil && c.Status == "True" && c.Message == ""
	})
}

// A trace shows the messages of the service that it is about, on a node where nothing else would be traced; packets,
// if only those are requested, there are none.
func TestTraceOfSockets(t *testing.T) {
	n, _ := newSocketsNode(t)
	n.apply(t, n.both(), module("fast", socketsPackage(t), "*", nil))
	wait.Until(t, "both services are known", func() bool { return len(n.socketsState(t, "fast").Attachments) == 2 })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	shown := make(chan v1.TracedPacket, 100)
	done := make(chan error, 1)
	go func() {
		r := v1.TraceRequest{Service: "web", Module: "fast", Protocol: "tcp", Count: 2,
			Seconds: 60}
		done <- n.Trace(ctx, r, func(l v1.TraceLine) error {
			if l.TracedPacket != nil {
				shown <- *l.TracedPacket
			}
			return nil
		})
	}()
	wait.Until(t, "the trace runs", func() bool {
		n.Exclusive.Lock()
		defer n.Exclusive.Unlock()
		return len(n.Sessions) == 1
	})
	talk(t, n.db, n.db, "of the other service")
	talk(t, n.web, n.db, "hello") // web sends it once: the answer is db's
	talk(t, n.web, n.web, "both ways")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for _, length := range []uint32{5, 9} {
		p := <-shown
		if p.Service != "web" || p.Hook != "sockets" || p.Length != length || p.Protocol != "tcp" || len(p.Steps) != 1 ||
			p.Steps[0].Module != "fast" || p.Steps[0].Verdict != "redirect" || p.Steps[0].Note != "port" ||
			p.Steps[0].Nanoseconds == 0 || !strings.HasPrefix(p.Source, n.web.Addr4().String()+":") ||
			time.Since(p.Time) > time.Minute {
			t.Errorf("%+v, want a message of %d bytes", p, length)
		}
	}
	var conflict *apierrors.Conflict
	for name, r := range map[string]v1.TraceRequest{"packets": {}, "of no service": {Service: "web", Module: "count"}} {
		if r.Seconds = 1; !errors.As(n.Trace(ctx, r, nil), &conflict) {
			t.Errorf("%s: %v", name, n.Trace(ctx, r, nil))
		}
	}
	var invalid *apierrors.Invalid
	expression := v1.TraceRequest{Messages: true, Program: "1,6 0 0 1", Seconds: 1}
	if err := n.Trace(ctx, expression, nil); !errors.As(err, &invalid) {
		t.Errorf("with an expression: %v", err)
	}

	go func() {
		done <- n.Trace(ctx, v1.TraceRequest{Messages: true, Seconds: 60}, func(v1.TraceLine) error { return nil })
	}()
	wait.Until(t, "the trace runs", func() bool {
		n.Exclusive.Lock()
		defer n.Exclusive.Unlock()
		return len(n.Sessions) > 0 && n.Sessions[len(n.Sessions)-1].Runs()
	})
	n.apply(t, n.both(), module("fast", socketsPackage(t), "*", map[string]any{"only_port": float64(1)}))
	if err := <-done; !errors.As(err, &conflict) {
		t.Errorf("after a change of the module: %v", err)
	}
}

func TestSocketsSurviveTheAgent(t *testing.T) {
	n, _ := newSocketsNode(t)
	n.apply(t, n.both(), module("fast", socketsPackage(t), "*", nil))
	wait.Until(t, "both services are known", func() bool { return len(n.socketsState(t, "fast").Attachments) == 2 })
	client, srv := dial(t, n.web, n.db)
	defer client.Close()
	defer srv.Close()
	exchange(t, client, srv, "before")
	n.stop()
	exchange(t, client, srv, "without")
	talk(t, n.web, n.db, "new without")
	n.start(t)
	wait.Until(t, "the control plane is back", func() bool {
		s := n.socketsState(t, "fast")
		return len(s.Attachments) == 2 && s.Redirected == 4
	})
	exchange(t, client, srv, "after")
	chains, err := n.Chains(t.Context())
	if err != nil || len(chains) != 1 || len(chains[0].Points) != 2 || chains[0].Points[0].Cgroup == "" {
		t.Errorf("chains %+v, %v", chains, err)
	}
}

// A module that is removed while bytes wait loses none, and nothing is left of it when they have been read.
func TestSocketsLeave(t *testing.T) {
	n, _ := newSocketsNode(t)
	n.apply(t, n.both(), module("fast", socketsPackage(t), "*", nil))
	wait.Until(t, "both services are known", func() bool { return len(n.socketsState(t, "fast").Attachments) == 2 })
	client, srv := dial(t, n.web, n.db)
	defer client.Close()
	defer srv.Close()
	payload := strings.Repeat("0123456789abcdef", 1<<12)
	if _, err := io.WriteString(client, payload); err != nil {
		t.Fatal(err)
	}
	if n.socketsState(t, "fast").Redirected == 0 {
		t.Error("nothing was redirected")
	}
	n.remove(t, resource.Ref{Kind: v1.KindModule, Name: "fast"})
	state, err := n.Dataplane.Observe()
	if err != nil || len(state.Points) != 0 || len(state.MapSets["fast"]) != 1 {
		t.Fatalf("after the removal: %+v, %v", state, err)
	}
	if _, err := io.WriteString(client, "more"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(payload)+4)
	_ = srv.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(srv, got); err != nil || string(got) != payload+"more" {
		t.Fatalf("%d bytes, %v, or others than were sent", len(got), err)
	}
	wait.Until(t, "the module is gone", func() bool {
		state, err := n.Dataplane.Observe()
		return err == nil && len(state.Chains) == 0 && len(state.MapSets) == 0
	})
	exchange(t, client, srv, "plain")
}

func TestSocketsOfCgroups(t *testing.T) {
	n, dir := newSocketsNode(t)
	below := cgrouptest.New(t, dir, "below")
	m := module("fast", testPackage(t, "sockets"), "", nil)
	m.Spec.Attach.Cgroups = []string{below, dir}
	n.apply(t, nil, m)
	points := func() (out []string) {
		status, err := get(t.Context(), n, resource.Module, "fast")
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range status.Status.Attachments {
			out = append(out, i.Cgroup)
		}
		return out
	}
	found, err := cgroup.Find(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := points(); !slices.Equal(got, []string{found.Path}) {
		t.Errorf("on %v, want the cgroup above only", got)
	}
	m.Spec.Attach.Cgroups = []string{below}
	n.apply(t, nil, m)
	if got := points(); !slices.Equal(got, []string{found.Path + "/" + below[len(dir)+1:]}) {
		t.Errorf("on %v", got)
	}
	if err := os.Remove(below); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the cgroup is gone", func() bool { return len(points()) == 0 })
	status, err := get(t.Context(), n, resource.Module, "fast")
	if err != nil {
		t.Fatal(err)
	}
	if c := condition(status.Status, "Placed"); c.Status != "False" || !strings.Contains(c.Message, below) {
		t.Errorf("%+v", c)
	}
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "it is back", func() bool { return len(points()) == 1 })
	if err := os.Remove(below); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the cgroup is gone again", func() bool { return len(points()) == 0 })
	m.Spec.Config = map[string]any{"only_port": 80}
	n.apply(t, nil, m)
}

func TestSocketsRefuseOtherAttachPoints(t *testing.T) {
	n, dir := newSocketsNode(t)
	onSockets, onPackets := testPackage(t, "sockets"), testPackage(t, "pass")
	for field, c := range map[string]struct {
		pkg    string
		attach v1.Attach
		policy v1.FailurePolicy
	}{
		"spec.attach.interfaces": {pkg: onSockets, attach: v1.Attach{Interfaces: []string{"lo"}}},
		"spec.attach.cgroups":    {pkg: onPackets, attach: v1.Attach{Cgroups: []string{dir}}},
		"spec.attach.cgroups[0]": {pkg: onSockets, attach: v1.Attach{Cgroups: []string{dir + "/nowhere"}}},
		"spec.attach":            {pkg: onSockets},
		"spec.failurePolicy":     {pkg: onSockets, attach: v1.Attach{Services: "*"}, policy: v1.FailClosed},
	} {
		m := module("fast", c.pkg, "", nil)
		m.Spec.Attach, m.Spec.FailurePolicy = c.attach, c.policy
		_, err := n.Apply(t.Context(), resource.Request{Resources: resource.Objects(m)})
		var invalid *apierrors.Invalid
		if !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// The agent's cgroup may come later than the agent, and a module whose cgroup has gone can still be changed.
func TestSocketsOfCgroupsThatComeLate(t *testing.T) {
	dir := cgrouptest.New(t, "", "kag")
	below := cgrouptest.New(t, dir, "late")
	if err := os.Remove(below); err != nil {
		t.Fatal(err)
	}
	n := newNodeIn(t, below)
	m := module("fast", testPackage(t, "sockets"), "*", nil)
	m.Spec.Attach.Cgroups = []string{dir}
	n.apply(t, n.both(), m)
	placed := func() v1.Condition { return condition(n.status(t, "fast"), "Placed") }
	if c := placed(); c.Status != "False" || !strings.Contains(c.Message, below) {
		t.Errorf("%+v", c)
	}
	m.Spec.Config = map[string]any{"only_port": 80}
	n.apply(t, nil, m)
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the module is on the services", func() bool {
		return placed().Status == "True" && len(n.status(t, "fast").Attachments) == 3
	})
}

func TestSocketsBesideOthers(t *testing.T) {
	n, dir := newSocketsNode(t)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "foreign", Type: ebpf.SockOps,
		AttachType: ebpf.AttachCGroupSockOps, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	l, err := link.AttachCgroup(link.CgroupOptions{Path: dir, Attach: ebpf.AttachCGroupSockOps, Program: prog})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	m := module("fast", testPackage(t, "sockets"), "", nil)
	m.Spec.Attach.Cgroups = []string{dir}
	n.apply(t, nil, m)
	got, err := get(t.Context(), n, resource.Module, "fast")
	if err != nil {
		t.Fatal(err)
	}
	if c := condition(got.Status, "Placed"); c.Status != "True" || !strings.Contains(c.Message, "foreign (id ") ||
		strings.Contains(c.Message, "kerb_") {
		t.Errorf("%+v", c)
	}
}

// A module that cannot run any more leaves its connections to TCP, and stops no packets.
func TestSocketsFailOpen(t *testing.T) {
	n, _ := newSocketsNode(t)
	pkg := socketsPackage(t)
	n.apply(t, n.both(), module("fast", pkg, "*", nil))
	n.stop()
	if err := os.RemoveAll(pkg); err != nil {
		t.Fatal(err)
	}
	n.start(t)
	wait.Until(t, "nothing runs", func() bool {
		state, err := n.Dataplane.Observe()
		return err == nil && len(state.Chains) == 0
	})
	talk(t, n.web, n.db, "plain")
}
