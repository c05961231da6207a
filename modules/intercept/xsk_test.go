// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"bytes"
	"errors"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/sdk"
)

// meta mirrors struct icpt_meta.
type meta struct {
	Seq, Time, Lost       uint64
	L3, L4, Payload, Slot uint16
}

// xsk is a minimal receiving AF_XDP socket: 16 chunks of 4096 bytes, in copy mode.
type xsk struct {
	fd           int
	memory       []byte
	rx           []byte
	producer     *uint32
	consumer     *uint32
	descriptions unsafe.Pointer
}

const chunks, chunkSize = 16, 4096

const (
	bySocket  = 2  // enum icpt_waiting
	wakeBytes = 64 // ICPT_WAKE_BYTES
	headers   = 14 + 20 + 8
)

func openXSK(t *testing.T, ifindex int) *xsk {
	t.Helper()
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no AF_XDP: %v", err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	memory, err := unix.Mmap(-1, 0, chunks*chunkSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(memory) })
	set := func(name int, value unsafe.Pointer, size uintptr) {
		t.Helper()
		if _, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(name), uintptr(value), size,
			0); errno != 0 {
			t.Fatal(errno)
		}
	}
	reg := unix.XDPUmemReg{Addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(memory)))), Len: uint64(len(memory)),
		Size: chunkSize}
	set(unix.XDP_UMEM_REG, unsafe.Pointer(&reg), unsafe.Sizeof(reg))
	entries := int32(chunks)
	for _, ring := range []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING, unix.XDP_RX_RING} {
		set(ring, unsafe.Pointer(&entries), 4)
	}
	var off unix.XDPMmapOffsets
	size := uint32(unsafe.Sizeof(off))
	if _, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_MMAP_OFFSETS,
		uintptr(unsafe.Pointer(&off)), uintptr(unsafe.Pointer(&size)), 0); errno != 0 {
		t.Fatal(errno)
	}
	ring := func(at int64, o unix.XDPRingOffset, each int) []byte {
		t.Helper()
		m, err := unix.Mmap(fd, at, int(o.Desc)+chunks*each, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|
			unix.MAP_POPULATE)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Munmap(m) })
		return m
	}
	fill := ring(unix.XDP_UMEM_PGOFF_FILL_RING, off.Fr, 8)
	for i := range uint64(chunks) {
		*(*uint64)(unsafe.Pointer(&fill[off.Fr.Desc+8*i])) = i * chunkSize
	}
	*(*uint32)(unsafe.Pointer(&fill[off.Fr.Producer])) = chunks
	rx := ring(unix.XDP_PGOFF_RX_RING, off.Rx, int(unsafe.Sizeof(unix.XDPDesc{})))
	if err := unix.Bind(fd, &unix.SockaddrXDP{Flags: unix.XDP_COPY, Ifindex: uint32(ifindex)}); err != nil {
		t.Fatal(err)
	}
	return &xsk{fd, memory, rx, (*uint32)(unsafe.Pointer(&rx[off.Rx.Producer])),
		(*uint32)(unsafe.Pointer(&rx[off.Rx.Consumer])), unsafe.Pointer(&rx[off.Rx.Desc])}
}

func (x *xsk) empty() bool { return atomic.LoadUint32(x.producer) == *x.consumer }

// receive waits for a frame, and returns its metadata, too.
func (x *xsk) receive(t *testing.T) (*meta, []byte) {
	t.Helper()
	poll := []unix.PollFd{{Fd: int32(x.fd), Events: unix.POLLIN}}
	n, err := 0, error(unix.EINTR) // signals of the Go runtime
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll(poll, 30_000)
	}
	if n != 1 || x.empty() {
		return nil, nil
	}
	d := unsafe.Slice((*unix.XDPDesc)(x.descriptions), chunks)[*x.consumer%chunks]
	*x.consumer++
	return (*meta)(unsafe.Pointer(&x.memory[d.Addr-uint64(unsafe.Sizeof(meta{}))])),
		x.memory[d.Addr : d.Addr+uint64(d.Len)]
}

// withSocket runs a class `a` that steals port 7000 on native XDP of a real interface, to which an AF_XDP socket is
// bound; send sends to it.
func withSocket(t *testing.T) (k *kernel, r *reader, x *xsk, ifindex uint32, send func(text string)) {
	t.Helper()
	if os.Getenv("KERB_MATRIX") != "" {
		t.Skip("the emulated kernels have no AF_XDP")
	}
	k = load(t, chain.XDP, chain.Ingress,
		`{"classes": [{"name": "a", "match": {"protocol": "udp", "ports": [7000]}, "action": "steal"}]}`)
	r = k.open("a")
	lab, err := netlab.NewIn("icpt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Close() })
	from, err := lab.Host("from", netlab.HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	to, err := lab.Host("to", netlab.HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := to.Do(func() error {
		nic, err := net.InterfaceByName(to.Interface())
		if err != nil {
			return err
		}
		ifindex = uint32(nic.Index)
		l, err := link.AttachXDP(link.XDPOptions{Interface: nic.Index, Program: k.prog})
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		x = openXSK(t, nic.Index)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return k, r, x, ifindex, func(text string) {
		t.Helper()
		if err := from.Do(func() error {
			conn, err := net.Dial("udp", net.JoinHostPort(to.Addr4().String(), "7000"))
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write([]byte(text))
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitRecord waits for a record.
func (r *reader) awaitRecord(t *testing.T, seq uint64, text string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if rec, frame := r.take(); rec != nil {
			if rec.Seq != seq || !bytes.HasSuffix(frame, []byte(text)) {
				t.Errorf("%+v %q, want %d %q", rec, frame, seq, text)
			}
			return
		}
	}
	t.Fatalf("%q did not come to the ring", text)
}

// Stolen packets go to the AF_XDP socket of their interface and queue, with sequence number and T1 before the frame, or
// to the ring without one.
func TestXSK(t *testing.T) {
	k, r, x, ifindex, send := withSocket(t)
	send("to the ring")
	r.awaitRecord(t, 0, "to the ring")
	live := sdk.Live{Maps: k.maps, Attachments: func() []sdk.Attachment { return []sdk.Attachment{{Ifindex: ifindex}} }}
	for _, wrong := range []*socket{nil, {Ifindex: ifindex + 1}, {Ifindex: ifindex, Queue: queues}} {
		if placeSocket(live, 0, wrong, x.fd) == nil {
			t.Errorf("%+v was taken", wrong)
		}
	}
	if placeSocket(live, 0, &socket{Ifindex: ifindex, Queue: 0}, int(os.Stdin.Fd())) == nil {
		t.Error("standard input was taken for a socket")
	}
	if err := placeSocket(live, 0, &socket{Ifindex: ifindex, Queue: 0}, x.fd); err != nil {
		t.Fatal(err)
	}
	before := now()
	send("to the socket")
	m, frame := x.receive(t)
	if m == nil || m.Seq != 1 || m.L3 != 14 || m.L4 != 34 || m.Payload != 42 || m.Time < before || m.Time > now() ||
		!bytes.HasSuffix(frame, []byte("to the socket")) {
		t.Errorf("%+v %q", m, frame)
	}
	removeSockets(k.maps, 0)
	send("to the ring again")
	r.awaitRecord(t, 2, "to the ring again")
	if !x.empty() {
		_, frame := x.receive(t)
		t.Errorf("still to the socket: %q", frame)
	}
}

// A wake socket receives the waking packet, once per sleep; all packets, of any size, go to the ring.
func TestWakeSocket(t *testing.T) {
	k, r, x, ifindex, send := withSocket(t)
	live := sdk.Live{Maps: k.maps, Attachments: func() []sdk.Attachment { return []sdk.Attachment{{Ifindex: ifindex}} }}
	if err := placeSocket(live, 0, &socket{Ifindex: ifindex, Wake: true}, x.fd); err != nil {
		t.Fatal(err)
	}
	for i, text := range []string{"short", strings.Repeat("long", 300), "again"} {
		seq := uint64(2 * i)
		atomic.StoreUint32(&r.state.Waiting, bySocket)
		send(text)
		if _, frame := x.receive(t); !bytes.HasSuffix(frame, []byte(text[:min(len(text), wakeBytes-headers)])) {
			t.Errorf("rung by %q, want the beginning of %q", frame, text)
		}
		r.awaitRecord(t, seq, text)
		send("awake")
		r.awaitRecord(t, seq+1, "awake")
	}
	if !x.empty() {
		t.Error("rung for a program that was awake")
	}
	removeSockets(k.maps, 0)
	atomic.StoreUint32(&r.state.Waiting, bySocket)
	if !r.sleeps(30*time.Second, func() { send("by the ring") }) {
		t.Error("not woken where there is no wake socket")
	}
}

// A queue has one socket: while a program has those of an interface, they are not offered to programs of other classes.
func TestQueuesAreOfOneProgram(t *testing.T) {
	cs, first, second := newConsumers(), &consumer{}, &consumer{}
	if err := errors.Join(cs.take("a", first, false), cs.take("b", second, false)); err != nil {
		t.Fatal(err)
	}
	if cs.occupied(first, 7) || cs.occupied(second, 7) {
		t.Error("sockets of others, and there are none")
	}
	cs.occupy(first, 7)
	if cs.occupied(first, 7) || !cs.occupied(second, 7) || cs.occupied(second, 8) {
		t.Error("the first program's sockets are its own, and on one interface")
	}
	cs.leave("a", first, func() {})
	if cs.occupied(second, 7) {
		t.Error("the first program has gone, and its sockets with it")
	}
}

// A program that opens a class right after another one finds it in the initial state, and its changes are not undone.
func TestClassIsClearedBeforeTheNextHasIt(t *testing.T) {
	cs, first := newConsumers(), &consumer{}
	if err := cs.take("a", first, false); err != nil {
		t.Fatal(err)
	}
	var cleared atomic.Bool
	taken := make(chan error, 1)
	cs.leave("a", first, func() {
		go func() {
			err := cs.take("a", &consumer{}, false)
			if !cleared.Load() {
				err = errors.Join(err, errors.New("taken before it was cleared"))
			}
			taken <- err
		}()
		time.Sleep(50 * time.Millisecond) // the other one waits by then; otherwise the test still passes
		cleared.Store(true)
	})
	if err := <-taken; err != nil {
		t.Error(err)
	}
}
