// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/internal/models"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/resolve"
	"github.com/kerb-edge/kerb/sdk"
)

// Times that calls may take. docs/control-planes.md promises them.
const (
	compileTime = 10 * time.Second
	fillTime    = 30 * time.Second
	callTime    = 5 * time.Second
	metricsTime = time.Second // a scrape waits for all control planes
)

// Restarts and checks.
const (
	firstPause  = 500 * time.Millisecond
	longestWait = 30 * time.Second
	calmAfter   = time.Minute // a run that lasted so long is no crash loop
	healthEvery = 5 * time.Second
	maxMissed   = 3 // health checks without any answer
)

// Plane is the control plane of one module in one version of its package.
type Plane struct {
	module  string
	pkg     *pkgs.Package
	log     *slog.Logger
	start   func() (*run, error)
	closing chan struct{}
	closed  chan struct{}
	changed chan struct{} // wakes the supervisor: what is wanted has changed

	services *resolve.Follower // nil unless the package works with virtual services
	models   *models.Follower  // nil unless it works with models
	packets  *packets          // nil unless it sends in the name of services
	door     *door             // nil unless programs may connect

	examine func(sdk.Process) sdk.Executable // nil unless it asks for programs of processes
	kernel  func(context.Context) sdk.Kernel // never nil

	onChange func(module string) // may be nil

	sending sync.Mutex // while maps of want are sent or closed

	mu      sync.Mutex
	run     *run          // nil while there is none
	arrived chan struct{} // closed when a run begins, and replaced
	want    *live         // nil before the first Start
	state   State
	// startedWith is the generation that the present run has started with, empty before.
	startedWith string
	rest        chan struct{} // closed while the control plane is to be away
	resume      chan struct{} // closed otherwise
	serial      int           // makes names of generations unique
	progress    chan struct{} // closed and replaced whenever state changes
	measured    []sdk.Sample  // its last metrics
}

// live is the generation that the control plane is to work on.
type live struct {
	name      string
	config    json.RawMessage
	maps      sdk.Maps // own copies
	instances []sdk.Instance
}

// State is what becomes of a control plane.
type State struct {
	Running     bool
	Started     bool   // has taken the present generation over
	HealthKnown bool   // has been asked for its health since then
	Healthy     bool   // by its own word
	Reason      string // why not
	Restarts    int
	PID         int
	// Conditions are what it tells besides, at its last sign of health.
	Conditions []sdk.Condition
	// Ejected are the instances of virtual services that it gives no new connections.
	Ejected []sdk.EjectedInstance
}

// sameStatus reports whether the states differ in reasons and figures only.
func (s State) sameStatus(o State) bool {
	same := func(c, d sdk.Condition) bool { return c.Type == d.Type && c.Status == d.Status }
	return s.Running == o.Running && s.Started == o.Started &&
		s.HealthKnown == o.HealthKnown && s.Healthy == o.Healthy &&
		slices.EqualFunc(s.Conditions, o.Conditions, same)
}

func newPlane(module string, p *pkgs.Package, opts Options, start starter) *Plane {
	plane := &Plane{module: module, pkg: p, log: opts.Log.With("module", module), onChange: opts.OnChange,
		closing: make(chan struct{}), closed: make(chan struct{}), changed: make(chan struct{}, 1),
		arrived: make(chan struct{}), progress: make(chan struct{}), rest: make(chan struct{}), resume: make(chan struct{})}
	plane.kernel = func(context.Context) sdk.Kernel { return sdk.Kernel{} }
	close(plane.resume)
	plane.start = func() (*run, error) { return newRun(opts.sockets(), module, start) }
	plane.state = State{Reason: "starting"}
	return plane
}

// Package is what the control plane belongs to.
func (p *Plane) Package() *pkgs.Package { return p.pkg }

// State reports how it is.
func (p *Plane) State() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

func (p *Plane) setState(change func(*State)) {
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

// Close ends the control plane and returns when it has ended.
func (p *Plane) Close() {
	p.mu.Lock()
	select {
	case <-p.closing:
	default:
		close(p.closing)
	}
	p.mu.Unlock()
	<-p.closed
}

// Rest ends the control plane until Resume, and returns when it has ended. What it worked on stays its.
func (p *Plane) Rest() {
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

// Resume is the end of a Rest, if there was one.
func (p *Plane) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if isClosed(p.rest) {
		close(p.resume)
		p.rest = make(chan struct{})
	}
}

// turns are closed when the control plane is to rest, and when it is to continue.
func (p *Plane) turns() (rest, resume <-chan struct{}) {
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

// supervise keeps the control plane running.
func (p *Plane) supervise() {
	defer close(p.closed)
	defer p.setWant(nil)
	if p.services != nil {
		defer p.services.Close()
	}
	if p.models != nil {
		defer p.models.Close()
	}
	pause := firstPause
	for {
		rest, resume := p.turns()
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

// live is one run, from its start to its end.
func (p *Plane) live(rest <-chan struct{}) error {
	r, err := p.start()
	if err != nil {
		return err
	}
	p.mu.Lock()
	if isClosed(rest) { // Rest has seen that there is none
		p.mu.Unlock()
		r.process.end(resting)
		<-r.ended
		return r.why
	}
	p.run, p.startedWith = r, ""
	close(p.arrived)
	p.arrived = make(chan struct{})
	p.mu.Unlock()
	p.setState(func(s *State) { s.Running, s.HealthKnown, s.Reason, s.PID = true, false, "", r.process.pid })
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.attend(r)
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

// attend tells a run what it is to work on, and asks for its health.
func (p *Plane) attend(r *run) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-r.ended
		cancel()
	}()
	var feeding sync.WaitGroup
	defer feeding.Wait()
	defer cancel() // runs before the wait
	feeding.Go(func() { p.feed(ctx, r) })
	feeding.Go(func() { p.pollRequests(ctx, r) })
	defer p.closeDoor()
	health := time.NewTicker(healthEvery)
	defer health.Stop()
	retry := time.NewTimer(0)
	defer retry.Stop()
	told, missed := &told{packets: map[uint32]sdk.Instance{}}, 0
	for {
		select {
		case <-r.ended:
			return
		case <-p.closing:
			return
		case <-p.changed:
			p.tell(ctx, r, told, retry)
		case <-retry.C:
			p.tell(ctx, r, told, retry)
		case <-health.C:
			if missed = p.checkHealth(ctx, r, missed); missed >= maxMissed {
				r.process.kill(fmt.Sprintf("did not answer %d health checks", missed))
				return
			}
			p.renewPackets(r, told)
			p.openDoor(r, told)
		}
	}
}

// told is what a run knows.
type told struct {
	generation string
	sent       string // the generation whose maps it was sent last
	instances  map[sdk.InstanceKey]sdk.Instance
	packets    map[uint32]sdk.Instance // for which it has packet sockets
}

const retryTell = time.Second

// tell brings a run up to date, and tries again later if that fails.
func (p *Plane) tell(ctx context.Context, r *run, t *told, retry *time.Timer) {
	p.mu.Lock()
	want := p.want
	p.mu.Unlock()
	if want == nil {
		return
	}
	if err := p.tellRun(ctx, r, t, want); err != nil && ctx.Err() == nil {
		p.log.Warn("control plane does not take over its generation; trying again", "error", err)
		p.setState(func(s *State) { s.Healthy, s.Reason = false, err.Error() })
		retry.Reset(retryTell)
	}
}

func (p *Plane) tellRun(ctx context.Context, r *run, t *told, want *live) error {
	if err := p.sendPackets(r, t, want.instances, false); err != nil {
		return err
	}
	if t.generation != want.name {
		if err := p.sendOnce(ctx, r, t, want); err != nil {
			return err
		}
		req := sdk.GenerationRequest{Generation: want.name, Config: want.config, Instances: want.instances, Kernel: p.kernel(ctx)}
		if err := p.inform(ctx, r, "start", req); err != nil {
			return err
		}
		if t.generation != "" {
			_ = p.call(ctx, r, callTime, "drop", sdk.GenerationRequest{Generation: t.generation}, nil) // it may have let go itself
		}
		t.generation, t.instances = want.name, byKey(want.instances)
		p.mu.Lock()
		p.startedWith = want.name
		p.mu.Unlock()
		p.setState(func(s *State) {
			s.Started, s.HealthKnown, s.Reason = true, false, "no answer to health yet"
		})
		p.openDoor(r, t)
		p.checkHealth(ctx, r, 0)
		return nil
	}
	now := byKey(want.instances)
	for key, i := range t.instances {
		if _, stays := now[key]; !stays {
			if err := p.inform(ctx, r, "detached", i); err != nil {
				return err
			}
			delete(t.instances, key)
		}
	}
	for key, i := range now {
		if before, known := t.instances[key]; !known || !before.Equal(i) {
			if err := p.inform(ctx, r, "attached", i); err != nil {
				return err
			}
			t.instances[key] = i
		}
	}
	return nil
}

// renewPackets tries again what could not be had, and lets go of namespaces that have ended.
func (p *Plane) renewPackets(r *run, t *told) {
	p.mu.Lock()
	want := p.want
	p.mu.Unlock()
	if want == nil {
		return
	}
	if err := p.sendPackets(r, t, want.instances, true); err != nil {
		p.log.Warn("packet sockets are not up to date", "error", err)
	}
}

// inform makes a call that a control plane may leave out.
func (p *Plane) inform(ctx context.Context, r *run, name string, body any) error {
	err := p.call(ctx, r, callTime, name, body, nil)
	var answer *AnswerError
	if errors.As(err, &answer) && answer.Status == http.StatusNotFound {
		return nil
	}
	return err
}

// sendOnce sends the maps of a generation before its first start, and no more: a start that is tried again may be under way
// still, with the maps that came before. A generation that never came to be is dropped.
func (p *Plane) sendOnce(ctx context.Context, r *run, t *told, want *live) error {
	if t.sent == want.name {
		return nil
	}
	if t.sent != "" && t.sent != t.generation {
		_ = p.call(ctx, r, callTime, "drop", sdk.GenerationRequest{Generation: t.sent}, nil) // at worst it keeps the maps open
	}
	if err := p.sendWanted(r, want); err != nil {
		return err
	}
	t.sent = want.name
	return nil
}

// sendWanted sends the maps unless others have taken their place, which close them.
func (p *Plane) sendWanted(r *run, want *live) error {
	p.sending.Lock()
	defer p.sending.Unlock()
	p.mu.Lock()
	superseded := p.want == nil || p.want.name != want.name
	p.mu.Unlock()
	if superseded {
		return errors.New("superseded by a newer generation")
	}
	return r.sendMaps(want.name, want.maps)
}

func byKey(list []sdk.Instance) map[sdk.InstanceKey]sdk.Instance {
	out := make(map[sdk.InstanceKey]sdk.Instance, len(list))
	for _, i := range list {
		out[i.Key()] = i
	}
	return out
}

func byIndex(list []sdk.Instance) map[uint32]sdk.Instance {
	out := make(map[uint32]sdk.Instance, len(list))
	for _, i := range list {
		out[i.Ifindex] = i
	}
	return out
}

// checkHealth returns how many checks in a row had no answer at all.
func (p *Plane) checkHealth(ctx context.Context, r *run, missed int) int {
	health, err := p.askHealth(ctx, r)
	var answer *AnswerError
	if err != nil && !errors.As(err, &answer) {
		p.setState(func(s *State) { s.HealthKnown, s.Healthy, s.Reason = true, false, err.Error() })
		return missed + 1
	}
	p.setState(func(s *State) {
		s.HealthKnown, s.Healthy, s.Reason = true, err == nil, ""
		if err != nil {
			s.Reason = err.Error()
			return
		}
		s.Conditions, s.Ejected = health.Conditions, health.Ejected
	})
	return 0
}

// askHealth returns what the control plane tells besides. An unhealthy one answers with an error.
func (p *Plane) askHealth(ctx context.Context, r *run) (health sdk.HealthAnswer, err error) {
	err = p.call(ctx, r, callTime, "health", nil, &health)
	if answered(err, http.StatusNotFound) || errors.Is(err, errNotUnderstood) { // any 200 is good health
		return sdk.HealthAnswer{}, nil
	}
	return health, err
}

// Compile has a config worked out. known is false when the control plane leaves that to the agent. A mistake in the config
// is a *sdk.ConfigError.
func (p *Plane) Compile(ctx context.Context, config json.RawMessage) (settings sdk.Settings, known bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, compileTime)
	defer cancel()
	r, err := p.present(ctx)
	if err != nil {
		return settings, false, err
	}
	err = p.call(ctx, r, compileTime, "compile", sdk.CompileRequest{Config: config}, &settings)
	var answer *AnswerError
	if errors.As(err, &answer) {
		switch answer.Status {
		case http.StatusNotFound:
			return sdk.Settings{}, false, nil
		case http.StatusUnprocessableEntity:
			return settings, false, &sdk.ConfigError{Field: answer.Problem.Field, Reason: answer.Problem.Reason}
		}
	}
	if err != nil {
		return settings, false, err
	}
	return settings, true, checkSettings(settings)
}

// checkSettings refuses nonsense, and turns numbers into integers.
func checkSettings(s sdk.Settings) error {
	for name, value := range s.Constants {
		number, isNumber := value.(json.Number)
		if _, isBool := value.(bool); isBool {
			continue
		}
		if !isNumber {
			return fmt.Errorf("compile: constant %s is neither a number nor true or false", name)
		}
		if n, err := strconv.ParseInt(number.String(), 10, 64); err == nil {
			s.Constants[name] = n
		} else if n, err := strconv.ParseUint(number.String(), 10, 64); err == nil {
			s.Constants[name] = n
		} else {
			return fmt.Errorf("compile: constant %s is %s, which is no integer of 64 bits", name, number)
		}
	}
	for _, direction := range s.Idle {
		if direction != "egress" && direction != "ingress" {
			return fmt.Errorf("compile: idle has %q, which is neither egress nor ingress", direction)
		}
	}
	return nil
}

// Fill has the maps of a new generation written. They stay the caller's.
func (p *Plane) Fill(ctx context.Context, config json.RawMessage, m sdk.Maps) error {
	ctx, cancel := context.WithTimeout(ctx, fillTime)
	defer cancel()
	r, err := p.present(ctx)
	if err != nil {
		return err
	}
	name := p.name("fill")
	if err := r.sendMaps(name, m); err != nil {
		return p.failed("fill", err)
	}
	err = p.call(ctx, r, fillTime, "fill", sdk.GenerationRequest{Generation: name, Config: config}, nil)
	_ = p.call(ctx, r, callTime, "drop", sdk.GenerationRequest{Generation: name}, nil) // at worst it keeps the maps open
	var answer *AnswerError
	if errors.As(err, &answer) && answer.Status == http.StatusNotFound {
		return nil // it has nothing to fill
	}
	return err
}

// name is one that no set of maps has had.
func (p *Plane) name(kind string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serial++
	return fmt.Sprintf("%s-%d", kind, p.serial)
}

// Start makes a generation the one that the control plane works on, now and after each restart. It does not wait. The maps
// stay the caller's.
func (p *Plane) Start(config json.RawMessage, m sdk.Maps, instances []sdk.Instance) error {
	own := sdk.Maps{}
	for name, one := range m {
		c, err := one.Clone()
		if err != nil {
			closeMaps(own)
			return err
		}
		own[name] = c
	}
	p.setState(func(s *State) { s.Started = false })
	p.setWant(&live{name: p.name("live"), config: config, maps: own, instances: instances})
	return nil
}

// Instances tells where the module runs now.
func (p *Plane) Instances(list []sdk.Instance) {
	p.mu.Lock()
	if p.want == nil || slices.EqualFunc(p.want.instances, list, sdk.Instance.Equal) {
		p.mu.Unlock()
		return
	}
	next := *p.want
	next.instances = list
	p.want = &next
	p.mu.Unlock()
	p.wake()
}

func (p *Plane) setWant(next *live) {
	p.mu.Lock()
	before := p.want
	p.want = next
	p.mu.Unlock()
	if before != nil {
		p.sending.Lock() // they may just be being sent
		closeMaps(before.maps)
		p.sending.Unlock()
	}
	p.wake()
}

func (p *Plane) wake() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

func closeMaps(m sdk.Maps) {
	for _, one := range m {
		one.Close()
	}
}

// settle is how long a new version has to stay healthy: one that falls over does so soon after its start.
const settle = 300 * time.Millisecond

// AwaitHealthy returns nil once the control plane has taken its generation over, says that all is well, and says so again
// after a moment; and an error when it ends or ctx ends before that.
func (p *Plane) AwaitHealthy(ctx context.Context) error {
	var well time.Time // since when
	var last error     // of its health
	for {
		p.mu.Lock()
		s, progress, r := p.state, p.progress, p.run
		p.mu.Unlock()
		if s.Restarts > 0 {
			return errors.New(s.Reason)
		}
		if s.Started && r != nil {
			_, err := p.askHealth(ctx, r)
			switch {
			case err != nil && ctx.Err() != nil:
				return fmt.Errorf("not healthy in time: %w", cmp.Or(last, err))
			case err != nil:
				well, last = time.Time{}, err
			case well.IsZero():
				well = time.Now()
			case time.Since(well) >= min(settle, p.pkg.Control.HealthTime()/2):
				return nil
			}
		}
		select {
		case <-progress:
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("not healthy in time: %w", cmp.Or(last, errors.New(p.State().Reason)))
		}
	}
}

// Metrics asks for the module's metrics. When the control plane does not answer in time, they are those of its last answer,
// and stale.
func (p *Plane) Metrics(ctx context.Context) (samples []sdk.Sample, stale bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, metricsTime)
	defer cancel()
	if r := p.ready(ctx); r != nil {
		err = p.call(ctx, r, metricsTime, "metrics", nil, &samples)
		if err == nil || answered(err, http.StatusNotFound) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.measured = samples
			return samples, false, nil
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.measured, true, err
}

// present waits for a run: a control plane that is just starting again is worth a moment.
func (p *Plane) present(ctx context.Context) (*run, error) {
	for {
		p.mu.Lock()
		r, arrived, state := p.run, p.arrived, p.state
		p.mu.Unlock()
		if r != nil {
			return r, nil
		}
		if state.Restarts > 2 {
			return nil, fmt.Errorf("control plane of module %s does not run: %s", p.module, state.Reason)
		}
		select {
		case <-arrived:
		case <-p.closing:
			return nil, fmt.Errorf("control plane of module %s is closed", p.module)
		case <-ctx.Done():
			return nil, fmt.Errorf("control plane of module %s does not run: %s", p.module, state.Reason)
		}
	}
}

// AnswerError is an answer that is not a success.
type AnswerError struct {
	Call    string
	Status  int
	Problem sdk.Problem
}

func (e *AnswerError) Error() string {
	text := fmt.Sprintf("%s: the control plane answers %d", e.Call, e.Status)
	if e.Problem.Reason != "" {
		text += ": " + e.Problem.Reason
	}
	return text
}

func (p *Plane) failed(call string, err error) error {
	return fmt.Errorf("control plane of module %s: %s: %w", p.module, call, err)
}

// call makes one request of the contract. answer may be nil.
func (p *Plane) call(ctx context.Context, r *run, limit time.Duration, name string, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	method, content := http.MethodGet, io.Reader(http.NoBody)
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		if len(data) > sdk.MaxBody {
			return p.failed(name, fmt.Errorf("the request has %d bytes; at most %d are allowed", len(data), sdk.MaxBody))
		}
		method, content = http.MethodPost, bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://control"+sdk.PathPrefix+name, content)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := r.transport.RoundTrip(req)
	if err != nil {
		return p.failed(name, r.explain(err))
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, sdk.MaxBody+1))
	if err != nil {
		return p.failed(name, r.explain(err))
	}
	return p.failedIf(name, understand(name, res.StatusCode, data, answer))
}

func (p *Plane) failedIf(call string, err error) error {
	var answer *AnswerError
	if err == nil || errors.As(err, &answer) {
		return err
	}
	return p.failed(call, err)
}

// explain prefers the reason of a process's end to what is seen of it on the socket.
func (r *run) explain(err error) error {
	select {
	case <-r.ended:
		return r.why
	case <-time.After(100 * time.Millisecond): // the end is noticed a moment later
		return err
	}
}

var errNotUnderstood = errors.New("the answer cannot be understood")

func understand(name string, status int, data []byte, answer any) error {
	if len(data) > sdk.MaxBody {
		return fmt.Errorf("the answer has more than %d bytes", sdk.MaxBody)
	}
	if status != http.StatusOK && status != http.StatusNoContent {
		e := &AnswerError{Call: name, Status: status}
		_ = json.Unmarshal(data, &e.Problem) // not every library answers JSON
		return e
	}
	if answer == nil || status == http.StatusNoContent {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	dec.DisallowUnknownFields()
	if err := dec.Decode(answer); err != nil {
		return fmt.Errorf("%w: %w", errNotUnderstood, err)
	}
	return nil
}
