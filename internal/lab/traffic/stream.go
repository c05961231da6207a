// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// The stream: UDP over IPv4 without UDP checksum, so that a module can write
// into the payload. Payload in the machine's byte order, zero beyond:
//
//	0  u64 seq         counts from 1; 0 is a probe that is not accounted
//	8  u32 stamps      a module adds 1
//	12 u32 generation  a module writes its own
const (
	PayloadSize    = 32
	OffsetStamps   = 8
	OffsetGen      = 12
	PacketRate     = 100_000 // per second, at least
	sendBatch      = 32
	receiveBatch   = 128
	receiveTimeout = 200 * time.Millisecond
	// Polling interval: a receiver that waits for each packet is woken up by each, which takes a virtual machine's CPU
	// more time than the packets do, and distorts the measurement.
	receiveGap = time.Millisecond
	// drainTime is how long the receiver waits at the end for missing packets: on a busy machine they may wait in the
	// backlog of a CPU, which a thread of ordinary priority empties.
	drainTime = 10 * time.Second
)

// paceRate compensates for delays of the sender.
const paceRate = PacketRate * 120 / 100

// StreamStats counts the packets of one stream by result.
type StreamStats struct {
	Sent, Received, Lost, Duplicated uint64
	// Probes were sent before all other packets, and are not included in the other counts.
	Probes uint64
	// Unprocessed packets carry no stamp, Doubled more than one.
	Unprocessed, Doubled uint64
	// Generations is the number of different generations seen, Backward how often an older one followed a newer one.
	Generations, Backward uint64
	// Explained is the part of Lost that the kernel counted as dropped because of a full socket buffer or CPU backlog.
	Explained Losses
	Rate      float64 // sent per second
}

// Stream sends numbered packets from one host to a port of another while during runs, and accounts for each.
func Stream(from, to *netlab.Host, port uint16, during func() error) (StreamStats, error) {
	s := &stream{from: from, at: netip.AddrPortFrom(to.Addr4(), port), to: to, flowing: make(chan struct{})}
	if err := s.open(); err != nil {
		return StreamStats{}, errors.Join(err, s.close())
	}
	defer s.close()
	if err := s.probe(); err != nil {
		return StreamStats{}, err
	}
	var err error
	if s.before, err = s.losses(); err != nil {
		return StreamStats{}, err
	}
	err = s.run(during)
	after, err2 := s.losses()
	if err := errors.Join(err, err2); err != nil {
		return StreamStats{}, err
	}
	return s.account(after.Sub(s.before)), nil
}

type stream struct {
	from, to *netlab.Host
	at       netip.AddrPort
	out, in  *Batch

	flowing  chan struct{} // closed with the first packets sent
	stop     atomic.Bool   // stops the sender
	finished atomic.Bool   // the sender has ended
	probes   uint64
	sent     uint64
	took     time.Duration
	tally    receiverCounts
	before   Losses
}

func (s *stream) open() error {
	err := s.to.Do(func() (err error) {
		s.in, err = NewReceiver(s.at, PayloadSize, receiveBatch, receiveTimeout)
		return err
	})
	if err != nil {
		return fmt.Errorf("receiver: %w", err)
	}
	err = s.from.Do(func() (err error) {
		s.out, err = NewSender(s.at, PayloadSize, sendBatch)
		return err
	})
	if err != nil {
		return fmt.Errorf("sender: %w", err)
	}
	return nil
}

func (s *stream) close() error {
	var errs []error
	for _, b := range []*Batch{s.in, s.out} {
		if b != nil {
			errs = append(errs, b.Close())
		}
	}
	return errors.Join(errs...)
}

// ErrNoPath means that no packet arrived.
var ErrNoPath = errors.New("no packet of the stream arrives")

// probe resolves neighbour addresses before packets are counted.
func (s *stream) probe() error {
	for range 10 {
		if _, err := s.out.Send(1); err != nil {
			return err
		}
		s.probes++
		if n, err := s.in.Receive(); n > 0 || err != nil {
			return err
		}
	}
	return ErrNoPath
}

func (s *stream) losses() (l Losses, err error) {
	err = s.to.Do(func() error { l, err = ReadLosses(); return err })
	return l, err
}

// run keeps the sender on the first CPU and the receiver on the second. It calls during when packets flow.
func (s *stream) run(during func() error) error {
	sender, receiver := make(chan error, 1), make(chan error, 1)
	go func() { receiver <- RunOnCPU(1, func() error { return RunRealtime(s.receive) }) }()
	go func() { sender <- RunOnCPU(0, func() error { return RunRealtime(s.send) }) }()
	<-s.flowing
	err := during()
	s.stop.Store(true)
	err = errors.Join(err, <-sender)
	s.finished.Store(true)
	return errors.Join(err, <-receiver)
}

func (s *stream) send() error {
	start := time.Now()
	defer func() { s.took = time.Since(start) }()
	flow := sync.OnceFunc(func() { close(s.flowing) })
	defer flow()
	pacer := NewPacer(time.Second * sendBatch / paceRate)
	for !s.stop.Load() {
		for i := range sendBatch {
			binary.NativeEndian.PutUint64(s.out.Datagram(i), s.sent+uint64(i)+1)
		}
		n, err := s.out.Send(sendBatch)
		if err != nil {
			return fmt.Errorf("send: %w", err)
		}
		s.sent += uint64(n)
		flow()
		pacer.Wait()
	}
	return nil
}

// receive ends when the sender has finished and nothing more arrives.
func (s *stream) receive() error {
	pacer, last := NewPacer(receiveGap), time.Now()
	for {
		finished := s.finished.Load()
		n, err := s.in.Receive()
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		for i := range n {
			s.tally.add(s.in.Datagram(i)[:s.in.Size(i)])
		}
		if n > 0 {
			last = time.Now()
		} else if finished && (s.settled() || time.Since(last) > drainTime) {
			return nil
		}
		if n < receiveBatch {
			pacer.Wait()
		}
	}
}

// settled reports whether each sent packet has arrived or is known to be lost.
func (s *stream) settled() bool {
	now, err := s.losses()
	return err != nil || !s.misses(now.Sub(s.before))
}

// misses reports whether packets have neither arrived nor are known to be lost.
func (s *stream) misses(lost Losses) bool {
	return s.tally.received-s.tally.duplicated+lost.Socket+lost.Backlog < s.sent
}

// receiverCounts are the receiver's counts.
type receiverCounts struct {
	seen                           []uint8 // by sequence number
	received, duplicated           uint64
	unprocessed, doubled, backward uint64
	generations                    map[uint32]bool
	last                           uint32
}

func (t *receiverCounts) add(payload []byte) {
	if len(payload) < PayloadSize {
		return
	}
	seq := binary.NativeEndian.Uint64(payload)
	if seq == 0 {
		return
	}
	t.received++
	if t.mark(seq) {
		t.duplicated++
	}
	switch stamps := binary.NativeEndian.Uint32(payload[OffsetStamps:]); {
	case stamps == 0:
		t.unprocessed++
		return
	case stamps > 1:
		t.doubled++
	}
	t.note(binary.NativeEndian.Uint32(payload[OffsetGen:]))
}

// mark records a sequence number and reports whether it was recorded before.
func (t *receiverCounts) mark(seq uint64) bool {
	for uint64(len(t.seen)) <= seq {
		t.seen = append(t.seen, make([]uint8, max(1<<20, len(t.seen)))...)
	}
	again := t.seen[seq] > 0
	t.seen[seq] = 1
	return again
}

func (t *receiverCounts) note(generation uint32) {
	if generation == t.last {
		return
	}
	if t.generations == nil {
		t.generations = map[uint32]bool{}
	}
	if generation < t.last {
		t.backward++
	}
	t.generations[generation] = true
	t.last = generation
}

func (s *stream) account(explained Losses) StreamStats {
	t := &s.tally
	return StreamStats{
		Sent: s.sent, Probes: s.probes, Received: t.received, Duplicated: t.duplicated,
		Lost:        s.sent - (t.received - t.duplicated),
		Unprocessed: t.unprocessed, Doubled: t.doubled,
		Generations: uint64(len(t.generations)), Backward: t.backward,
		Explained: explained, Rate: float64(s.sent) / s.took.Seconds(),
	}
}
