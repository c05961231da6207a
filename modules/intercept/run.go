// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk"
)

const (
	graceTime  = 2 * time.Second        // in which programs come back after a change or a restart of the control plane
	eventsTick = 250 * time.Millisecond // how often deadlines are examined for who reads events,
	logTick    = 2 * time.Second        // and for the log,
	logEvery   = 10 * time.Second       // where a class's misses go no more often
)

// Run implements sdk.Runner: programs that do not come back, and deadlines that were missed.
func (f *running) Run(ctx context.Context) {
	defer close(f.ended)
	f.consumers.run(f.Classes)
	if err := f.forget(f.live.Maps, nil); err != nil {
		slog.Warn("intercept: cannot remove the counters of deleted classes", "module", f.live.Module, "error", err)
	}
	pages, err := f.mapPages(f.live.Maps)
	if err != nil {
		slog.Error("intercept: does not watch over deadlines", "module", f.live.Module, "error", err)
		return
	}
	defer pages.close()
	f.begin(pages)
	var answers sync.WaitGroup
	defer answers.Wait()
	if f.answers != nil {
		answers.Go(func() { f.answers.Run(ctx) })
	}
	grace := time.NewTimer(graceTime)
	defer grace.Stop()
	tick := time.NewTicker(logTick)
	defer tick.Stop()
	watch, log := newWatch(f.Intercept, pages), newMissLog(f.live.Module)
	log.logFallbacks(f.Classes, f.live.Maps)
	for {
		select {
		case <-ctx.Done():
			if f.isSucceeded() {
				f.takeBack()
			}
			return
		case <-grace.C:
			f.dismiss(pages)
		case <-tick.C:
			log.logMisses(watch.misses())
			log.logFallbacks(f.Classes, f.live.Maps)
		}
	}
}

// isSucceeded reports whether packets meet other values in the same maps.
func (f *running) isSucceeded() bool {
	half, err := f.live.Maps.ActiveHalf()
	return err == nil && half != f.half
}

// takeBack undoes what control messages have changed, for the values may be chosen again as they are. It does so as
// the data plane changes classes: packets under way still meet them. The half may be that of other values by now: the
// agent fills it for a further change without waiting for the end of this configuration.
func (f *running) takeBack() {
	if err := f.resetTable(f.Classes...); err != nil {
		slog.Warn("intercept: control messages are in force when this configuration comes back", "module", f.live.Module,
			"error", err)
	}
}

// resetTable writes the entries of classes into the half that packets read. Each entry is there twice: packets go by
// one of both while the other one is written, and then by that.
func (f *running) resetTable(classes ...*class) error {
	m, err := f.live.Maps.Get(mapTable)
	if err != nil {
		return err
	}
	memory, err := unix.Mmap(m.FD(), 0, 2*int(m.ValueSize()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map %s: mmap: %w", mapTable, err)
	}
	defer func() { _ = unix.Munmap(memory) }() // it is mapped
	t, own := (*tableEntry)(unsafe.Pointer(&memory[f.half*int(m.ValueSize())])), f.table()
	f.consumers.writing.Lock()
	defer f.consumers.writing.Unlock()
	if t.Identity != own.Identity {
		return nil
	}
	for tries := 0; !atomic.CompareAndSwapUint32(&t.Draining, 0, 1); tries++ { // for microseconds, by packets under way
		if tries == 1000 {
			return errors.New("its lock is not given back")
		}
		time.Sleep(time.Millisecond)
	}
	defer atomic.StoreUint32(&t.Draining, 0)
	version := atomic.LoadUint32(&t.Version)
	for i := range uint32(2) {
		for _, c := range classes {
			at := slices.Index(f.Classes, c)
			t.Classes[(version+1+i)&1][at] = own.Classes[0][at]
		}
		if i == 0 {
			atomic.AddUint32(&t.Version, 1)
		}
	}
	if len(classes) == len(f.Classes) {
		t.AnyPort = own.AnyPort
	}
	return nil
}

// begin has pages say what the configuration does: they are those of the one before if only values have changed. After
// a restart of the control plane they are its own, with what control messages have changed.
func (f *Intercept) begin(pages *pages) {
	identity := f.table().Identity
	for _, c := range f.Classes {
		if c.slot != noRing {
			pages.state(c.slot).begin(c, identity)
		}
	}
}

// AttachmentChanged implements sdk.AttachmentWatcher.
func (f *running) AttachmentChanged(i sdk.Attachment, there bool) {
	if err := f.refreshExits(); err != nil {
		slog.Error("intercept: packets are not forwarded to interfaces that have changed", "module", f.live.Module, "error",
			err)
	}
	if f.answers != nil {
		f.answers.AttachmentChanged(i, there)
	}
}

// dismiss gives up on programs that had classes open before and did not come back.
func (f *running) dismiss(pages *pages) {
	for _, c := range f.Classes {
		if c.slot != noRing {
			f.consumers.ifVacant(c.Name, func() { f.vacate(c, pages) })
		}
	}
}

// watch sees deadlines that were missed.
type watch struct {
	of    *Intercept
	pages *pages
	begun uint64 // ns of CLOCK_MONOTONIC
	seen  [maxRings]uint64
}

func newWatch(f *Intercept, pages *pages) *watch {
	w := &watch{of: f, pages: pages, begun: sdk.Monotonic()}
	for _, c := range f.Classes {
		if c.slot != noRing {
			w.seen[c.slot] = pages.state(c.slot).Late
		}
	}
	return w
}

// Miss is an event: packets of a class came after their deadline.
type Miss struct {
	Class    string     `json:"class"`
	Deadline uint64     `json:"deadlineNanoseconds"`
	Packets  uint64     `json:"packets"` // since the last event
	Last     LatePacket `json:"last"`
}

// misses are those since the last call.
func (w *watch) misses() (out []Miss) {
	for _, c := range w.of.Classes {
		if c.slot == noRing {
			continue
		}
		n, before := w.pages.state(c.slot).Late, w.seen[c.slot]
		if w.seen[c.slot] = n; n <= before { // less: another program has begun
			continue
		}
		s := w.pages.state(c.slot).copy()
		last := &s.Last[(s.Lates-1)%lates]
		if last.T2 < w.begun { // a program has brought its numbers along into a new configuration
			continue
		}
		out = append(out, Miss{c.Name, s.Deadline, n - before, last.report(c.Name)})
	}
	return out
}

// missLog puts misses into the log, each class's at most every logEvery.
type missLog struct {
	module string
	logged map[string]time.Time
	held   map[string]uint64 // packets that were not reported yet

	fallbacks       map[string]uint64 // as of the last message, or of the first call
	fallbacksLogged map[string]time.Time
}

func newMissLog(module string) *missLog {
	return &missLog{module, map[string]time.Time{}, map[string]uint64{}, map[string]uint64{}, map[string]time.Time{}}
}

// logFallbacks logs the classes whose packets the kernel has answered in their programs' place since the last message.
func (t *missLog) logFallbacks(classes []*class, m sdk.Maps) {
	for _, c := range classes {
		if c.Fallback == nil || time.Since(t.fallbacksLogged[c.Name]) < logEvery {
			continue
		}
		n, err := readCounts(m, c)
		before, known := t.fallbacks[c.Name]
		if err != nil || known && n.Fallbacks == before {
			continue
		}
		if t.fallbacks[c.Name] = n.Fallbacks; known {
			slog.Warn("intercept: the kernel answers in the program's place, which does not read in time", "module", t.module,
				"class", c.Name, "packets", n.Fallbacks-before, "deadline", time.Duration(c.Deadline).String())
			t.fallbacksLogged[c.Name] = time.Now()
		}
	}
}

func (t *missLog) logMisses(misses []Miss) {
	for _, m := range misses {
		t.held[m.Class] += m.Packets
		if time.Since(t.logged[m.Class]) < logEvery {
			continue
		}
		slog.Warn("intercept: packets were late", "module", t.module, "class", m.Class, "packets", t.held[m.Class],
			"deadline", time.Duration(m.Deadline).String(), "last", time.Duration(m.Last.Delay).String(),
			"waited", time.Duration(m.Last.Waited).String(), "running", m.Last.Running)
		t.logged[m.Class], t.held[m.Class] = time.Now(), 0
	}
}

// Handler serves:
//
//	GET classes	classes with counters of packets, consumers and delivery times
//	GET late	the last late packets of each class
//	    answers/	what the responder offers, for classes that are answered
//	GET events	misses of deadlines as they are seen, a JSON object a line, until the reader goes
func (f *running) Handler() http.Handler {
	mux := http.NewServeMux()
	if f.answers != nil {
		mux.Handle("/answers/", http.StripPrefix("/answers", f.answers.Handler()))
	}
	mux.HandleFunc("GET /classes", func(w http.ResponseWriter, _ *http.Request) { sdk.Answer(w)(f.report(f.live.Maps)) })
	mux.HandleFunc("GET /late", func(w http.ResponseWriter, _ *http.Request) { sdk.Answer(w)(f.late(f.live.Maps)) })
	mux.HandleFunc("GET /events", f.events)
	return mux
}

// events ends with the reader, or with the configuration.
func (f *running) events(w http.ResponseWriter, r *http.Request) {
	pages, err := f.mapPages(f.live.Maps)
	if err != nil {
		sdk.Answer(w)(nil, err)
		return
	}
	defer pages.close()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	flush, out := http.NewResponseController(w), json.NewEncoder(w)
	_ = flush.Flush()
	watch := newWatch(f.Intercept, pages)
	tick := time.NewTicker(eventsTick)
	defer tick.Stop()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-f.ended:
			return
		case <-tick.C:
		}
		for _, miss := range watch.misses() {
			if out.Encode(miss) != nil || flush.Flush() != nil {
				return
			}
		}
	}
}
