// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/control"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/sdk"
)

func virtualService(name string, addresses []string, instances ...v1.VirtualInstance) v1.VirtualService {
	s := v1.VirtualService{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindVirtualService},
		Metadata: v1.ObjectMeta{Name: name}}
	for _, a := range addresses {
		s.Spec.Addresses = append(s.Spec.Addresses, v1.VirtualAddress{Address: a})
	}
	s.Spec.Instances = instances
	return s
}

func (n *node) applyVirtual(t *testing.T, all ...v1.VirtualService) v1.ApplyResult {
	t.Helper()
	r, err := n.Apply(t.Context(), resource.Request{Resources: resource.Objects(all...)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// ask sends a request to a module's own routes.
func (n *node) ask(t *testing.T, name, method, path string, body io.Reader) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	if err := n.ServeModule(w, httptest.NewRequest(method, path, body), name); err != nil {
		return http.StatusServiceUnavailable, err.Error()
	}
	return w.Code, w.Body.String()
}

func (n *node) probe(t *testing.T) (s probeState) {
	t.Helper()
	if status, text := n.ask(t, "probe", "GET", "/state", nil); status == http.StatusOK {
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// has waits until the probe has a virtual service with these instances, nil for none.
func (n *node) has(t *testing.T, name string, want ...string) {
	t.Helper()
	var last probeState
	defer func() {
		if t.Failed() {
			t.Logf("the probe has %+v", last.Services)
		}
	}()
	wait.Until(t, fmt.Sprintf("%s has %v", name, want), func() bool {
		last = n.probe(t)
		s, ok := last.Services[name]
		return last.Running && ok == (want != nil) && slices.Equal(sortedTargets(s), want)
	})
}

func (n *node) virtualCondition(t *testing.T, name, kind string) string {
	t.Helper()
	s, err := get(t.Context(), n, resource.VirtualService, name)
	if err != nil {
		return err.Error()
	}
	for _, c := range s.Status.Conditions {
		if c.Type == kind {
			return c.Status + " " + c.Reason + " " + c.Message
		}
	}
	return ""
}

// Virtual services reach control planes as they come, change and go, after every kind of new beginning, and without a
// change of what runs in the kernel.
func TestVirtualServices(t *testing.T) {
	n := newNode(t)
	dir := probePackage(t)
	remote := v1.VirtualInstance{Name: "far", Addresses: []string{"10.200.0.9"}, Node: "198.51.100.9"}
	n.applyVirtual(t, virtualService("early", []string{"10.230.0.1"}, remote))
	if got := n.virtualCondition(t, "early", "Programmed"); !strings.HasPrefix(got, "False NoModule") {
		t.Error(got)
	}
	n.apply(t, n.both(), module("probe", dir, "*", nil))
	far := "far[10.200.0.9]198.51.100.9"
	n.has(t, "early", far)
	before := n.moduleID(t)

	local := v1.VirtualInstance{Name: "near", Service: "web"}
	near := fmt.Sprintf("near[%v %v]web", n.web.Addr4(), n.web.Addr6())
	if r := n.applyVirtual(t, virtualService("v", []string{"10.230.0.2", "fdff:2000::2"}, remote, local)); len(
		r.Steps) != 0 || r.Changes[0].Action != "create" {
		t.Errorf("%+v", r)
	}
	n.has(t, "v", far, near)
	wait.Until(t, "programmed", func() bool { return strings.HasPrefix(n.virtualCondition(t, "v", "Programmed"), "True") })
	if s, _ := get(t.Context(), n, resource.VirtualService, "v"); !slices.Equal(s.Status.Modules, []string{"probe"}) ||
		s.Metadata.Generation != 1 || s.Status.Source != v1.SourceStatic {
		t.Errorf("%+v", s)
	}
	if r := n.applyVirtual(t, virtualService("v", []string{"10.230.0.2", "fdff:2000::2"}, remote,
		local)); r.Changes[0].Action != "unchanged" {
		t.Errorf("%+v", r)
	}

	moved := netip.MustParsePrefix("192.0.2.77/24")
	if err := n.web.Do(func() error { return addAddress(n.web.Interface(), moved) }); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the instance arrives with its new address", func() bool {
		i := slices.IndexFunc(n.probe(t).Instances, func(i sdk.Attachment) bool { return i.Service == "web" })
		return i >= 0 && slices.Contains(n.probe(t).Instances[i].Addresses, moved.String())
	})
	n.applyVirtual(t, virtualService("v", []string{"10.230.0.2"}, remote))
	n.has(t, "v", far)
	n.apply(t, nil, module("another", testPackage(t, "pass"), "app=web", nil))
	wait.Until(t, "the chain of an instance arrives", func() bool {
		return slices.Contains(n.probe(t).Changes, "web true [probe another]")
	})
	n.remove(t, resource.Ref{Kind: v1.KindModule, Name: "another"})
	wait.Until(t, "and sent again", func() bool {
		all := n.probe(t).Changes
		return all[len(all)-1] == "web true [probe]" && !slices.ContainsFunc(all, func(c string) bool {
			return strings.Contains(c, "false")
		})
	})
	if after := n.moduleID(t); after != before {
		t.Errorf("the module has another map set: %s, then %s", before, after)
	}

	// A new beginning of every kind.
	n.killControl(t)
	n.has(t, "v", far)
	n.has(t, "early", far)
	n.apply(t, nil, module("probe", dir, "*", map[string]any{"number": 2})) // another map set, the same process
	n.has(t, "early", far)
	n.remove(t, resource.Ref{Kind: v1.KindVirtualService, Name: "early"})
	n.has(t, "early")
	n.stop()
	n.start(t)
	n.has(t, "v", far)
	n.has(t, "early")
	if status, _ := n.ask(t, "probe", "POST", "/want/10.230.9.9", nil); status != http.StatusOK {
		t.Error(status)
	}
	wait.Until(t, "what is wanted and unknown is answered", func() bool {
		return slices.Equal(n.probe(t).Unknown, []netip.Addr{netip.MustParseAddr("10.230.9.9")})
	})
}

// killControl ends the probe's control plane and waits for another.
func (n *node) killControl(t *testing.T) {
	t.Helper()
	state := func() control.State {
		n.Lock.Lock()
		defer n.Lock.Unlock()
		return n.Now.Modules["probe"].Control.State()
	}
	first := state()
	if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "another control plane", func() bool { s := state(); return s.Started && s.PID != first.PID })
}

// moduleID is the probe's map set in the kernel.
func (n *node) moduleID(t *testing.T) string {
	t.Helper()
	n.Lock.Lock()
	defer n.Lock.Unlock()
	return n.Now.Modules["probe"].Dataplane.ID
}

func addAddress(name string, p netip.Prefix) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(p.String())
	if err != nil {
		return err
	}
	return netlink.AddrAdd(l, a)
}

// An update that a control plane rejects is reported with the reason, and sent again.
func TestVirtualServicesRefused(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), module("probe", probePackage(t), "*", nil))
	wait.Until(t, "the probe runs", func() bool { return n.probe(t).Running })
	n.ask(t, "probe", "POST", "/refuse/true", nil)
	n.applyVirtual(t, virtualService("v", []string{"10.230.0.2"}))
	wait.Until(t, "the rejection is reported", func() bool {
		return strings.Contains(n.virtualCondition(t, "v", "Programmed"), "the table of the probe is full") &&
			strings.Contains(n.moduleCondition(t, "VirtualServices"), "the table of the probe is full")
	})
	n.ask(t, "probe", "POST", "/refuse/false", nil)
	wait.Until(t, "taken in the end", func() bool {
		return strings.HasPrefix(n.virtualCondition(t, "v", "Programmed"), "True") &&
			strings.HasPrefix(n.moduleCondition(t, "VirtualServices"), "True")
	})
}

func (n *node) moduleCondition(t *testing.T, kind string) string {
	t.Helper()
	m, err := get(t.Context(), n, resource.Module, "probe")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range m.Status.Conditions {
		if c.Type == kind {
			return c.Status + " " + c.Reason + " " + c.Message
		}
	}
	return ""
}

func TestVirtualServicesTogether(t *testing.T) {
	n := newNode(t)
	n.applyVirtual(t, virtualService("a", []string{"10.230.0.1"}))
	var conflict *apierrors.Conflict
	_, err := n.Apply(t.Context(),
		resource.Request{Resources: resource.Objects(virtualService("b", []string{"10.230.0.1"}))})
	if !errors.As(err, &conflict) {
		t.Errorf("an address twice: %v", err)
	}
	if _, err := get(t.Context(), n, resource.VirtualService, "b"); err == nil {
		t.Error("what was refused is there")
	}
	c := virtualService("c", []string{"10.230.0.3"})
	r, err := n.Apply(t.Context(), resource.Request{Resources: resource.Objects(c),
		DryRun: true})
	if err != nil || r.Changes[0].Action != "create" {
		t.Errorf("%+v, %v", r, err)
	}
	if all, _ := list(t.Context(), n, resource.VirtualService); len(all) != 1 {
		t.Errorf("after a dry run: %+v", all)
	}
	// Together with others it is one change.
	_, err = n.Apply(t.Context(), resource.Request{Resources: slices.Concat(resource.Objects(n.both()...),
		resource.Objects(virtualService("d", []string{"10.230.0.4"})),
		resource.Objects(module("x", "no-such-package", "*", nil)))})
	if _, missing := get(t.Context(), n, resource.VirtualService, "d"); err == nil || missing == nil {
		t.Errorf("of a failed change a part is there: %v", err)
	}
	if _, err = n.Apply(t.Context(),
		resource.Request{Resources: append(resource.Objects(n.both()...),
			resource.Objects(virtualService("d", []string{"10.230.0.4"}))...)}); err != nil {
		t.Fatal(err)
	}
	n.remove(t, resource.Ref{Kind: v1.KindVirtualService, Name: "a"}, resource.Ref{Kind: v1.KindService, Name: "db"})
	if all, _ := list(t.Context(), n, resource.VirtualService); len(all) != 1 || all[0].Metadata.Name != "d" {
		t.Errorf("after deleting: %+v", all)
	}
}

// datagram is a frame from one service to another, with a checksum as a service leaves it: a part only.
func datagram(t *testing.T, from, to *netlab.Host, port uint16, payload string) []byte {
	t.Helper()
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: from.Addr4().AsSlice(),
		DstIP: to.Addr4().AsSlice()}
	udp := &layers.UDP{SrcPort: 4000, DstPort: layers.UDPPort(port), Checksum: 0x1234}
	buf := gopacket.NewSerializeBuffer()
	udp.Length = uint16(8 + len(payload))
	err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{}, udp, gopacket.Payload(payload))
	if err != nil {
		t.Fatal(err)
	}
	transport := slices.Clone(buf.Bytes())
	eth := &layers.Ethernet{SrcMAC: from.MAC(), DstMAC: to.MAC(), EthernetType: layers.EthernetTypeIPv4}
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, ip,
		gopacket.Payload(transport)); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// counted is how many packets from a service the module count has seen.
func (n *node) counted(t *testing.T, h *netlab.Host) uint64 {
	t.Helper()
	_, text := n.ask(t, "count", "GET", "/counts", nil)
	var counts struct {
		Counts []struct {
			Interface, Direction string
			Packets              uint64
		}
	}
	if err := json.Unmarshal([]byte(text), &counts); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	total := uint64(0)
	for _, c := range counts.Counts {
		if c.Interface == h.Outer() && c.Direction == "egress" {
			total += c.Packets
		}
	}
	return total
}

// A control plane sends in the name of a service: the frame goes through the whole chain and arrives. It can do no more
// with the socket, and the socket goes with the service.
func TestInject(t *testing.T) {
	n := newNode(t)
	probe := module("probe", probePackage(t), "*", nil)
	probe.Spec.Order.After = []string{"count"}
	byInterface := serviceOf("web", n.web)
	byInterface.Spec = v1.ServiceSpec{Interface: n.web.Outer()}
	n.apply(t, []v1.Service{byInterface, serviceOf("db", n.db)}, module("count", "counter", "*", nil), probe)
	wait.Until(t, "sockets are there", func() bool {
		return strings.HasPrefix(n.moduleCondition(t, "Inject"), "True") && n.probe(t).Running
	})
	var in net.PacketConn
	if err := n.db.Do(func() (err error) {
		in, err = net.ListenPacket("udp4", fmt.Sprintf("%v:7777", n.db.Addr4()))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	send := func(payload string) {
		t.Helper()
		before := n.counted(t, n.web)
		frame := datagram(t, n.web, n.db, 7777, payload)
		if status, text := n.ask(t, "probe", "POST", fmt.Sprintf("/inject/%d", n.web.OuterIndex()),
			bytes.NewReader(frame)); status != http.StatusOK {
			t.Fatalf("inject: %d %s", status, text)
		}
		got := make([]byte, 100)
		_ = in.SetReadDeadline(time.Now().Add(patience))
		size, from, err := in.ReadFrom(got)
		if err != nil || string(got[:size]) != payload || from.String() != fmt.Sprintf("%v:4000", n.web.Addr4()) {
			t.Fatalf("received %q from %v: %v", got[:size], from, err)
		}
		if after := n.counted(t, n.web); after <= before {
			t.Errorf("the first module of the chain has seen %d packets, and %d before", after, before)
		}
	}
	send("once")
	n.killControl(t)
	send("after a restart")

	want := []string{"virtualServices", "models", "inject"}
	if p, err := n.Package(t.Context(), probe.Spec.Package); err != nil || !slices.Equal(p.Capabilities, want) {
		t.Errorf("the package does not say what it asks for: %+v, %v", p, err)
	}
	_, text := n.ask(t, "probe", "GET", "/misuse", nil)
	var tries map[string]string
	if err := json.Unmarshal([]byte(text), &tries); err != nil {
		t.Fatal(err)
	}
	for what, result := range tries {
		if result == "allowed" || what == "socket" || what == "receive" &&
			!strings.Contains(result, "resource temporarily unavailable") {
			t.Errorf("with the packet socket, %s: %s", what, result)
		}
	}
	if status, text := n.ask(t, "probe", "POST", fmt.Sprintf("/inject/%d", n.web.OuterIndex()),
		bytes.NewReader(make([]byte, 9000))); status != 500 || !strings.Contains(text, "larger than the MTU") {
		t.Errorf("a frame that is too large: %d %s", status, text)
	}
	if status, text := n.ask(t, "probe", "POST", "/inject/1", bytes.NewReader(make([]byte, 60))); status != 500 ||
		!strings.Contains(text, "cannot be sent in the name") {
		t.Errorf("where there is no service: %d %s", status, text)
	}
}

// A socket does not outlive the service that it is in, however the service is known.
func TestInjectLetsGo(t *testing.T) {
	n := newNode(t)
	var services []v1.Service
	for name, spec := range map[string]v1.ServiceSpec{"path": {Netns: "/run/netns/kag-path"},
		"face": {Interface: "kagface"}} {
		for _, line := range []string{"netns add kag-" + name, "link add kag" + name + " type veth peer name " +
			"eth0 netns kag-" + name,
			"link set kag" + name + " up", "-n kag-" + name + " link set eth0 up"} {
			if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
				t.Fatalf("ip %s: %v: %s", line, err, out)
			}
		}
		t.Cleanup(func() {
			_ = exec.Command("ip", "netns", "del", "kag-"+name).Run() // it should be gone
			_ = exec.Command("ip", "link", "del", "kag"+name).Run()
		})
		s := serviceOf(name, n.web)
		s.Spec = spec
		services = append(services, s)
	}
	n.apply(t, services, module("probe", probePackage(t), "*", nil))
	for name := range map[string]bool{"path": true, "face": true} {
		l, err := netlink.LinkByName("kag" + name)
		if err != nil {
			t.Fatal(err)
		}
		wait.Until(t, "a frame can be sent for "+name, func() bool {
			status, _ := n.ask(t, "probe", "POST", fmt.Sprintf("/inject/%d", l.Attrs().Index), bytes.NewReader(make([]byte, 60)))
			return status == http.StatusOK
		})
		if out, err := exec.Command("ip", "netns", "del", "kag-"+name).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		wait.Until(t, "nothing keeps "+name, func() bool {
			_, err := netlink.LinkByName("kag" + name)
			return err != nil
		})
	}
}
