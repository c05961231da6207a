// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk"
)

// twoCPUs calls the functions concurrently on different CPUs.
func twoCPUs(t *testing.T, call ...func() error) error {
	t.Helper()
	errs := make([]error, len(call))
	var started atomic.Int32
	var all sync.WaitGroup
	for i := range call {
		all.Go(func() {
			runtime.LockOSThread() // never unlocked, so that the thread exits with its affinity
			var one unix.CPUSet
			one.Set(i)
			if err := unix.SchedSetaffinity(0, &one); err != nil {
				errs[i] = err
			}
			for started.Add(1); int(started.Load()) < len(call); {
				runtime.Gosched()
			}
			if errs[i] == nil {
				errs[i] = call[i]()
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// needTwoCPUs skips a test on a single CPU, on which the directions of a connection cannot run concurrently.
func needTwoCPUs(t *testing.T) {
	t.Helper()
	notEmulated(t)
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		t.Fatal(err)
	}
	if !may.IsSet(0) || !may.IsSet(1) {
		t.Skip("needs two CPUs")
	}
}

// ruleChanges returns a function that assigns all connections to another rule set, by the identity that the data plane
// reads.
func (k *kernel) ruleChanges() (change func()) {
	k.t.Helper()
	m, err := k.maps.Get(sdk.TunablesMap)
	if err != nil {
		k.t.Fatal(err)
	}
	memory, err := unix.Mmap(m.FD(), 0, int(m.ValueSize()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { _ = unix.Munmap(memory) })
	const head = 8 + 2*16 // the half in use, and two identities
	half := *(*uint64)(unsafe.Pointer(&memory[0])) & 1
	at := head + int(half)*(len(memory)-head)/2
	generation := (*uint32)(unsafe.Pointer(&memory[at]))
	return func() { atomic.AddUint32(generation, 1) }
}

// endpoint is one side of a TCP connection, which sends while the other one does.
type endpoint struct {
	program *ebpf.Program
	ingress bool
	port    uint16
	next    uint32
	sent    atomic.Uint32 // highest byte that the other side may have received
	acked   atomic.Uint32 // its acknowledgement to the other side
}

func (e *endpoint) send(to *endpoint, flags uint8, length int) error {
	return e.sendWith(flags, length, to.sent.Load())
}

// sendWith sends a segment that acknowledges up to ack.
func (e *endpoint) sendWith(flags uint8, length int, ack uint32) error {
	p := tcp(svc4, e.port, far4, 443, flags)
	if e.ingress {
		p = tcp(far4, 443, svc4, e.port, flags)
	}
	p.Seq, p.Len, p.Win = e.next, length, 65535
	if flags&tcpACK != 0 {
		p.Ack = ack
	}
	ret, err := e.program.Run(&ebpf.RunOptions{Data: frame{Packet: p, payload: length}.bytes()})
	if err != nil {
		return err
	}
	if int32(ret) != tcNext {
		return fmt.Errorf("ingress %t, port %d: flags %#x, seq %d, ack %d, length %d is dropped", e.ingress, e.port, flags,
			p.Seq, p.Ack, length)
	}
	e.next = p.end()
	e.sent.Store(e.next)
	e.acked.Store(p.Ack)
	return nil
}

// talk sends segments within the other side's window.
func (e *endpoint) talk(to *endpoint, segments int, before func()) error {
	for range segments {
		for e.next-to.acked.Load() > 50000 {
			runtime.Gosched()
		}
		before()
		if err := e.send(to, tcpACK|tcpPSH, 100); err != nil {
			return err
		}
	}
	return nil
}

// Both directions of a connection run on two CPUs while the rules change and one side closes: no segment is lost, also
// if the table of established connections is full, so that the connection stays in the other one.
func TestDirectionsMeet(t *testing.T) {
	needTwoCPUs(t)
	t.Run("established", func(t *testing.T) { meet(t, loadFirewall(t, `{}`)) })
	t.Run("opening", func(t *testing.T) {
		k := loadFirewall(t, `{"state": {"maxConnections": 1}}`)
		if !k.establish(newTCPFlow(svc4, 1, far4, 443), 0) {
			t.Fatal("no handshake")
		}
		meet(t, k)
	})
}

func meet(t *testing.T, k *kernel) {
	change, ingress := k.ruleChanges(), k.ingress()
	for round := range 200 {
		a := &endpoint{program: k.egress, port: uint16(10000 + round), next: 1000}
		b := &endpoint{program: ingress, ingress: true, port: a.port, next: 5000}
		a.acked.Store(5000)
		b.acked.Store(1000)
		err := errors.Join(a.send(b, tcpSYN, 0), b.send(a, tcpSYN|tcpACK, 0), a.send(b, tcpACK, 0))
		if err != nil {
			t.Fatal(err)
		}
		err = twoCPUs(t, func() error {
			if err := a.talk(b, 50, change); err != nil {
				return err
			}
			return a.send(b, tcpFIN|tcpACK, 0)
		}, func() error {
			return b.talk(a, 60, func() {})
		})
		err = errors.Join(err, a.send(b, tcpACK, 0), b.send(a, tcpFIN|tcpACK, 0), a.send(b, tcpACK, 0))
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
}

// A flow becomes established while answers arrive: none of them counts as unsolicited.
func TestAnswersWhileEstablished(t *testing.T) {
	needTwoCPUs(t)
	k := loadWith(t, `{}`, map[string]any{"udp_assured_ns": uint64(0)})
	ingress := k.ingress()
	run := func(p *ebpf.Program, packet Packet) error {
		ret, err := p.Run(&ebpf.RunOptions{Data: frame{Packet: packet}.bytes()})
		if err == nil && int32(ret) != tcNext {
			err = fmt.Errorf("from %s: port %d is dropped", packet.Src, max(packet.SrcPort, packet.DstPort))
		}
		return err
	}
	for round := range 3000 {
		ask, answer := udp(svc4, uint16(1000+round), far4, 53), udp(far4, 53, svc4, uint16(1000+round))
		if err := errors.Join(run(k.egress, ask), run(ingress, answer)); err != nil {
			t.Fatal(err)
		}
		err := twoCPUs(t, func() error { return run(k.egress, ask) },
			func() error { return errors.Join(run(ingress, answer), run(ingress, answer), run(ingress, answer)) })
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
}
