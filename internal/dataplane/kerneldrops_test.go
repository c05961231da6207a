// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/lab/droptest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// What the kernel drops behind a chain has an event with the kernel's reason, for the session that wants it. Packets
// that arrive have none, nor have those of others. Where the kernel does not report drops, the session says so,
// and has the rest.
func TestKernelDrops(t *testing.T) {
	w := newWorld(t, Options{})
	p := chain.Point{Ifindex: w.b.OuterIndex(), Side: chain.OnTCEgress}
	pass := testModule(t, "pass", "count", nil)
	spec := w.deploy(t, p, chain.Ingress, pass)
	trace := func(f TraceFilter) *Trace {
		t.Helper()
		s, err := w.Trace(f, map[chain.Point]chain.Spec{p: spec}, map[string]Module{"count": pass})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}
	plain := trace(TraceFilter{Port: 9})
	if watched(t) {
		t.Error("the kernel's drops are watched, which no session wants")
	}
	s := trace(TraceFilter{Port: 9, After: true})
	shown := droptest.Shown()
	if watched(t) != (shown == nil) || errors.Is(s.Missing(), ErrKernelDrops) != (shown != nil) || plain.Missing() != nil {
		t.Fatalf("the session lacks %v, the kernel shows drops: %v", s.Missing(), shown)
	}
	if shown != nil {
		t.Logf("drops are not shown: %v", s.Missing())
	}
	w.drop(t, 10)
	w.drop(t, 9)
	if !w.passes(t, 9) { // arrives, as something listens now
		t.Error("the chain does not pass what the plain one passes")
	}
	want := map[string]int{}
	if shown == nil {
		want = map[string]int{"udp4 NO_SOCKET": 1, "udp6 NO_SOCKET": 1, "tcp4 NO_SOCKET": 1, "udp4 UDP_CSUM": 1}
	}
	packets, drops := kernelDropped(t, s)
	if diff := cmp.Diff(want, drops); diff != "" || packets < 5 {
		t.Errorf("%d packets; their drops, want (-), got (+):\n%s", packets, diff)
	}
	if packets, drops := kernelDropped(t, plain); packets < 5 || len(drops) != 0 {
		t.Errorf("the session that does not want drops: %d packets, %v", packets, drops)
	}
	s.Close()
	wait.Until(t, "no program sees drops after the session that wanted them", func() bool { return !watched(t) })
	if err := w.Attach(p, spec); err != nil {
		t.Fatal(err)
	}
}

// watched reports whether a program of this process is loaded that sees what the kernel drops.
func watched(t *testing.T) bool {
	t.Helper()
	for id := ebpf.ProgramID(0); ; {
		next, err := ebpf.ProgramGetNextID(id)
		if errors.Is(err, os.ErrNotExist) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		id = next
		prog, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // removed meanwhile
		}
		info, err := prog.Info()
		prog.Close()
		if err == nil && info.Type == ebpf.RawTracepoint && strings.HasPrefix("kerb_kernel_drop", info.Name) {
			return true
		}
	}
}

// drop sends packets to b that the kernel drops there: to a port on which nothing listens, and one whose checksum is
// wrong.
func (w *world) drop(t *testing.T, port uint16) {
	t.Helper()
	err := w.a.Do(func() error {
		for network, addr := range map[string]netip.Addr{"udp4": w.b.Addr4(), "udp6": w.b.Addr6(), "tcp4": w.b.Addr4()} {
			c, err := net.Dial(network, netip.AddrPortFrom(addr, port).String())
			if network == "tcp4" && errors.Is(err, syscall.ECONNREFUSED) {
				continue
			}
			if err != nil {
				return err
			}
			_, err = c.Write([]byte("kernel"))
			if err := errors.Join(err, c.Close()); err != nil {
				return err
			}
		}
		return sendWrongSum(w.b.Addr4(), port)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func sendWrongSum(to netip.Addr, port uint16) error {
	const header = 8
	c, err := net.Dial("ip4:udp", to.String())
	if err != nil {
		return err
	}
	defer c.Close()
	datagram := make([]byte, header+4)
	for i, field := range []uint16{4000, port, uint16(len(datagram)), 1} {
		binary.BigEndian.PutUint16(datagram[2*i:], field)
	}
	_, err = c.Write(datagram)
	return err
}

// kernelDropped reads what a session has: the number of packets, and the kernel's drops of them by protocol and reason.
func kernelDropped(t *testing.T, s *Trace) (packets int, drops map[string]int) {
	t.Helper()
	trace, drops := map[uint64]string{}, map[string]int{}
	for {
		e, err := s.Read(time.Now().Add(time.Second))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return packets, drops
		}
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case e.Head():
			packets++
			trace[e.Trace] = fmt.Sprint(map[uint8]string{6: "tcp", 17: "udp"}[e.Proto], e.Family)
		case e.KernelDropped():
			reason, function := e.KernelReason()
			if !strings.Contains(function, "_rcv") || trace[e.Trace] == "" || e.Time == 0 {
				t.Errorf("dropped in %q: %+v", function, e)
			}
			drops[trace[e.Trace]+" "+reason]++
		case kerbabi.Verdict(e.Verdict) != kerbabi.Next:
			t.Errorf("the module: %+v", e)
		}
	}
}
