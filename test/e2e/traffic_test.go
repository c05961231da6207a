// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// stream is numbered UDP packets from one host to another, which module stamp marks. Payload, little endian: u64 number
// (0 is a probe), u32 stamps, u32 generation.
type stream struct {
	t        *testing.T
	in, out  *net.UDPConn
	stop     chan struct{}
	sender   sync.WaitGroup
	receiver sync.WaitGroup
	sent     uint64 // set after sender

	mu          sync.Mutex
	got         map[uint64]int // arrivals by number
	arrivals    uint64         // without probes
	stamps      map[uint32]int // packets by number of stamps
	generations []uint32       // in order of arrival, without repetitions
}

const (
	streamPort  = 7007
	payloadSize = 16
	burst       = 4   // packets per millisecond
	underWay    = 100 // at most: a CPU queues 1000 (net.core.netdev_max_backlog) of all tests, and drops the rest
)

// startStream returns when the first packets have arrived. The caller must call finish.
func startStream(t *testing.T, from, to *netlab.Host) *stream {
	t.Helper()
	s := &stream{t: t, stop: make(chan struct{}), got: map[uint64]int{}, stamps: map[uint32]int{}}
	at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(to.Addr4(), streamPort))
	err := to.Do(func() (err error) { s.in, err = net.ListenUDP("udp4", at); return err })
	if err == nil {
		err = from.Do(func() (err error) { s.out, err = net.DialUDP("udp4", nil, at); return err })
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.in.Close(); s.out.Close() })
	setOption(t, s.in, unix.SO_RCVBUFFORCE, 128<<20)
	setOption(t, s.out, unix.SO_NO_CHECK, 1) // modules change the payload
	s.receiver.Go(s.receive)
	wait.Until(t, "a packet of the stream arrives", func() bool {
		_, _ = s.out.Write(make([]byte, payloadSize))
		return s.arrived(0)
	})
	s.sender.Go(s.send)
	return s
}

func setOption(t *testing.T, c syscall.Conn, option, value int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, option, value) })
	if err := errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
}

func (s *stream) arrived(number uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got[number] > 0
}

func (s *stream) send() {
	packet := make([]byte, payloadSize)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		for range min(burst, s.room()) {
			s.sent++
			binary.LittleEndian.PutUint64(packet, s.sent)
			if _, err := s.out.Write(packet); err != nil {
				s.t.Errorf("send: %v", err)
				return
			}
		}
	}
}

// room returns how many more packets may be in flight.
func (s *stream) room() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return underWay - min(underWay, s.sent-min(s.sent, s.arrivals))
}

func (s *stream) receive() {
	packet := make([]byte, 2*payloadSize)
	for {
		n, err := s.in.Read(packet)
		if err != nil {
			return // closed
		}
		s.mu.Lock()
		s.note(packet[:n])
		s.mu.Unlock()
	}
}

func (s *stream) note(packet []byte) {
	if len(packet) != payloadSize {
		s.t.Errorf("packet of %d bytes", len(packet))
		return
	}
	number, generation := binary.LittleEndian.Uint64(packet), binary.LittleEndian.Uint32(packet[12:])
	s.got[number]++
	if number == 0 {
		return
	}
	s.arrivals++
	s.stamps[binary.LittleEndian.Uint32(packet[8:])]++
	if n := len(s.generations); n == 0 || s.generations[n-1] != generation {
		s.generations = append(s.generations, generation)
	}
}

// generation returns the generation with which the next packet is stamped.
func (s *stream) generation() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.generations) == 0 {
		return 0
	}
	return s.generations[len(s.generations)-1]
}

// finish stops the stream and checks that each packet arrived once, stamped once by an allowed generation.
func (s *stream) finish(allowed ...uint32) {
	s.t.Helper()
	close(s.stop)
	s.sender.Wait()
	for end := time.Now().Add(nodetest.Patience); s.room() < underWay && time.Now().Before(end); { // not all has arrived
		time.Sleep(10 * time.Millisecond)
	}
	s.in.Close()
	s.receiver.Wait()
	var lost, twice int
	for n := uint64(1); n <= s.sent; n++ {
		switch s.got[n] {
		case 0:
			lost++
		case 1:
		default:
			twice++
		}
	}
	if s.sent == 0 || lost > 0 || twice > 0 {
		s.t.Errorf("of %d packets %d are lost and %d arrived twice", s.sent, lost, twice)
	}
	if s.stamps[1] != len(s.got)-1 {
		s.t.Errorf("packets by number of stamps: %v, want %d with one", s.stamps, len(s.got)-1)
	}
	for _, g := range s.generations {
		if !slices.Contains(allowed, g) {
			s.t.Errorf("packets were stamped by generations %v, allowed are %v", s.generations, allowed)
			break
		}
	}
	s.t.Logf("%d packets arrived, stamped once each", len(s.got)-1)
}

// requests is an HTTP client that repeatedly sends requests to a server on another host, mostly on the same connection.
type requests struct {
	t       *testing.T
	server  *http.Server
	stop    chan struct{}
	wait    sync.WaitGroup
	answers int
}

const webPort = 8080

func startRequests(t *testing.T, from, to *netlab.Host) *requests {
	t.Helper()
	r := &requests{t: t, stop: make(chan struct{})}
	at := netip.AddrPortFrom(to.Addr4(), webPort).String()
	var l net.Listener
	if err := to.Do(func() (err error) { l, err = net.Listen("tcp4", at); return err }); err != nil {
		t.Fatal(err)
	}
	r.server = &http.Server{Handler: http.HandlerFunc(echo)}
	go func() { _ = r.server.Serve(l) }()
	t.Cleanup(func() { r.server.Close() })
	client := &http.Client{Timeout: nodetest.Patience,
		Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (c net.Conn, err error) {
			err = from.Do(func() error { c, err = (&net.Dialer{}).DialContext(ctx, network, addr); return err })
			return c, err
		}}}
	r.wait.Go(func() { r.run(client, "http://"+at) })
	return r
}

func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body) // all of it first: HTTP/1 is not full-duplex
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_, _ = w.Write(body)
}

func (r *requests) run(client *http.Client, url string) {
	defer client.CloseIdleConnections()
	for {
		select {
		case <-r.stop:
			return
		case <-time.After(2 * time.Millisecond):
		}
		if err := ask(client, url, r.answers); err != nil {
			r.t.Errorf("request %d: %v", r.answers, err)
			return
		}
		if r.answers++; r.answers%20 == 0 {
			client.CloseIdleConnections() // the next is a new connection
		}
	}
}

func ask(client *http.Client, url string, number int) error {
	body := make([]byte, 20000) // several segments
	copy(body, fmt.Sprint(number))
	answer, err := client.Post(url, "application/octet-stream", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	if err == nil && string(got) != string(body) {
		err = errors.New("the answer is not what was asked")
	}
	return err
}

// finish stops the requests; every request must have been answered.
func (r *requests) finish() {
	r.t.Helper()
	close(r.stop)
	r.wait.Wait()
	if r.answers == 0 {
		r.t.Error("no request was answered")
	}
	r.t.Logf("%d requests answered", r.answers)
}
