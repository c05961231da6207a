// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk"
)

// consumers are the programs that have classes open, by class. They outlive configurations.
type consumers struct {
	mu      sync.Mutex
	open    map[string]*consumer
	classes []*class // of the configuration that runs

	writing sync.Mutex // while a half of the table is written
}

type consumer struct {
	client *sdk.Client
	pid    int // as it says itself
	since  time.Time
	queues uint32 // ifindex of the interface on which it has sockets
}

func newConsumers() *consumers { return &consumers{open: map[string]*consumer{}} }

// run notes which configuration runs.
func (cs *consumers) run(classes []*class) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.classes = classes
}

func (cs *consumers) running() []*class {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.classes
}

func (cs *consumers) of(class string) *consumer {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.open[class]
}

// ifVacant clears a class without consumer, before one can take it.
func (cs *consumers) ifVacant(class string, clear func()) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.open[class] == nil {
		clear()
	}
}

// occupy notes that c has sockets on an interface.
func (cs *consumers) occupy(c *consumer, ifindex uint32) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.queues = ifindex
}

// occupied reports whether another program than c has sockets on an interface, of whose queues each has one.
func (cs *consumers) occupied(c *consumer, ifindex uint32) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, o := range cs.open {
		if o != c && o.queues == ifindex {
			return true
		}
	}
	return false
}

// take makes c the consumer of a class, and notifies the one that it replaces.
func (cs *consumers) take(class string, c *consumer, takeover bool) error {
	other, err := cs.replace(class, c, takeover)
	if err == nil && other != nil { // it may not read: other classes do not wait for it
		_ = other.client.Send(event{"taken"})
		_ = other.client.Close()
	}
	return err
}

func (cs *consumers) replace(class string, c *consumer, takeover bool) (*consumer, error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	other := cs.open[class]
	if other != nil && !takeover {
		return nil, fmt.Errorf("class %s has a consumer (pid %d): stop it, or open the class with takeover", class, other.pid)
	}
	cs.open[class] = c
	return other, nil
}

// leave reports whether the class has no consumer now. Then it clears what c has left, before the next one can take the
// class.
func (cs *consumers) leave(class string, c *consumer, clear func()) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.open[class] != c {
		return false
	}
	delete(cs.open, class)
	clear()
	return true
}

// request is a message of a program, record.h.
type request struct {
	Open     string  `json:"open"`
	Takeover bool    `json:"takeover"`
	PID      int     `json:"pid"`
	XSK      *socket `json:"xsk"`
}

type socket struct {
	Ifindex uint32 `json:"ifindex"`
	Queue   uint32 `json:"queue"`
	Wake    bool   `json:"bell"` // a wake socket: it only wakes the program
}

// socketsEntry mirrors struct icpt_sockets.
type socketsEntry struct{ Ifindex, WakeSockets uint32 }

type event struct {
	Event string `json:"event"`
}

type refusal struct {
	Error string `json:"error"`
}

// opened is the answer to open.
type opened struct {
	Class      string `json:"class"`
	Slot       int    `json:"slot"`
	Action     string `json:"action"`
	Delivery   string `json:"delivery"`
	Ring       uint32 `json:"ring"`
	MaxBytes   uint32 `json:"maxBytes"`
	Deadline   int64  `json:"deadline"` // ns
	Watchdog   int64  `json:"watchdog"` // ns
	Generation uint64 `json:"generation"`
	WakeSocket uint32 `json:"bell,omitempty"` // ifindex of the interface for wake sockets; 0: none
	MAC        string `json:"mac,omitempty"`  // of it
}

const openWithin = 10 * time.Second

// Client implements sdk.ClientServer.
func (f *running) Client(ctx context.Context, client *sdk.Client) {
	late := time.AfterFunc(openWithin, func() { _ = client.Close() })
	var r request
	fd, err := client.Receive(&r)
	late.Stop()
	closeDescriptor(fd)
	if err != nil {
		_ = client.Send(refusal{fmt.Sprintf("the first message has to be such as {\"open\": \"CLASS\"}: %v", err)})
		return
	}
	c := f.class(r.Open)
	if c == nil {
		_ = client.Send(refusal{fmt.Sprintf("no class %q that programs can open; known are: %s", r.Open,
			strings.Join(f.offered(), ", "))})
		return
	}
	pages, err := f.mapPages(f.live.Maps)
	if err != nil {
		_ = client.Send(refusal{err.Error()})
		return
	}
	defer pages.close()
	me := &consumer{client: client, pid: r.PID, since: time.Now()}
	if err := f.consumers.take(c.Name, me, r.Takeover); err != nil {
		_ = client.Send(refusal{err.Error()})
		return
	}
	err = f.serve(c, me, pages)
	if ctx.Err() != nil && f.isSucceeded() {
		f.consumers.leave(c.Name, me, func() {})
		return // as after a restart of the control plane: the program comes back for what it has
	}
	moved := ctx.Err() != nil
	left := f.consumers.leave(c.Name, me, func() {
		removeSockets(f.live.Maps, c.slot)
		if !moved {
			f.vacate(c, pages)
		}
	})
	if !left {
		return // another consumer has it
	}
	if moved {
		_ = client.Send(event{"moved"})
		return
	}
	if err != nil {
		_ = client.Send(refusal{err.Error()})
	}
}

// serve gives a program its class, and does what it asks for until it goes.
func (f *running) serve(c *class, me *consumer, pages *pages) error {
	s := pages.state(c.slot)
	answer := opened{Class: c.Name, Slot: c.slot, Action: c.Action, Delivery: c.Delivery, Ring: c.ringSize,
		MaxBytes: c.MaxBytes,
		Deadline: int64(c.Deadline), Watchdog: int64(c.Watchdog), Generation: s.Generation}
	if on := f.live.Attachments(); len(on) == 1 && on[0].Service == "" && c.Delivery == "auto" && c.Action == "steal" &&
		!f.consumers.occupied(me, on[0].Ifindex) {
		answer.WakeSocket, answer.MAC = on[0].Ifindex, on[0].MAC
	}
	if err := me.client.SendMaps(answer, ringName(c.slot), stateName(c.slot), controlName(c.slot)); err != nil {
		return err
	}
	if err := setConsumer(f.live.Maps, c.slot, 1); err != nil {
		return err
	}
	for {
		var r request
		fd, err := me.client.Receive(&r)
		var syntax *json.SyntaxError
		if err != nil && !errors.As(err, &syntax) {
			return nil // it has gone
		}
		if err == nil {
			err = placeSocket(f.live, c.slot, r.XSK, fd)
		}
		if err == nil {
			f.consumers.occupy(me, r.XSK.Ifindex)
		}
		closeDescriptor(fd)
		if err != nil {
			_ = me.client.Send(refusal{err.Error()})
			continue
		}
		_ = me.client.Send(map[string]bool{"xsk": true})
	}
}

// setConsumer has packets of a class delivered, with 1.
func setConsumer(m sdk.Maps, slot int, n uint32) error { return m.Put(mapConsumers, uint32(slot), n) }

// vacate has the kernel treat a class as the configuration says: what control messages have changed ends with the
// program that sent them, and messages that it has left behind are skipped.
func (f *running) vacate(c *class, pages *pages) {
	err := setConsumer(f.live.Maps, c.slot, 0)
	pages.state(c.slot).reset(c)
	if err := errors.Join(err, f.resetTable(c)); err != nil {
		slog.Warn("intercept: the class stays as the program has left it", "module", f.live.Module, "class", c.Name,
			"error", err)
	}
}

func closeDescriptor(fd int) {
	if fd >= 0 {
		unix.Close(fd)
	}
}

func (f *Intercept) class(name string) *class {
	for _, c := range f.Classes {
		if c.Name == name && c.slot != noRing {
			return c
		}
	}
	return nil
}

// offered are the classes that can be opened.
func (f *Intercept) offered() (names []string) {
	for _, c := range f.Classes {
		if c.slot != noRing {
			names = append(names, c.Name)
		}
	}
	return names
}

// placeSocket has the packets of an interface and queue go to an AF_XDP socket.
func placeSocket(live sdk.Live, slot int, s *socket, fd int) error {
	if s == nil || fd < 0 {
		return errors.New("a message without meaning: want {\"xsk\": {\"ifindex\": N, \"queue\": N}} with a socket")
	}
	if s.Queue >= queues {
		return fmt.Errorf("queue %d: only the first %d can have sockets", s.Queue, queues)
	}
	if !slices.ContainsFunc(live.Attachments(), func(i sdk.Attachment) bool { return i.Ifindex == s.Ifindex }) {
		return fmt.Errorf("the module is not on interface %d", s.Ifindex)
	}
	if err := live.Maps.Put(mapXSKs, uint32(slot)*queues+s.Queue, uint32(fd)); err != nil {
		return err
	}
	e := socketsEntry{Ifindex: s.Ifindex}
	if s.Wake {
		e.WakeSockets = 1
	}
	return live.Maps.Put(mapInterfaces, uint32(slot), e)
}

// removeSockets takes back what placeSocket did. The sockets themselves leave their map when they are closed.
func removeSockets(m sdk.Maps, slot int) {
	_ = m.Put(mapInterfaces, uint32(slot), socketsEntry{})
}
