// SPDX-License-Identifier: Apache-2.0

// Package oakestra stands in for the network manager of an Oakestra node: it answers the requests of its eBPF manager
// (/ebpf) and those that NodeEngine makes when containers come and go, and turns both into resources of the agent.
//
// The agent's resources are the truth about what runs. A small file beside the store keeps what they cannot hold: counters
// that never go back, configs as they were sent, and who has which address. It is written before the kernel is touched,
// so that whatever a killed agent leaves behind is found and finished or removed by the next.
package oakestra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/config"
	"github.com/kerb-edge/kerb/internal/paths"
	"github.com/kerb-edge/kerb/internal/server"
)

// Agent is what the listener needs of the agent; its methods are those of server.Backend.
type Agent interface {
	Apply(ctx context.Context, r server.Request) (v1.ApplyResult, error)
	Delete(ctx context.Context, refs []server.Ref, dryRun bool) (v1.ApplyResult, error)
	Modules(ctx context.Context) ([]v1.Module, error)
	Module(ctx context.Context, name string) (v1.Module, error)
	Services(ctx context.Context) ([]v1.Service, error)
	ServeModule(w http.ResponseWriter, r *http.Request, name string) error
}

// Limits of a request. Applying may verify chains of many services on a slow node.
const (
	maxBody      = 1 << 20
	readTimeout  = 30 * time.Second
	workTimeout  = 5 * time.Minute
	idleTimeout  = 2 * time.Minute
	closeTimeout = 5 * time.Second
	sweepEvery   = 5 * time.Second
)

// Listener answers Oakestra's requests.
type Listener struct {
	agent Agent
	log   *slog.Logger
	file  string
	// ranges are those of virtual addresses, for the proxy.
	ranges []string

	mu    sync.Mutex // one request that changes something at a time; guards what follows
	net   *network
	state state
}

// open reads what is left of the last run, and clears away what that run did not finish.
func open(ctx context.Context, p paths.Paths, o config.Oakestra, agent Agent, log *slog.Logger) (*Listener, error) {
	l := &Listener{agent: agent, log: log, file: p.Oakestra(), ranges: config.OakestraRanges, net: newNetwork(p, o)}
	var err error
	if l.state, err = readState(l.file); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.adopt(ctx); err != nil {
		return nil, err
	}
	return l, l.sweep(ctx, true)
}

// Run serves as the configuration says until ctx ends. Without a section oakestra it does nothing.
func Run(ctx context.Context, c config.Config, agent Agent, log *slog.Logger) error {
	if c.Oakestra == nil {
		return nil
	}
	o := c.Oakestra.Complete(c.Paths)
	l, err := open(ctx, c.Paths, o, agent, log)
	if err != nil {
		return fmt.Errorf("oakestra: %w", err)
	}
	if r := c.Resolvers.Oakestra; r != nil {
		l.ranges = r.Complete().Ranges
	}
	endpoints, err := listen(o, c.SocketGroup, log)
	if err != nil {
		return fmt.Errorf("oakestra: %w", err)
	}
	var follow sync.WaitGroup
	defer follow.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	follow.Go(func() { l.follow(ctx) })
	log.Info("serving Oakestra", "socket", o.Socket, "tcp", o.TCP)
	return l.serve(ctx, endpoints)
}

func listen(o config.Oakestra, group string, log *slog.Logger) ([]server.Endpoint, error) {
	var all []server.Endpoint
	if o.Socket != "" {
		socket, err := server.ListenUnix(o.Socket, group)
		if err != nil {
			return nil, err
		}
		all = append(all, server.Endpoint{Listener: socket})
	}
	if o.TCP == "" {
		return all, nil
	}
	tcp, err := listenTCP(o, log)
	if err != nil {
		for _, e := range all {
			err = errors.Join(err, e.Close())
		}
		return nil, err
	}
	return append(all, tcp), nil
}

func listenTCP(o config.Oakestra, log *slog.Logger) (server.Endpoint, error) {
	if o.TLS != nil {
		t := *o.TLS
		t.Address = o.TCP
		return server.ListenTCP(t)
	}
	l, err := net.Listen("tcp", o.TCP)
	if err != nil {
		return server.Endpoint{}, fmt.Errorf("TCP listener: %w", err)
	}
	if at, ok := l.Addr().(*net.TCPAddr); ok && !at.IP.IsLoopback() {
		log.Warn("the Oakestra listener is unauthenticated: any client that can connect can reconfigure this node; set oakestra.tls, or listen on 127.0.0.1", "address", at)
	}
	return server.Endpoint{Listener: server.LimitConnections(l, server.MaxConnections)}, nil
}

// serve answers on all endpoints until ctx ends or one of them fails.
func (l *Listener) serve(ctx context.Context, endpoints []server.Endpoint) error {
	failed := make(chan error, len(endpoints))
	var serving sync.WaitGroup
	var servers []*http.Server
	for _, e := range endpoints {
		h := l.httpServer(e)
		servers = append(servers, h)
		serving.Go(func() { failed <- h.Serve(e) })
	}
	defer serving.Wait()
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
		err = fmt.Errorf("oakestra: %w", err)
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	for _, h := range servers {
		if h.Shutdown(ending) != nil {
			err = errors.Join(err, h.Close())
		}
	}
	return err
}

func (l *Listener) httpServer(e server.Endpoint) *http.Server {
	h := &http.Server{
		Handler:           l.handler(),
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      workTimeout + readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(l.log.Handler(), slog.LevelDebug),
	}
	e.Protect(h, l.log)
	return h
}

// handler has all routes. Web pages cannot use them: a browser on the node reaches 127.0.0.1, too.
func (l *Listener) handler() http.Handler {
	mux := http.NewServeMux()
	l.addModuleRoutes(mux)
	l.addNodeRoutes(mux)
	limited := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A change that has begun is finished, even when the one who asked for it has gone.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), workTimeout)
		defer cancel()
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		defer l.recover(w, r)
		mux.ServeHTTP(w, r.WithContext(ctx))
	})
	return http.NewCrossOriginProtection().Handler(limited)
}

// recover keeps the agent alive if a handler panics, and leaves word of it.
func (l *Listener) recover(w http.ResponseWriter, r *http.Request) {
	if reason := recover(); reason != nil {
		l.log.Error("panic in a request of Oakestra", "method", r.Method, "path", r.URL.Path, "panic", reason, "stack", string(debug.Stack()))
		http.Error(w, fmt.Sprintf("internal error; the agent's log has the details: %v", reason), http.StatusInternalServerError)
	}
}

// follow clears away services whose namespace has ended without an undeploy.
func (l *Listener) follow(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		l.mu.Lock()
		if err := l.sweep(ctx, false); err != nil && ctx.Err() == nil {
			l.log.Error("oakestra: services that are gone cannot be cleared away", "error", err)
		}
		l.mu.Unlock()
	}
}
