// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/pintest"
)

// world is two hosts on a bridge and a data plane whose pins are the test's own.
type world struct {
	*Dataplane
	a, b *netlab.Host
	root string
}

func newWorld(t *testing.T, opts Options) *world {
	t.Helper()
	needsRoot(t)
	lab, err := netlab.New("kdp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Close() })
	w := &world{root: pintest.New(t)}
	if w.a, err = lab.Host("a", netlab.HostOptions{}); err != nil {
		t.Fatal(err)
	}
	if w.b, err = lab.Host("b", netlab.HostOptions{}); err != nil {
		t.Fatal(err)
	}
	opts.Root = w.root
	if w.Dataplane, err = Open(opts); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer w.Close()
		if err := w.Purge(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(w.root); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("purge left %s: %v", w.root, err)
		}
	})
	return w
}

// deploy makes what is missing and puts the chain on a point.
func (w *world) deploy(t *testing.T, p chain.Point, dir chain.Direction, mods ...Module) chain.Spec {
	t.Helper()
	spec := chain.Spec{Side: p.Side, Direction: dir}
	byName := map[string]Module{}
	state, err := w.Observe()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mods {
		from := ""
		if ids := state.MapSets[m.Name]; len(ids) > 0 {
			from = ids[0]
		}
		if err := create(w.Dataplane, m, from); err != nil {
			t.Fatal(err)
		}
		byName[m.Name] = m
		spec.Members = append(spec.Members, chain.Member{Name: m.Name, ID: m.ID, FailClosed: m.FailClosed})
	}
	if err := w.CreateChain(spec, byName); err != nil {
		t.Fatal(err)
	}
	if err := w.Attach(p, spec); err != nil {
		t.Fatal(err)
	}
	return spec
}

// passes reports whether UDP packets from host a to a port of host b arrive, however slow the machine or the bridge is
// at first.
func (w *world) passes(t *testing.T, port int) bool { return w.send(t, port, 100) }

// dropped reports that none does.
func (w *world) dropped(t *testing.T, port int) bool { return !w.send(t, port, 5) }

// send reports whether one of so many packets arrives.
func (w *world) send(t *testing.T, port, packets int) bool {
	t.Helper()
	var server, client net.PacketConn
	listen := func(c *net.PacketConn, addr netip.Addr, port int) func() error {
		return func() (err error) {
			*c, err = net.ListenPacket("udp4", netip.AddrPortFrom(addr, uint16(port)).String())
			return err
		}
	}
	if err := w.b.Do(listen(&server, w.b.Addr4(), port)); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if err := w.a.Do(listen(&client, w.a.Addr4(), 0)); err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for range packets {
		if _, err := client.WriteTo([]byte("kerb"), server.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 16)
		server.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		if n, _, err := server.ReadFrom(buf); err == nil {
			return bytes.Equal(buf[:n], []byte("kerb"))
		}
	}
	return false
}

func testAttach(t *testing.T, opts Options, side chain.Side, dir chain.Direction, host func(*world) *netlab.Host) {
	w := newWorld(t, opts)
	p := chain.Point{Ifindex: host(w).OuterIndex(), Side: side}
	if !w.passes(t, 53) {
		t.Fatal("no connection before anything is attached")
	}
	w.deploy(t, p, dir, testModule(t, "pass", "count", nil), testModule(t, "drop", "dropper", map[string]any{"port": 53}))
	if !w.dropped(t, 53) || !w.passes(t, 54) {
		t.Error("the chain does not drop port 53 alone")
	}
	w.deploy(t, p, dir, testModule(t, "drop", "dropper", map[string]any{"port": 54}), testModule(t, "pass", "count", nil))
	if !w.passes(t, 53) || !w.dropped(t, 54) {
		t.Error("the replaced chain does not drop port 54 alone")
	}
	w.checkCarriedOver(t, p)
	state, err := w.Observe()
	if err != nil || len(state.Points) != 1 || state.Points[0].Point != p || len(state.Chains) != 2 {
		t.Fatalf("observed %+v (%v)", state, err)
	}
	if state.Points[0].Program == 0 {
		t.Errorf("nothing runs on %+v", state.Points[0])
	}
	w.checkCheap(t, p)
	if mode, programs := w.Mode(p), w.Programs(p); len(programs) != 1 || mode == "" {
		t.Errorf("on %s in mode %q: %v", p, mode, programs)
	}
	if err := w.Detach(p); err != nil {
		t.Fatal(err)
	}
	if !w.passes(t, 54) {
		t.Error("detached chain still drops")
	}
}

// checkCheap: each change asks what runs on each of many attach points. package link opens a file of /proc for each,
// and leaves 20 pieces of garbage.
func (w *world) checkCheap(t *testing.T, p chain.Point) {
	t.Helper()
	if _, err := os.Stat(w.layout.link(p)); err != nil {
		return // clsact has no links
	}
	n := testing.AllocsPerRun(10, func() {
		if _, err := w.readLink(p); err != nil {
			t.Error(err)
		}
	})
	if n > 10 {
		t.Errorf("to read what a link runs takes %v allocations", n)
	}
}

// checkCarriedOver: the counter has seen packets under both chains, so its map must have outlived the first.
func (w *world) checkCarriedOver(t *testing.T, p chain.Point) {
	t.Helper()
	state, _ := w.Observe()
	m, err := w.Maps("count", state.MapSets["count"][0])
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := counted(t, m["totals"]); n == 0 {
		t.Errorf("%s: the counter saw nothing", p)
	}
	drops, err := w.Maps("dropper", state.MapSets["dropper"][len(state.MapSets["dropper"])-1])
	if err != nil {
		t.Fatal(err)
	}
	if n, err := Drops(drops); err != nil || n[1] < 10 {
		t.Errorf("%s: %d drops over both map sets, want at least 10 (%v)", p, n[1], err)
	}
}

func hostA(w *world) *netlab.Host { return w.a }
func hostB(w *world) *netlab.Host { return w.b }

func TestAttachTCIngress(t *testing.T) {
	testAttach(t, Options{}, chain.OnTCIngress, chain.Egress, hostA)
}
func TestAttachTCEgress(t *testing.T) {
	testAttach(t, Options{}, chain.OnTCEgress, chain.Ingress, hostB)
}
func TestAttachXDP(t *testing.T) { testAttach(t, Options{}, chain.OnXDP, chain.Egress, hostA) }
func TestAttachClsact(t *testing.T) {
	t.Run("first", func(t *testing.T) { testAttach(t, Options{NoTCX: true}, chain.OnTCIngress, chain.Egress, hostA) })
	t.Run("last", func(t *testing.T) {
		testAttach(t, Options{NoTCX: true, Last: true}, chain.OnTCEgress, chain.Ingress, hostB)
	})
}

// Without TCX there is no pinned link that shows whose a filter is.
func TestAgentsShareClsact(t *testing.T) {
	w := newWorld(t, Options{NoTCX: true})
	p := chain.Point{Ifindex: w.a.OuterIndex(), Side: chain.OnTCIngress}
	w.deploy(t, p, chain.Egress, testModule(t, "pass", "mine", nil))
	other, err := Open(Options{Root: pintest.New(t), NoTCX: true})
	if err != nil {
		t.Fatal(err)
	}
	if state, err := other.Observe(); err != nil || len(state.Points) != 0 {
		t.Errorf("the other agent takes for its own: %+v, %v", state.Points, err)
	}
	if err := other.Purge(); err != nil {
		t.Error(err)
	}
	if state, err := w.Observe(); err != nil || len(state.Points) != 1 {
		t.Errorf("after the other agent's purge: %+v, %v", state.Points, err)
	}
}

// A second data plane on the same pins, as after a restart, finds what runs and leaves it alone.
func TestReopenFindsAll(t *testing.T) {
	w := newWorld(t, Options{})
	p := chain.Point{Ifindex: w.a.OuterIndex(), Side: chain.OnTCIngress}
	spec := w.deploy(t, p, chain.Egress, testModule(t, "drop", "dropper", map[string]any{"port": 53}))
	before, _ := w.Observe()
	again, err := Open(Options{Root: w.root})
	if err != nil {
		t.Fatal(err)
	}
	after, err := again.Observe()
	if err != nil || after.Points[0].Program != before.Points[0].Program || after.Chains[0].ID != spec.ID() ||
		after.Chains[0].Spec.ID() != spec.ID() {
		t.Errorf("before %+v, after %+v (%v)", before, after, err)
	}
}

// What a killed agent was building is gone after the next start.
func TestOpenSweepsHalfBuilt(t *testing.T) {
	w := newWorld(t, Options{})
	tmp := filepath.Join(w.root, "chains", "tmp_tc-ingress_egress_0123456789")
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Root: w.root}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(tmp); !errors.Is(err, os.ErrNotExist) {
		t.Error("half-built chain is still there")
	}
}

func TestVanishedInterface(t *testing.T) {
	w := newWorld(t, Options{})
	for _, side := range []chain.Side{chain.OnTCIngress, chain.OnXDP} {
		w.deploy(t, chain.Point{Ifindex: w.a.OuterIndex(), Side: side}, chain.Egress, testModule(t, "pass", "count", nil))
	}
	if err := netlink.LinkDel(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: w.a.OuterIndex()}}); err != nil {
		t.Fatal(err)
	}
	state, err := w.Observe()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range state.Points {
		if a.Program != 0 {
			t.Errorf("%s still has program %d", a.Point, a.Program)
		}
		if err := w.Detach(a.Point); err != nil {
			t.Errorf("detach from a vanished interface: %v", err)
		}
	}
	spec := chain.Spec{Side: chain.OnTCIngress, Direction: chain.Egress,
		Members: []chain.Member{{Name: "count", ID: testModule(t, "pass", "count", nil).ID}}}
	if err := w.Attach(chain.Point{Ifindex: w.a.OuterIndex(), Side: chain.OnTCIngress}, spec); !errors.Is(err,
		chain.ErrGone) {
		t.Errorf("attach to a vanished interface: %v, want chain.ErrGone", err)
	}
}

func TestForeignXDPIsLeftAlone(t *testing.T) {
	w := newWorld(t, Options{})
	foreign := load(t, chain.OnXDP, chain.Egress, testModule(t, "pass", "foreign", nil))
	l, err := attachXDP(w.a.OuterIndex(), foreign.Program)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	m := testModule(t, "pass", "count", nil)
	spec := chain.Spec{Side: chain.OnXDP, Direction: chain.Egress, Members: []chain.Member{{Name: m.Name, ID: m.ID}}}
	if err := create(w.Dataplane, m, ""); err != nil {
		t.Fatal(err)
	}
	if err := w.CreateChain(spec, map[string]Module{m.Name: m}); err != nil {
		t.Fatal(err)
	}
	if err := w.Attach(chain.Point{Ifindex: w.a.OuterIndex(), Side: chain.OnXDP}, spec); !errors.Is(err, chain.ErrBusy) {
		t.Errorf("attach where a foreign program is: %v, want chain.ErrBusy", err)
	}
}

func TestOpenWithoutBPFFS(t *testing.T) {
	if _, err := Open(Options{Root: t.TempDir()}); !errors.Is(err, ErrNotMounted) {
		t.Errorf("open outside a BPF file system: %v, want ErrNotMounted", err)
	}
}
