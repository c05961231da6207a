// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// answering is a host with a program that answers a peer on another host.
type answering struct {
	t         *testing.T
	own, peer *netlab.Host
	at        *net.UDPConn // the socket of the peer
	ends      Peer
}

func newAnswering(t *testing.T, six bool) *answering {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	lab, err := netlab.NewIn("icpt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Close() })
	a := &answering{t: t}
	for name, at := range map[string]**netlab.Host{"own": &a.own, "peer": &a.peer} {
		if *at, err = lab.Host(name, netlab.HostOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	own, peer := a.own.Addr4(), a.peer.Addr4()
	if six {
		own, peer = a.own.Addr6(), a.peer.Addr6()
	}
	a.ends = Peer{Remote: netip.AddrPortFrom(peer, 4000), Own: netip.AddrPortFrom(own, 5005)}
	if err := a.peer.Do(func() (err error) {
		a.at, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(a.ends.Remote))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.at.Close() })
	return a
}

// link returns the host's interface. The caller must be in the host's namespace.
func (a *answering) link() netlink.Link {
	a.t.Helper()
	l, err := netlink.LinkByName(a.own.Interface())
	if err != nil {
		a.t.Fatal(err)
	}
	return l
}

// launchTimes has the launch times of packets that leave the host, as seen by the kernel.
type launchTimes struct{ seen *ebpf.Map }

const (
	lastTime  = uint32(0)
	timeCount = uint32(1)
	tstamp    = 152 // offset in struct __sk_buff
)

// watchLaunches attaches a program that records the launch times of packets.
func (a *answering) watchLaunches() launchTimes {
	a.t.Helper()
	seen, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 2})
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { seen.Close() })
	find := func(key uint32) asm.Instructions {
		return asm.Instructions{asm.StoreImm(asm.RFP, -4, int64(key), asm.Word), asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4), asm.LoadMapPtr(asm.R1, seen.FD()), asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "exit")}
	}
	code := asm.Instructions{asm.LoadMem(asm.R6, asm.R1, tstamp, asm.DWord), asm.JEq.Imm(asm.R6, 0, "exit")}
	code = append(append(code, find(lastTime)...), asm.StoreMem(asm.R0, 0, asm.R6, asm.DWord))
	code = append(append(code, find(timeCount)...), asm.Mov.Imm(asm.R1, 1), asm.StoreXAdd(asm.R0, asm.R1, asm.DWord))
	code = append(code, asm.Mov.Imm(asm.R0, -1).WithSymbol("exit"), asm.Mov.Imm(asm.R0, -1), asm.Return())
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: code})
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { prog.Close() })
	err = a.own.Do(func() error {
		l, err := link.AttachTCX(link.TCXOptions{Interface: a.link().Attrs().Index, Program: prog,
			Attach: ebpf.AttachTCXEgress})
		if err == nil {
			a.t.Cleanup(func() { l.Close() })
		}
		return err
	})
	if errors.Is(err, ebpf.ErrNotSupported) {
		a.t.Skip(err) // TCX: Linux 6.6
	}
	if err != nil {
		a.t.Fatal(err)
	}
	return launchTimes{seen}
}

func (l launchTimes) get(t *testing.T, key uint32) (n int64) {
	t.Helper()
	if err := l.seen.Lookup(key, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// answerer answers the peer with a launch time (0: none), and returns an error or "0", and the counts timed, late and
// dropped.
type answerer func(at int64) string

// byGo returns a receiver of this package in the host.
func (a *answering) byGo() *Receiver {
	a.t.Helper()
	r, err := Open(newModule(a.t).path, "ctrl", Options{KeepPriority: true})
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = r.Close() })
	return r
}

func (a *answering) answererGo() answerer {
	r, ends := a.byGo(), a.ends
	ends.Own = netip.AddrPortFrom(ends.Own.Addr(), 5006) // the C program's socket remains bound to the other port
	return func(at int64) (said string) {
		err := a.own.Do(func() error {
			if at == 0 {
				return r.Send(ends, []byte("answer"))
			}
			return r.SendAt(ends, []byte("answer"), at)
		})
		said = "0"
		if err != nil {
			said = err.Error()
		}
		if l := r.Launches(); at != 0 {
			said += fmt.Sprintf(" %d %d %d", l.Timed, l.Late, l.Dropped)
		}
		return said
	}
}

func (a *answering) answererC() answerer {
	cmd := a.own.Command(a.t.Context(), compileC(a.t, "reply.c"), newModule(a.t).path, "ctrl")
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	lines := bufio.NewReader(out)
	return func(at int64) string {
		p := from(a.ends.Remote, a.ends.Own)
		_, _ = fmt.Fprintf(in, "%d %d %d %d %x\n", p.L3, p.L4, p.Flags, at, p.Frame)
		line, err := lines.ReadString('\n')
		if err != nil {
			a.t.Fatal(err)
		}
		return strings.TrimSpace(line)
	}
}

func clockNow(clock int32) int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(clock, &ts)
	return ts.Nano()
}

// expect receives a datagram, which must not arrive before a time.
func (a *answering) expect(text string, clock int32, notBefore int64) {
	a.t.Helper()
	b := make([]byte, 100)
	_ = a.at.SetReadDeadline(time.Now().Add(30 * time.Second))
	n, _, err := a.at.ReadFromUDPAddrPort(b)
	if early := notBefore - clockNow(clock); err != nil || string(b[:n]) != text || early > 0 {
		a.t.Fatalf("%q, %v, %d ns too early; want %q", b[:n], err, early, text)
	}
}

// The kernel gets exactly the launch times of programs in C and Go, and none with other answers. An interface without a
// queueing discipline for launch times sends at once.
func TestLaunchTimesReachTheKernel(t *testing.T) { bothFamilies(t, launchTimesReachTheKernel) }

func launchTimesReachTheKernel(t *testing.T, six bool) {
	a := newAnswering(t, six)
	times := a.watchLaunches()
	for name, answer := range map[string]answerer{"C": a.answererC(), "Go": a.answererGo()} {
		before := times.get(t, timeCount)
		future := clockNow(unix.CLOCK_MONOTONIC) + int64(time.Hour)
		for i, step := range []struct {
			at   int64
			said string
		}{{0, "0"}, {future, "0 1 0 0"}, {1, "0 2 1 0"}, {0, "0"}, {future + 1, "0 3 1 0"}} {
			if said := answer(step.at); said != step.said {
				t.Fatalf("%s, IPv6 %v, answer %d: %s, want %s", name, six, i, said, step.said)
			}
			a.expect("answer", unix.CLOCK_MONOTONIC, 0)
			if got := times.get(t, lastTime); step.at != 0 && got != step.at {
				t.Errorf("%s, IPv6 %v: launch time %d, want %d", name, six, got, step.at)
			}
		}
		if n := times.get(t, timeCount) - before; n != 3 {
			t.Errorf("%s, IPv6 %v: %d packets with a launch time, want 3", name, six, n)
		}
	}
}

// etfParms is TCA_ETF_PARMS, whose value is struct tc_etf_qopt.
const etfParms = 1

// qdisc sets the queueing discipline of the host's interface, or skips the test if the kernel lacks the kind.
func (a *answering) qdisc(kind string, parms []byte) {
	a.t.Helper()
	err := a.own.Do(func() error {
		r := nl.NewNetlinkRequest(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
		r.AddData(&nl.TcMsg{Ifindex: int32(a.link().Attrs().Index), Parent: netlink.HANDLE_ROOT})
		r.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated(kind)))
		if parms != nil {
			options := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
			options.AddRtAttr(etfParms, parms)
			r.AddData(options)
		}
		_, err := r.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
	if errors.Is(err, unix.ENOENT) {
		a.t.Skipf("this kernel has no %s: go run ./test/kernels -kernels 6.12 -pkgs ./intercept -run TestLaunchBy", kind)
	}
	if err != nil {
		a.t.Fatalf("%s: %v", kind, err)
	}
}

// sendThree sends three answers in the reverse order of their launch times, which are after first.
func (a *answering) sendThree(r *Receiver, first int64) {
	a.t.Helper()
	if err := a.own.Do(func() error {
		var errs []error
		for i, text := range []string{"third", "second", "first"} {
			errs = append(errs, r.SendAt(a.ends, []byte(text), first+int64(2-i)*int64(100*time.Millisecond)))
		}
		return errors.Join(errs...)
	}); err != nil {
		a.t.Fatal(err)
	}
}

// sending returns a receiver that only answers, since emulated kernels have no module to open.
func sending(t *testing.T) *Receiver {
	r := &Receiver{ring: &ring{}}
	t.Cleanup(func() {
		for i := range r.senders {
			r.senders[i].close()
		}
	})
	return r
}

// With fq, answers leave in the order of their launch times and no earlier. Late ones leave at once, and those beyond
// its horizon never.
func TestLaunchByFQ(t *testing.T) { bothFamilies(t, launchByFQ) }

func launchByFQ(t *testing.T, six bool) {
	a := newAnswering(t, six)
	a.qdisc("fq", nil)
	r := sending(t)
	first := clockNow(unix.CLOCK_MONOTONIC) + int64(2*time.Second) // a busy machine may stall
	a.sendThree(r, first)
	for i, text := range []string{"first", "second", "third"} {
		a.expect(text, unix.CLOCK_MONOTONIC, first+int64(i)*int64(100*time.Millisecond))
	}
	if err := a.own.Do(func() error {
		return errors.Join(r.SendAt(a.ends, []byte("never"), clockNow(unix.CLOCK_MONOTONIC)+int64(time.Hour)),
			r.SendAt(a.ends, []byte("late"), first))
	}); err != nil {
		t.Fatal(err)
	}
	a.expect("late", unix.CLOCK_MONOTONIC, 0)
	if l := r.Launches(); l.Timed != 5 || l.Late < 1 || l.Late > 4 || l.Dropped != 0 {
		t.Errorf("%+v", l)
	}
}

// With etf, answers leave in the order of their launch times, at most its delta before them. Late ones are dropped and
// reported.
func TestLaunchByETF(t *testing.T) { bothFamilies(t, launchByETF) }

func launchByETF(t *testing.T, six bool) {
	const delta = 2 * time.Second // 31 bits of ns
	a := newAnswering(t, six)
	// etf drops packets without a launch time, such as neighbour discovery
	if err := a.own.Do(func() error {
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: a.link().Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: a.ends.Remote.Addr().AsSlice(), HardwareAddr: a.peer.MAC()})
	}); err != nil {
		t.Fatal(err)
	}
	parms := binary.NativeEndian.AppendUint32(nil, uint32(delta.Nanoseconds()))
	parms = binary.NativeEndian.AppendUint32(parms, unix.CLOCK_TAI)
	a.qdisc("etf", binary.NativeEndian.AppendUint32(parms, 0))
	r := sending(t)
	if err := r.SetLaunchClock(unix.CLOCK_TAI); err != nil {
		t.Fatal(err)
	}
	if err := a.own.Do(func() error {
		return r.SendAt(a.ends, []byte("late"), clockNow(unix.CLOCK_TAI)-int64(time.Second))
	}); err != nil {
		t.Fatal(err)
	}
	first := clockNow(unix.CLOCK_TAI) + int64(delta+200*time.Millisecond)
	a.sendThree(r, first)
	for i, text := range []string{"first", "second", "third"} {
		a.expect(text, unix.CLOCK_TAI, first+int64(i)*int64(100*time.Millisecond)-int64(delta))
	}
	if l := r.Launches(); l != (Launches{Timed: 4, Late: 1, Dropped: 1}) {
		t.Errorf("%+v", l)
	}
}

// Clocks that no queueing discipline uses are rejected.
func TestLaunchClocks(t *testing.T) {
	r := &Receiver{}
	for clock, fine := range map[int32]bool{unix.CLOCK_MONOTONIC: true, unix.CLOCK_TAI: true, unix.CLOCK_REALTIME: false,
		99: false} {
		if err := r.SetLaunchClock(clock); (err == nil) != fine {
			t.Errorf("clock %d: %v", clock, err)
		}
	}
}

// bothFamilies runs a test with IPv4 and with IPv6.
func bothFamilies(t *testing.T, test func(t *testing.T, six bool)) {
	t.Run("IPv4", func(t *testing.T) { test(t, false) })
	t.Run("IPv6", func(t *testing.T) { test(t, true) })
}
