// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
)

const (
	pingGap = 2 * time.Millisecond // between the round trips of a pair
	sendGap = 4 * time.Millisecond // between the datagrams of a pair
)

// talk is the traffic of one honest service with another one.
type talk struct {
	name   string
	client net.Conn     // to the other's echo server
	server net.Listener // the other's
	sender net.Conn     // to the other's sink
	sink   *net.UDPConn

	times          []float64 // us
	sent, received uint64
	err            error
}

// run makes the honest services communicate while the hostile one attacks, and returns the p99 of all round trips in
// us.
func (p *place) run(length time.Duration, virtual bool) float64 {
	p.T.Helper()
	before, err := traffic.ReadLosses()
	if err != nil {
		p.T.Fatal(err)
	}
	talks := p.open(virtual)
	stop := make(chan struct{})
	attack := p.attack(stop, virtual)
	var work sync.WaitGroup
	for _, t := range talks {
		work.Go(func() { t.ping(stop) })
		work.Go(func() { t.send(stop) })
	}
	time.Sleep(length) // the measurement
	close(stop)
	work.Wait()
	attacks := attack()
	after, err := traffic.ReadLosses()
	if err != nil {
		p.T.Fatal(err)
	}
	return p.checkResults(talks, attacks, after.Sub(before))
}

func (p *place) checkResults(talks []*talk, attacks string, lost traffic.Losses) float64 {
	p.T.Helper()
	var times []float64
	var sent, received uint64
	for _, t := range talks {
		if t.err != nil {
			p.T.Errorf("%s: %v", t.name, t.err)
		}
		t.close()
		times = append(times, t.times...)
		sent, received = sent+t.sent, received+t.received
	}
	if missing := sent - received; missing > lost.Backlog {
		p.T.Errorf("%d of %d datagrams are lost, of which the kernel's backlog explains %d", missing, sent, lost.Backlog)
	}
	if len(times) == 0 {
		p.T.Fatal("no round trip")
	}
	slices.Sort(times)
	p99 := times[len(times)*99/100]
	p.T.Logf("%d round trips, p50 %.0f us, p99 %.0f us; %d datagrams; attacks: %s", len(times), times[len(times)/2],
		p99, sent, attacks)
	return p99
}

// open connects the services in pairs; every other pair by the virtual address, if there is a proxy.
func (p *place) open(virtual bool) (talks []*talk) {
	p.T.Helper()
	for i := 1; i+1 < services; i += 2 {
		from, to := p.hosts[i], p.hosts[i+1]
		address := netip.AddrPortFrom(to.Addr4(), echoPort)
		if virtual && i%4 == 1 {
			address = netip.AddrPortFrom(netip.MustParseAddr(vip(i+1)), vipPort)
		}
		t, err := openTalk(from, to, address)
		if err != nil {
			p.T.Fatalf("%s to %s: %v", from.Name(), to.Name(), err)
		}
		talks = append(talks, t)
	}
	return talks
}

func openTalk(from, to *netlab.Host, echo netip.AddrPort) (*talk, error) {
	t := &talk{name: fmt.Sprintf("%s to %s (%v)", from.Name(), to.Name(), echo)}
	err := to.Do(func() (err error) {
		if t.server, err = net.Listen("tcp4", fmt.Sprintf(":%d", echoPort)); err != nil {
			return err
		}
		t.sink, err = net.ListenUDP("udp4", &net.UDPAddr{Port: sinkPort})
		return err
	})
	if err != nil {
		return nil, err
	}
	go t.serve()
	go t.receive()
	return t, from.Do(func() (err error) {
		if t.client, err = net.DialTimeout("tcp4", echo.String(), 10*time.Second); err != nil {
			return err
		}
		t.sender, err = net.Dial("udp4", netip.AddrPortFrom(to.Addr4(), sinkPort).String())
		return err
	})
}

// serve echoes the data of every connection, including those of the hostile service.
func (t *talk) serve() {
	for {
		c, err := t.server.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			buf := make([]byte, 64)
			for {
				n, err := c.Read(buf)
				if err != nil {
					return
				}
				if _, err := c.Write(buf[:n]); err != nil {
					return
				}
			}
		}()
	}
}

// magic is the first word of honest datagrams.
const magic = 0x6b65726268303131

func (t *talk) receive() {
	buf := make([]byte, 64)
	for {
		n, err := t.sink.Read(buf)
		if err != nil {
			return
		}
		if n == 16 && binary.BigEndian.Uint64(buf) == magic {
			atomic.AddUint64(&t.received, 1)
		}
	}
}

func (t *talk) ping(stop <-chan struct{}) {
	tick := time.NewTicker(pingGap)
	defer tick.Stop()
	message, answer := make([]byte, 24), make([]byte, 24)
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		_ = t.client.SetDeadline(time.Now().Add(30 * time.Second))
		begin := time.Now()
		if _, err := t.client.Write(message); err != nil {
			t.err = err
			return
		}
		if _, err := io.ReadFull(t.client, answer); err != nil {
			t.err = err
			return
		}
		t.times = append(t.times, float64(time.Since(begin))/float64(time.Microsecond))
	}
}

func (t *talk) send(stop <-chan struct{}) {
	tick := time.NewTicker(sendGap)
	defer tick.Stop()
	message := binary.BigEndian.AppendUint64(make([]byte, 0, 16), magic)
	for {
		select {
		case <-stop:
			t.settle()
			return
		case <-tick.C:
		}
		if _, err := t.sender.Write(binary.BigEndian.AppendUint64(message, t.sent)); err != nil {
			t.err = errors.Join(t.err, err)
			return
		}
		t.sent++
	}
}

// settle waits for packets in flight.
func (t *talk) settle() {
	arrived := func() bool { return atomic.LoadUint64(&t.received) >= t.sent }
	for end := time.Now().Add(10 * time.Second); !arrived() && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
	}
}

func (t *talk) close() {
	for _, c := range []io.Closer{t.client, t.server, t.sender, t.sink} {
		if err := c.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.err = errors.Join(t.err, err)
		}
	}
}
