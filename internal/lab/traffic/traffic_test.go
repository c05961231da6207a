// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

func twoHosts(t *testing.T) (a, b *netlab.Host) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	lab, err := netlab.NewIn("kbtraf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Close() })
	a, err1 := lab.Host("a", netlab.HostOptions{})
	b, err2 := lab.Host("b", netlab.HostOptions{})
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// A batch of datagrams arrives whole and in order, and a receiver without traffic times out.
func TestBatch(t *testing.T) {
	a, b := twoHosts(t)
	at := netip.AddrPortFrom(b.Addr4(), 7000)
	var in, out *Batch
	err := errors.Join(
		b.Do(func() (err error) { in, err = NewReceiver(at, 64, 16, 200*time.Millisecond); return err }),
		a.Do(func() (err error) { out, err = NewSender(at, 32, 16); return err }))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer out.Close()
	for i := range out.Len() {
		binary.NativeEndian.PutUint64(out.Datagram(i), uint64(i))
	}
	if n, err := out.Send(out.Len()); n != 16 || err != nil {
		t.Fatalf("sent %d, %v", n, err)
	}
	got := 0
	for end := time.Now().Add(30 * time.Second); got < 16 && time.Now().Before(end); {
		n, err := in.Receive()
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			if seq := binary.NativeEndian.Uint64(in.Datagram(i)); in.Size(i) != 32 || seq != uint64(got) {
				t.Errorf("datagram %d: %d bytes, number %d", got, in.Size(i), seq)
			}
			got++
		}
	}
	if n, err := in.Receive(); got != 16 || n != 0 || err != nil {
		t.Errorf("%d of 16 arrived, and then %d, %v", got, n, err)
	}
}

func TestLossesSeesAFullSocket(t *testing.T) {
	a, b := twoHosts(t)
	at := netip.AddrPortFrom(b.Addr4(), 7000)
	var before, after Losses
	var in, out *Batch
	err := errors.Join(
		b.Do(func() (err error) {
			if before, err = ReadLosses(); err != nil {
				return err
			}
			in, err = NewReceiver(at, 2048, 16, 30*time.Second)
			return err
		}),
		a.Do(func() (err error) { out, err = NewSender(at, 1400, 64); return err }))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer out.Close()
	if n, err := out.Send(1); n != 1 || err != nil { // resolves the neighbour address
		t.Fatal(err)
	}
	if n, err := in.Receive(); n != 1 || err != nil {
		t.Fatalf("first datagram: %d, %v", n, err)
	}
	if err := in.shrink(); err != nil {
		t.Fatal(err)
	}
	const many = 1000
	lost := uint64(0)
	for end := time.Now().Add(30 * time.Second); lost < many && time.Now().Before(end); lost = after.Sub(before).Socket {
		if _, err := out.Send(out.Len()); err != nil {
			t.Fatal(err)
		}
		if err := b.Do(func() (err error) { after, err = ReadLosses(); return err }); err != nil {
			t.Fatal(err)
		}
	}
	if lost < many {
		t.Errorf("%d datagrams counted as lost in a socket of a few KiB", lost)
	}
}

func TestTCP(t *testing.T) {
	a, b := twoHosts(t)
	for _, addr := range []netip.Addr{b.Addr4(), b.Addr6()} {
		pair, err := Connect(a, b, netip.AddrPortFrom(addr, 7000))
		if err != nil {
			t.Fatal(err)
		}
		rate, err := pair.Throughput(time.Second)
		if errors.Is(err, ErrStarved) { // another real-time thread had the CPU
			continue
		}
		if err != nil || rate <= 0 {
			t.Errorf("%s: %v bit/s, %v", addr, rate, err)
		}
		pair.Close()
		if pair, err = Connect(a, b, netip.AddrPortFrom(addr, 7001)); err != nil {
			t.Fatal(err)
		}
		trips, err := pair.PingPong(20 * time.Millisecond)
		if err != nil || len(trips) == 0 || trips[0] <= 0 {
			t.Errorf("%s: %d round trips, %v", addr, len(trips), err)
		}
		pair.Close()
	}
}

func TestPacerKeepsTheRateOnAverage(t *testing.T) {
	p := NewPacer(time.Millisecond)
	start := monotonic()
	for range 20 {
		p.Wait()
	}
	if took := time.Duration(monotonic() - start); took < 15*time.Millisecond {
		t.Errorf("20 events a millisecond apart took %v", took)
	}
}

func TestPinnedHoldsOneCPUAndLetsGo(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, inside, after unix.CPUSet
	err := errors.Join(
		unix.SchedGetaffinity(0, &before),
		RunOnCPU(before.Count(), func() error { return unix.SchedGetaffinity(0, &inside) }),
		unix.SchedGetaffinity(0, &after))
	if err != nil {
		t.Fatal(err)
	}
	if inside.Count() != 1 || !inside.IsSet(nthCPU(&before, 0)) || after != before {
		t.Errorf("before %v, inside %v, after %v", before, inside, after)
	}
}

// shrink reduces the receive buffer to a few datagrams.
func (b *Batch) shrink() error {
	return unix.SetsockoptInt(b.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1)
}
