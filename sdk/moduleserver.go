// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
)

// moduleServer serves the contract of docs/control-planes.md for one module.
type moduleServer struct {
	module   string
	control  Control
	inbox    *inbox
	requests *requests

	starting sync.Mutex   // one start at a time: the agent tries again while a slow one is still under way
	ended    bool         // no more starts; guarded by starting
	turning  sync.RWMutex // held from the end of one map set's work to the start of the next; requests wait

	retiring sync.WaitGroup // map sets that requests still use

	mu       sync.Mutex
	compiled []compilation // newest last
	current  *running
	failure  error           // of the last start; nil after a success
	retired  map[string]bool // names of map sets that requests may still use
}

// compilation is a config with its compiled form: the agent calls fill and start with the config that it compiled.
type compilation struct {
	config [sha256.Size]byte
	result Compiled
}

// running is the map set that packets use.
type running struct {
	mapSet    string
	maps      Maps
	settings  Settings // without tunables
	state     Running
	handler   http.Handler    // nil if the module has no routes
	ctx       context.Context // ends with the map set
	cancel    context.CancelFunc
	work      sync.WaitGroup // the background work
	users     sync.WaitGroup // requests that use the maps
	updating  sync.Mutex     // one update of resources at a time
	following sync.Mutex     // one change of attachments at a time

	mu          sync.Mutex
	attachments map[AttachmentKey]Attachment
}

// serveControl serves requests until the agent closes the socket of the maps, or ctx ends.
func serveControl(ctx context.Context, module string, control Control, listener net.Listener,
	maps *net.UnixConn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := &moduleServer{module: module, control: control, requests: newRequests(), retired: map[string]bool{}}
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

// routes returns the handler of the control plane's socket. Paths below PathPrefix are requests of the agent, with
// bodies of at most MaxBody bytes; all others belong to the module.
func (p *moduleServer) routes() http.Handler {
	mux := http.NewServeMux()
	own := func(pattern string, do func(*http.Request) (any, error)) {
		method, path, _ := strings.Cut(pattern, " ")
		mux.HandleFunc(method+" "+PathPrefix+path, func(w http.ResponseWriter, r *http.Request) {
			r.Body = http.MaxBytesReader(w, r.Body, MaxBody)
			reply(w)(do(r))
		})
	}
	mux.HandleFunc("POST "+PathPrefix+"compile", p.serveCompile)
	own("POST fill", decoded(p.serveFill))
	own("POST start", decoded(p.serveStart))
	own("POST drop", decoded(p.serveDrop))
	own("POST attached", decoded(func(_ context.Context, i Attachment) (any, error) { return p.setAttachment(i, true) }))
	own("POST detached", decoded(func(_ context.Context, i Attachment) (any, error) { return p.setAttachment(i, false) }))
	own("POST virtualservices", decoded(p.serveVirtualServices))
	own("POST models", decoded(p.serveModels))
	own("GET wanted", func(r *http.Request) (any, error) { return p.requests.take(r.Context()), nil })
	own("GET health", p.serveHealth)
	own("GET metrics", p.serveMetrics)
	own("POST note", decoded(p.serveNote))
	mux.HandleFunc("/", p.serveModule)
	return mux
}

// reply writes an answer: 204 without a value, 422 for a *ConfigError, 503 if unhealthy, 404 for requests that the
// module does not support, 409 for requests at the wrong time, 500 for all other errors.
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
			} else if errors.Is(err, errOtherMapSet) {
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
	errNotOurs     = errors.New("the control plane does not work with this")
	errOtherMapSet = errors.New("another map set is running")
)

// decoded returns a handler for requests with a JSON body.
func decoded[T any](do func(ctx context.Context, request T) (any, error)) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		var request T
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			return nil, err
		}
		return do(r.Context(), request)
	}
}

// serveCompile also fills the active map set if requested, so that a change of values takes one request.
func (p *moduleServer) serveCompile(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, MaxBody)
	reply(w)(func() (any, error) {
		req, err := readCompile(r)
		if err != nil {
			return nil, err
		}
		c, err := p.compile(req.Config)
		if err != nil {
			return nil, err
		}
		settings := c.Settings()
		if active := r.Header.Get(FillHeader); active != "" && p.fillActive(active, c, settings) {
			w.Header().Set(FillHeader, active)
		}
		return settings, nil
	}())
}

// fillActive fills the maps of the active map set if a config differs from the active one only in values, and reports
// whether it has. Errors are left to fill.
func (p *moduleServer) fillActive(mapSet string, c Compiled, settings Settings) bool {
	now := p.use()
	if now == nil {
		return false
	}
	defer now.users.Done()
	settings.Tunables = nil
	return now.mapSet == mapSet && reflect.DeepEqual(settings, now.settings) && c.Fill(now.maps) == nil
}

const compilationsKept = 2

// compile caches the last results: a large config is compiled once for compile, fill and start.
func (p *moduleServer) compile(config json.RawMessage) (Compiled, error) {
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

func (p *moduleServer) serveFill(ctx context.Context, req MapSetRequest) (any, error) {
	c, err := p.compile(req.Config)
	if err != nil {
		return nil, err
	}
	maps, err := p.inbox.get(ctx, req.MapSet)
	if err != nil {
		return nil, err
	}
	return nil, c.Fill(maps)
}

// serveStart makes a map set the current one. If it has already started, only the attachments are updated.
func (p *moduleServer) serveStart(ctx context.Context, req MapSetRequest) (any, error) {
	p.starting.Lock()
	defer p.starting.Unlock()
	if p.ended {
		return nil, errors.New("the control plane is shutting down")
	}
	before := p.running() // no other goroutine starts or stops it in the meantime
	if before != nil && before.mapSet == req.MapSet {
		before.setAttachments(req.Attachments)
		return nil, nil
	}
	c, err := p.compile(req.Config)
	if err != nil {
		return nil, err
	}
	maps, err := p.inbox.get(ctx, req.MapSet)
	if err != nil {
		return nil, err
	}
	err = p.turn(before, func() (*running, error) { return p.activate(req, c, maps) })
	p.retire(before)
	return nil, err
}

// turn ends the work of one map set before it starts that of the next: they share tables, and a ring buffer can have
// only one reader. If the next map set cannot be opened, there is no current one, and the agent tries again.
func (p *moduleServer) turn(before *running, activate func() (*running, error)) error {
	p.turning.Lock()
	defer p.turning.Unlock()
	if before != nil {
		before.cancel()
		before.work.Wait()
	}
	next, err := activate()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current, p.failure = next, err
	if before != nil {
		p.retired[before.mapSet] = true
	}
	return err
}

// activate opens a map set and starts its work.
func (p *moduleServer) activate(req MapSetRequest, c Compiled, maps Maps) (*running, error) {
	n := &running{mapSet: req.MapSet, maps: maps, settings: c.Settings(), attachments: byKey(req.Attachments)}
	n.settings.Tunables = nil
	p.requests.begin(req.MapSet)
	state, err := c.Open(Live{Module: p.module, Maps: maps, Attachments: n.list, Resolve: p.requests.resolve,
		Release: p.requests.release, Inject: p.inbox.packets.inject, Arrive: p.requests.arrive, Kernel: req.Kernel})
	if err != nil {
		return nil, fmt.Errorf("open map set %s: %w", req.MapSet, err)
	}
	n.state = state
	n.ctx, n.cancel = context.WithCancel(context.Background())
	if h, ok := state.(Handler); ok {
		n.handler = h.Handler()
	}
	if b, ok := state.(Runner); ok {
		n.work.Go(func() { b.Run(n.ctx) })
	}
	return n, nil
}

// retire closes the maps of a map set when the last request that uses them has ended.
func (p *moduleServer) retire(n *running) {
	if n == nil {
		return
	}
	p.retiring.Go(func() {
		n.users.Wait()
		p.inbox.drop(n.mapSet)
		p.mu.Lock()
		delete(p.retired, n.mapSet)
		p.mu.Unlock()
	})
}

// stop ends the work of the current map set. It returns when this work and all requests that use the current or a
// retired map set have ended.
func (p *moduleServer) stop() {
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

func (p *moduleServer) running() *running {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current
}

// use keeps the maps of the current map set open until users.Done.
func (p *moduleServer) use() *running {
	p.turning.RLock()
	defer p.turning.RUnlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current != nil {
		p.current.users.Add(1) // under the lock for replacing it, hence never after Wait has begun
	}
	return p.current
}

func (p *moduleServer) serveDrop(_ context.Context, req MapSetRequest) (any, error) {
	p.mu.Lock()
	running, retired := p.current != nil && p.current.mapSet == req.MapSet, p.retired[req.MapSet]
	p.mu.Unlock()
	if running {
		return nil, fmt.Errorf("map set %s is running", req.MapSet)
	}
	// otherwise retire closes it: a descriptor that is closed during a request may belong to another map by then
	if !retired {
		p.inbox.drop(req.MapSet)
	}
	return nil, nil
}

func (p *moduleServer) setAttachment(i Attachment, there bool) (any, error) {
	if now := p.use(); now != nil {
		defer now.users.Done()
		now.setAttachment(i, there)
	}
	return nil, nil
}

func (p *moduleServer) serveVirtualServices(_ context.Context, update VirtualServiceUpdate) (any, error) {
	return updateUser(p, update.MapSet, func(user VirtualServiceUser) (any, error) {
		return nil, user.VirtualServices(update)
	})
}

func (p *moduleServer) serveModels(_ context.Context, update ModelUpdate) (any, error) {
	return updateUser(p, update.MapSet, func(user ModelUser) (any, error) { return user.Models(update) })
}

// updateUser passes resources to the current map set, if the update is for it and the module uses such resources.
func updateUser[U any](p *moduleServer, mapSet string, update func(U) (any, error)) (any, error) {
	now := p.use()
	if now == nil {
		return nil, errOtherMapSet
	}
	defer now.users.Done()
	user, ok := now.state.(U)
	if !ok {
		return nil, errNotOurs
	}
	if now.mapSet != mapSet {
		return nil, errOtherMapSet
	}
	now.updating.Lock()
	defer now.updating.Unlock()
	return update(user)
}

// serveHealth answers with conditions and ejected instances. An error of any of them, not only of Health, counts as
// unhealthy.
func (p *moduleServer) serveHealth(*http.Request) (any, error) {
	now := p.use()
	if now == nil {
		return nil, p.unopened()
	}
	defer now.users.Done()
	if h, ok := now.state.(HealthChecker); ok {
		if err := h.Health(); err != nil {
			return nil, &unhealthyError{err}
		}
	}
	var answer HealthAnswer
	var err error
	if c, ok := now.state.(Conditioner); ok {
		if answer.Conditions, err = c.Conditions(); err != nil {
			return nil, &unhealthyError{err}
		}
	}
	if r, ok := now.state.(InstanceReporter); ok {
		if answer.Ejected, err = r.Ejected(); err != nil {
			return nil, &unhealthyError{err}
		}
	}
	return answer, nil
}

// unopened returns the reason why there is no map set, if its start failed.
func (p *moduleServer) unopened() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failure == nil {
		return nil
	}
	return &unhealthyError{p.failure}
}

func (p *moduleServer) serveMetrics(*http.Request) (any, error) {
	now := p.use()
	if now == nil {
		return []Sample{}, nil
	}
	defer now.users.Done()
	m, ok := now.state.(Collector)
	if !ok {
		return []Sample{}, nil
	}
	return m.Collect()
}

func (p *moduleServer) serveNote(_ context.Context, r NoteRequest) (any, error) {
	now := p.use()
	if now == nil {
		return NoteAnswer{}, nil
	}
	defer now.users.Done()
	namer, ok := now.state.(NoteNamer)
	if !ok {
		return nil, errNotOurs
	}
	return NoteAnswer{namer.NoteName(r.Note, r.Value)}, nil
}

// serveModule passes the request to the module's handler. The map set stays open until the handler returns, even if it
// is replaced in the meantime.
func (p *moduleServer) serveModule(w http.ResponseWriter, r *http.Request) {
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
