// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// plane serves the contract of docs/control-planes.md for one module.
type plane struct {
	module  string
	control Control
	inbox   *inbox
	wants   *wants

	starting sync.Mutex   // one start at a time: the agent tries again while a slow one is still under way
	ended    bool         // no start any more; guarded by starting
	turning  sync.RWMutex // from the end of one generation's work to the next; requests wait

	retiring sync.WaitGroup // generations that requests still use

	mu       sync.Mutex
	compiled []compilation // newest last
	current  *running
	retired  map[string]bool // names of generations that requests may still use
}

// compilation is a config with what became of it: compile is followed by fill and start with the same config.
type compilation struct {
	config [sha256.Size]byte
	result Compiled
}

// running is the generation that packets meet.
type running struct {
	generation string
	compiled   Compiled
	live       Live
	handler    http.Handler    // nil if the module has no routes
	ctx        context.Context // ends with the generation
	cancel     context.CancelFunc
	work       sync.WaitGroup // the background work
	users      sync.WaitGroup // requests that use the maps
	updating   sync.Mutex     // one update of resources at a time
	following  sync.Mutex     // one change of instances at a time

	mu        sync.Mutex
	instances map[InstanceKey]Instance
}

// servePlane serves until the agent closes the socket of the maps, or ctx ends.
func servePlane(ctx context.Context, module string, control Control, listener net.Listener, maps *net.UnixConn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := &plane{module: module, control: control, wants: newWants(), retired: map[string]bool{}}
	p.inbox = newInbox(maps, p.serveClient)
	server := &http.Server{Handler: p.routes(), ReadHeaderTimeout: 10 * time.Second}
	var reading sync.WaitGroup
	reading.Go(func() {
		p.inbox.run()
		cancel()
	})
	stopped := context.AfterFunc(ctx, func() {
		maps.Close()
		server.Close()
	})
	err := server.Serve(listener)
	cancel()
	stopped()
	maps.Close()
	reading.Wait()
	p.stop()
	p.inbox.close()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func (p *plane) routes() http.Handler {
	mux := http.NewServeMux()
	own := func(pattern string, do func(*http.Request) (any, error)) {
		method, path, _ := strings.Cut(pattern, " ")
		mux.HandleFunc(method+" "+PathPrefix+path, func(w http.ResponseWriter, r *http.Request) {
			r.Body = http.MaxBytesReader(w, r.Body, MaxBody)
			reply(w)(do(r))
		})
	}
	own("POST compile", p.serveCompile)
	own("POST fill", p.serveFill)
	own("POST start", p.serveStart)
	own("POST drop", p.serveDrop)
	own("POST attached", func(r *http.Request) (any, error) { return nil, p.serveInstance(r, true) })
	own("POST detached", func(r *http.Request) (any, error) { return nil, p.serveInstance(r, false) })
	own("POST virtualservices", p.serveVirtualServices)
	own("POST models", p.serveModels)
	own("POST executables", p.serveExecutables)
	own("GET wanted", func(r *http.Request) (any, error) { return p.wants.take(r.Context()), nil })
	own("GET health", p.serveHealth)
	own("GET metrics", p.serveMetrics)
	mux.HandleFunc("/", p.serveModule)
	return mux
}

// reply writes an answer: nothing is 204, a *ConfigError 422, health 503, what is not asked of us 404, what comes at the
// wrong time 409, all other errors 500.
func reply(w http.ResponseWriter) func(any, error) {
	return func(v any, err error) {
		if v == nil && err == nil {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err != nil {
			var wrong *ConfigError
			var sick *unhealthyError
			status, problem := http.StatusInternalServerError, Problem{Reason: err.Error()}
			if errors.As(err, &wrong) {
				status, problem = http.StatusUnprocessableEntity, Problem{Field: wrong.Field, Reason: wrong.Reason}
			} else if errors.As(err, &sick) {
				status = http.StatusServiceUnavailable
			} else if errors.Is(err, errNotOurs) {
				status = http.StatusNotFound
			} else if errors.Is(err, errOtherGeneration) {
				status = http.StatusConflict
			}
			w.WriteHeader(status)
			v = problem
		}
		_ = json.NewEncoder(w).Encode(v) // the client has disconnected
	}
}

type unhealthyError struct{ error }

var (
	errNotOurs         = errors.New("the control plane does not work with this")
	errOtherGeneration = errors.New("another generation is running")
)

func decode[T any](r *http.Request) (T, error) {
	var v T
	err := json.NewDecoder(r.Body).Decode(&v)
	return v, err
}

func (p *plane) serveCompile(r *http.Request) (any, error) {
	req, err := decode[CompileRequest](r)
	if err != nil {
		return nil, err
	}
	c, err := p.compile(req.Config)
	if err != nil {
		return nil, err
	}
	return c.Settings(), nil
}

const compilationsKept = 2

// compile remembers the last results: a large config is worked out once for compile, fill and start.
func (p *plane) compile(config json.RawMessage) (Compiled, error) {
	sum := sha256.Sum256(config)
	p.mu.Lock()
	for _, c := range p.compiled {
		if c.config == sum {
			p.mu.Unlock()
			return c.result, nil
		}
	}
	p.mu.Unlock()
	result, err := p.control.Compile(config)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.compiled) == compilationsKept {
		p.compiled = slices.Delete(p.compiled, 0, 1)
	}
	p.compiled = append(p.compiled, compilation{sum, result})
	return result, nil
}

func (p *plane) serveFill(r *http.Request) (any, error) {
	req, err := decode[GenerationRequest](r)
	if err != nil {
		return nil, err
	}
	c, err := p.compile(req.Config)
	if err != nil {
		return nil, err
	}
	maps, err := p.inbox.get(r.Context(), req.Generation)
	if err != nil {
		return nil, err
	}
	return nil, c.Fill(maps)
}

// serveStart makes a generation the present one. Told again of the same, it only takes the instances over.
func (p *plane) serveStart(r *http.Request) (any, error) {
	req, err := decode[GenerationRequest](r)
	if err != nil {
		return nil, err
	}
	p.starting.Lock()
	defer p.starting.Unlock()
	if p.ended {
		return nil, errors.New("the control plane is shutting down")
	}
	before := p.running() // no other goroutine starts or stops it in the meantime
	if before != nil && before.generation == req.Generation {
		before.setInstances(req.Instances)
		return nil, nil
	}
	c, err := p.compile(req.Config)
	if err != nil {
		return nil, err
	}
	maps, err := p.inbox.get(r.Context(), req.Generation)
	if err != nil {
		return nil, err
	}
	p.turn(before, func() *running { return p.enliven(req, c, maps) })
	p.retire(before)
	return nil, nil
}

// turn ends the work of one generation before that of the next begins: they share tables, and a ring buffer can have one reader only.
func (p *plane) turn(before *running, enliven func() *running) {
	p.turning.Lock()
	defer p.turning.Unlock()
	if before != nil {
		before.cancel()
		before.work.Wait()
	}
	next := enliven()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current = next
	if before != nil {
		p.retired[before.generation] = true
	}
}

func (p *plane) enliven(req GenerationRequest, c Compiled, maps Maps) *running {
	ctx, cancel := context.WithCancel(context.Background())
	n := &running{generation: req.Generation, compiled: c, ctx: ctx, cancel: cancel, instances: byKey(req.Instances)}
	n.live = Live{Module: p.module, Maps: maps, Interface: n.list, Want: p.wants.want, Idle: p.wants.idle, Inject: p.inbox.packets.inject,
		Examine: p.wants.examine, Kernel: req.Kernel}
	if h, ok := c.(Handler); ok {
		n.handler = h.Handler(n.live)
	}
	if b, ok := c.(Runner); ok {
		n.work.Go(func() { b.Run(ctx, n.live) })
	}
	return n
}

// retire lets go of the maps of a generation when the last request is done with them.
func (p *plane) retire(n *running) {
	if n == nil {
		return
	}
	p.retiring.Go(func() {
		n.users.Wait()
		p.inbox.drop(n.generation)
		p.mu.Lock()
		delete(p.retired, n.generation)
		p.mu.Unlock()
	})
}

func (p *plane) stop() {
	p.starting.Lock()
	defer p.starting.Unlock()
	p.ended = true
	p.mu.Lock()
	now := p.current
	p.current = nil
	p.mu.Unlock()
	if now != nil {
		now.cancel()
		now.work.Wait()
		now.users.Wait()
	}
	p.retiring.Wait()
}

func (p *plane) running() *running {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current
}

// use keeps the maps of the present generation open until users.Done.
func (p *plane) use() *running {
	p.turning.RLock()
	defer p.turning.RUnlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current != nil {
		p.current.users.Add(1) // under the lock that takes it away: never after its Wait has begun
	}
	return p.current
}

func (p *plane) serveDrop(r *http.Request) (any, error) {
	req, err := decode[GenerationRequest](r)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	running, retired := p.current != nil && p.current.generation == req.Generation, p.retired[req.Generation]
	p.mu.Unlock()
	if running {
		return nil, fmt.Errorf("generation %s is running", req.Generation)
	}
	if !retired { // else it is let go of by itself: a descriptor that is closed under a request may be another map's by then
		p.inbox.drop(req.Generation)
	}
	return nil, nil
}

func (p *plane) serveInstance(r *http.Request, there bool) error {
	i, err := decode[Instance](r)
	if err != nil {
		return err
	}
	if now := p.use(); now != nil {
		defer now.users.Done()
		now.setInstance(i, there)
	}
	return nil
}

func (p *plane) serveVirtualServices(r *http.Request) (any, error) {
	update, err := decode[VirtualServiceUpdate](r)
	if err != nil {
		return nil, err
	}
	return updateUser(p, update.Generation, func(user VirtualServiceUser, live Live) (any, error) {
		return nil, user.VirtualServices(live, update)
	})
}

func (p *plane) serveModels(r *http.Request) (any, error) {
	update, err := decode[ModelUpdate](r)
	if err != nil {
		return nil, err
	}
	return updateUser(p, update.Generation, func(user ModelUser, live Live) (any, error) { return user.Models(live, update) })
}

func (p *plane) serveExecutables(r *http.Request) (any, error) {
	update, err := decode[ExecutablesUpdate](r)
	if err != nil {
		return nil, err
	}
	return updateUser(p, update.Generation, func(user ExecutableUser, live Live) (any, error) {
		return nil, user.Executables(live, update.Executables)
	})
}

// updateUser tells the present generation of resources, if it is the one meant and works with them.
func updateUser[U any](p *plane, generation string, tell func(U, Live) (any, error)) (any, error) {
	now := p.use()
	if now == nil {
		return nil, errOtherGeneration
	}
	defer now.users.Done()
	user, ok := now.compiled.(U)
	if !ok {
		return nil, errNotOurs
	}
	if now.generation != generation {
		return nil, errOtherGeneration
	}
	now.updating.Lock()
	defer now.updating.Unlock()
	return tell(user, now.live)
}

func (p *plane) serveHealth(*http.Request) (any, error) {
	now := p.use()
	if now == nil {
		return nil, nil
	}
	defer now.users.Done()
	if h, ok := now.compiled.(HealthChecker); ok {
		if err := h.Health(now.live); err != nil {
			return nil, &unhealthyError{err}
		}
	}
	var answer HealthAnswer
	var err error
	if c, ok := now.compiled.(Conditioner); ok {
		if answer.Conditions, err = c.Conditions(now.live); err != nil {
			return nil, &unhealthyError{err}
		}
	}
	if r, ok := now.compiled.(InstanceReporter); ok {
		if answer.Ejected, err = r.Ejected(now.live); err != nil {
			return nil, &unhealthyError{err}
		}
	}
	return answer, nil
}

func (p *plane) serveMetrics(*http.Request) (any, error) {
	now := p.use()
	if now == nil {
		return []Sample{}, nil
	}
	defer now.users.Done()
	m, ok := now.compiled.(Measurer)
	if !ok {
		return []Sample{}, nil
	}
	return m.Measure(now.live)
}

func (p *plane) serveModule(w http.ResponseWriter, r *http.Request) {
	now := p.use()
	if now == nil {
		reply(w)(nil, &unhealthyError{errors.New("the module is not running yet")})
		return
	}
	defer now.users.Done()
	if now.handler == nil {
		http.NotFound(w, r)
		return
	}
	now.handler.ServeHTTP(w, r)
}

// list is ordered by ifindex, then by service and cgroup.
func (n *running) list() []Instance {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.SortedFunc(maps.Values(n.instances), func(a, b Instance) int {
		return cmp.Or(cmp.Compare(a.Ifindex, b.Ifindex), cmp.Compare(a.Service, b.Service), cmp.Compare(a.CgroupID, b.CgroupID))
	})
}

// setInstances takes over a whole list.
func (n *running) setInstances(all []Instance) {
	next := byKey(all)
	for _, old := range n.list() {
		if _, stays := next[old.Key()]; !stays {
			n.setInstance(old, false)
		}
	}
	for _, i := range all {
		n.setInstance(i, true)
	}
}

func (n *running) setInstance(i Instance, there bool) {
	n.following.Lock()
	defer n.following.Unlock()
	n.mu.Lock()
	before, known := n.instances[i.Key()]
	if there {
		n.instances[i.Key()] = i
	} else {
		delete(n.instances, i.Key())
	}
	n.mu.Unlock()
	follower, ok := n.compiled.(InstanceFollower)
	if ok && (known != there || there && !before.Equal(i)) {
		follower.InstanceChanged(n.live, i, there)
	}
}

func byKey(list []Instance) map[InstanceKey]Instance {
	out := make(map[InstanceKey]Instance, len(list))
	for _, i := range list {
		out[i.Key()] = i
	}
	return out
}
