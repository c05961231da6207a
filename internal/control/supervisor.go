// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/sdk"
)

// Time limits of calls, which docs/control-planes.md promises.
const (
	compileTime = 10 * time.Second
	fillTime    = 30 * time.Second
	callTime    = 5 * time.Second
	metricsTime = time.Second            // a scrape waits for all control planes
	noteTime    = 200 * time.Millisecond // the packets of a trace wait
)

// Restarts and checks.
const (
	firstPause  = 500 * time.Millisecond
	longestWait = 30 * time.Second
	calmAfter   = time.Minute // a run that lasted this long does not count as a crash loop
	maxMissed   = 3           // health checks without any answer
)

// keepAfter is how long Keep waits for the next change.
const keepAfter = time.Second

// Supervisor is the control plane of one module in one version of its package.
type Supervisor struct {
	module  string
	pkg     *pkgs.Package
	log     *slog.Logger
	start   func() (*run, error)
	closing chan struct{}
	closed  chan struct{}
	changed chan struct{} // wakes the supervisor: the wanted state has changed

	grants []any // of capabilities that the manifest names

	onChange func(module string) // may be nil
	onEvent  func(module, reason, message string)

	keeping sync.WaitGroup // see Keep

	sending sync.Mutex // while maps of want are sent or closed

	mu        sync.Mutex
	toKeep    func() // waits for the previous call of Keep; may be nil
	isKeeping bool
	run       *run          // nil while there is none
	arrived   chan struct{} // closed when a run begins, and replaced
	want      *live         // nil before the first Start
	state     State
	// startedWith is the map set that the current run has started with, empty before.
	startedWith string
	placed      *live         // the attachments that the current run has received or rejected
	rest        chan struct{} // closed while the control plane is suspended
	resume      chan struct{} // closed otherwise
	serial      int           // makes names of map sets unique
	progress    chan struct{} // closed and replaced whenever state changes
	measured    []sdk.Sample  // its last metrics
}

// live is the map set that the control plane works on.
type live struct {
	name        string
	config      json.RawMessage
	maps        sdk.Maps // own copies
	of          sdk.Maps // what they are copies of
	attachments []sdk.Attachment
}

// State is the state of a control plane process.
type State struct {
	Running     bool
	Started     bool   // it has started with the current map set
	HealthKnown bool   // its health has been checked since then
	Healthy     bool   // by its own word
	Reason      string // why not
	Restarts    int
	PID         int
	// Conditions are those that it reported with its last health answer.
	Conditions []sdk.Condition
	// Ejected are the instances of virtual services to which it sends no new connections.
	Ejected []sdk.EjectedInstance
}

// sameStatus reports whether the states differ at most in reasons and figures.
func (s State) sameStatus(o State) bool {
	same := func(c, d sdk.Condition) bool { return c.Type == d.Type && c.Status == d.Status }
	return s.Running == o.Running && s.Started == o.Started &&
		s.HealthKnown == o.HealthKnown && s.Healthy == o.Healthy &&
		slices.EqualFunc(s.Conditions, o.Conditions, same)
}

func newSupervisor(module string, p *pkgs.Package, opts Options, start starter) *Supervisor {
	supervisor := &Supervisor{module: module, pkg: p, log: opts.Log.With("module", module), onChange: opts.OnChange,
		onEvent: opts.OnEvent,
		closing: make(chan struct{}), closed: make(chan struct{}), changed: make(chan struct{}, 1),
		arrived: make(chan struct{}), progress: make(chan struct{}), rest: make(chan struct{}), resume: make(chan struct{})}
	supervisor.grants = grant(&opts, module, p)
	close(supervisor.resume)
	supervisor.start = func() (*run, error) { return newRun(opts.sockets(), module, start) }
	supervisor.state = State{Reason: "starting"}
	return supervisor
}

// Package returns the package of the control plane.
func (p *Supervisor) Package() *pkgs.Package { return p.pkg }

// State returns the state of the control plane.
func (p *Supervisor) State() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

func (p *Supervisor) setState(change func(*State)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.state
	change(&p.state)
	close(p.progress)
	p.progress = make(chan struct{})
	if p.onChange != nil && !p.state.sameStatus(before) {
		p.onChange(p.module)
	}
}

// Keep calls do in the background: keepAfter later, after the previous call, and before Close returns. A call that is
// still waiting then is discarded. Keep stores what is not needed until the next start of the agent: no change waits
// for it, and a series of changes writes only one file.
func (p *Supervisor) Keep(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.toKeep = do
	if !p.isKeeping {
		p.isKeeping = true
		p.keeping.Go(p.keep)
	}
}

func (p *Supervisor) keep() {
	for {
		select {
		case <-time.After(keepAfter):
		case <-p.closing:
		}
		p.mu.Lock()
		do := p.toKeep
		p.toKeep, p.isKeeping = nil, do != nil
		p.mu.Unlock()
		if do == nil {
			return
		}
		do()
	}
}

// Close ends the control plane and returns when it has ended.
func (p *Supervisor) Close() {
	p.mu.Lock()
	select {
	case <-p.closing:
	default:
		close(p.closing)
	}
	p.mu.Unlock()
	<-p.closed
	p.keeping.Wait()
}

// Suspend suspends the control plane until Resume, and returns when it has ended. What it worked on is kept.
func (p *Supervisor) Suspend() {
	p.mu.Lock()
	if !isClosed(p.rest) {
		close(p.rest)
		p.resume = make(chan struct{})
	}
	p.mu.Unlock()
	for {
		p.mu.Lock()
		r, progress := p.run, p.progress
		p.mu.Unlock()
		if r == nil {
			return
		}
		select {
		case <-progress:
		case <-p.closed:
			return
		}
	}
}

// Resume ends a Rest, if there is one.
func (p *Supervisor) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if isClosed(p.rest) {
		close(p.resume)
		p.rest = make(chan struct{})
	}
}

// suspension returns channels that are closed when the control plane is to be suspended, and when it is to continue.
func (p *Supervisor) suspension() (rest, resume <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rest, p.resume
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (p *Supervisor) event(reason, message string) {
	if p.onEvent != nil {
		p.onEvent(p.module, reason, message)
	}
}

// supervise keeps the control plane running.
func (p *Supervisor) supervise() {
	defer close(p.closed)
	defer p.setWant(nil)
	for _, g := range grantsOf[closer](p) {
		defer g.Close()
	}
	pause := firstPause
	for {
		rest, resume := p.suspension()
		select {
		case <-p.closing:
			return
		case <-resume:
		}
		begin := time.Now()
		err := p.live(rest)
		switch {
		case isClosed(p.closing):
			return
		case isClosed(rest):
			p.setState(func(s *State) { s.Running, s.Started, s.PID, s.Reason = false, false, 0, resting })
			continue
		}
		if time.Since(begin) > calmAfter {
			pause = firstPause
		}
		p.event("Exited", fmt.Sprintf("%v; started again in %v", err, pause))
		p.log.Error("control plane exited; the data plane keeps running", "error", err, "nextTry", pause)
		p.setState(func(s *State) {
			s.Running, s.Started, s.PID, s.Reason = false, false, 0, fmt.Sprintf("%v; tried again after %v", err, pause)
			s.Restarts++
		})
		select {
		case <-p.closing:
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, longestWait)
	}
}

const resting = "rests while a new version shows that it is healthy"

// live runs one run, from its start to its end.
func (p *Supervisor) live(rest <-chan struct{}) error {
	r, err := p.start()
	if err != nil {
		return err
	}
	p.mu.Lock()
	if isClosed(rest) { // Suspend has seen that there is none
		p.mu.Unlock()
		r.process.end(resting)
		<-r.ended
		return r.why
	}
	p.run, p.startedWith, p.placed = r, "", nil
	close(p.arrived)
	p.arrived = make(chan struct{})
	p.mu.Unlock()
	p.setState(func(s *State) { s.Running, s.HealthKnown, s.Reason, s.PID = true, false, "", r.process.pid })
	p.event("Started", fmt.Sprintf("process %d", r.process.pid))
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.syncUntilEnd(r)
	}()
	select {
	case <-r.ended:
	case <-p.closing:
		r.process.end("the module was removed or replaced")
		<-r.ended
	case <-rest:
		r.process.end(resting)
		<-r.ended
	}
	<-done
	p.mu.Lock()
	p.run = nil
	p.mu.Unlock()
	return r.why
}

// syncUntilEnd keeps a run in sync and checks its health, until it ends.
func (p *Supervisor) syncUntilEnd(r *run) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-r.ended
		cancel()
	}()
	var feeding sync.WaitGroup
	defer feeding.Wait()
	defer cancel() // runs before the wait
	for _, g := range grantsOf[follower](p) {
		feeding.Go(func() { g.follow(ctx, p, r) })
	}
	feeding.Go(func() { p.serveRequests(ctx, r) })
	for _, g := range grantsOf[ender](p) {
		defer g.end()
	}
	health := time.NewTimer(untilTick(healthEvery))
	defer health.Stop()
	retry := time.NewTimer(0)
	defer retry.Stop()
	delivered, missed := &delivered{}, 0
	for {
		select {
		case <-r.ended:
			return
		case <-p.closing:
			return
		case <-p.changed:
			p.synchronize(ctx, r, delivered, retry)
		case <-retry.C:
			p.synchronize(ctx, r, delivered, retry)
		case <-health.C:
			health.Reset(untilTick(healthEvery))
			if missed = p.checkHealth(ctx, r, missed); missed >= maxMissed {
				r.process.kill(fmt.Sprintf("did not answer %d health checks", missed))
				return
			}
			p.maintain(r)
		}
	}
}
