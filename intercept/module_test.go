// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/bpf/bpftest"
)

// Objects for machines without a compiler, such as those of the kernel matrix.
//go:generate go run github.com/kerb-edge/kerb/bpf/bpftest/object testdata/emit.XDP.o

const (
	slot     = 3
	ringSize = 65536
	fits     = 31 // records of testdata/emit.bpf.c in the ring
)

var emitter *ebpf.CollectionSpec

// module is a double of the module: a real ring that a real program fills, and a socket that passes it.
type module struct {
	t        *testing.T
	path     string
	listener *net.UnixListener

	mu     sync.Mutex
	kernel *ebpf.Collection
	state  *state
	conn   *net.UnixConn // of the consumer
	opened chan struct{}
}

func newModule(t *testing.T) *module {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for BPF")
	}
	m := &module{t: t, path: filepath.Join(t.TempDir(), "s"), opened: make(chan struct{}, 16)}
	m.configure(1)
	var err error
	if m.listener, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: m.path, Net: "unixpacket"}); err != nil {
		t.Fatal(err)
	}
	go m.serve()
	t.Cleanup(func() { _ = m.listener.Close() })
	return m
}

// configure creates a new generation, as a new configuration does.
func (m *module) configure(generation uint64) {
	m.t.Helper()
	if emitter == nil {
		emitter = bpftest.Object(m.t, "testdata/emit.bpf.c", bpftest.XDP)
	}
	kernel := bpftest.Load(m.t, emitter.Copy())
	page, err := unix.Mmap(kernel.Maps["state"].FD(), 0, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = unix.Munmap(page) })
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kernel = kernel
	m.state = (*state)(unsafe.Pointer(unsafe.SliceData(page)))
	m.state.Generation = generation
}

func (m *module) serve() {
	for {
		conn, err := m.listener.AcceptUnix()
		if err != nil {
			return
		}
		m.answer(conn)
	}
}

func (m *module) answer(conn *net.UnixConn) {
	var request struct{ Open string }
	line := make([]byte, 4096)
	n, _ := conn.Read(line)
	_ = json.Unmarshal(line[:n], &request)
	m.mu.Lock()
	defer m.mu.Unlock()
	if request.Open != "ctrl" {
		_, _ = conn.Write(
			[]byte(`{"error": "there is no class \"` + request.Open + `\" that programs can open; there are: ctrl"}`))
		_ = conn.Close()
		return
	}
	answer := fmt.Sprintf(`{"class": "ctrl", "slot": %d, "ring": %d, "generation": %d}`, slot, ringSize,
		m.state.Generation)
	rights := unix.UnixRights(m.kernel.Maps["ring"].FD(), m.kernel.Maps["state"].FD(), m.kernel.Maps["controls"].FD())
	if _, _, err := conn.WriteMsgUnix([]byte(answer), rights, nil); err != nil {
		return
	}
	m.conn = conn
	m.opened <- struct{}{}
}

// say sends a message to the consumer and closes the connection.
func (m *module) say(message string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn == nil {
		return // the class has no consumer
	}
	if message != "" {
		_, _ = m.conn.Write([]byte(message))
	}
	_ = m.conn.Close()
}

// emit delivers packets, the i-th of them as frame(i).
func (m *module) emit(from, to int) {
	m.t.Helper()
	for i := from; i < to; i++ {
		m.send(frame(i))
	}
}

func (m *module) send(frame []byte) {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if code, err := m.kernel.Programs["emit"].Run(&ebpf.RunOptions{Data: frame}); err != nil || code == 0 {
		m.t.Fatalf("emit: %d, %v", code, err)
	}
}

// taken waits until the consumer has released all packets.
func (m *module) taken() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	page := os.Getpagesize()
	fd := m.kernel.Maps["ring"].FD()
	consumer, err := unix.Mmap(fd, 0, page, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		m.t.Fatal(err)
	}
	defer unix.Munmap(consumer)
	producer, err := unix.Mmap(fd, int64(page), page, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		m.t.Fatal(err)
	}
	defer unix.Munmap(producer)
	return atomic.LoadUint64(word(consumer)) == atomic.LoadUint64(word(producer))
}

// numbers are the counters of testdata/emit.bpf.c.
type numbers struct {
	Seq, Lost, Controls uint64
	Last                controlEntry
}

func (m *module) numbers() (n numbers) {
	m.t.Helper()
	if err := m.kernel.Maps["numbers"].Lookup(uint32(0), &n); err != nil {
		m.t.Fatal(err)
	}
	return n
}

// frame returns frame i, whose size, up to the kernel's limit for test runs, and bytes depend on i.
func frame(i int) []byte {
	f := make([]byte, 15+i*37%1485)
	for j := range f {
		f[j] = byte(i + j)
	}
	return f
}
