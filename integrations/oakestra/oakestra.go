// SPDX-License-Identifier: Apache-2.0

// Package oakestra replaces the network manager of an Oakestra node. It serves the requests of Oakestra's eBPF manager
// (/ebpf), and those of NodeEngine when containers start and stop, and translates both to resources of the agent. It
// runs in a separate process as a client of the agent's API.
//
// The agent's resources define what runs. A small file next to the store holds what they cannot contain: monotonic
// counters, configs as they were sent, and the assignment of addresses. It is written before the kernel is changed, so
// that the next process finds everything that a killed process has left, and completes or removes it.
package oakestra

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/integration/link"
	"github.com/kerb-edge/kerb/internal/serve"
)

// Options are the options that the agent passes to the integration.
type Options struct {
	Agent       string     // socket of the agent's API
	State       string     // directory of the agent's state: interfaces and tables are named after it
	File        string     // path of the state file
	Socket      string     // for NodeEngine; empty: none
	SocketGroup string     // group that may use it
	TCP         string     // host:port; empty: none
	TLS         *serve.TCP // nil: any client that can connect to TCP may change the node
	Bridge      string
	Alongside   string // bridge of a NetManager on this node, whose ports are services; empty: none
	Subnet      string // empty: the cluster assigns it
	Subnet6     string
	Ranges      []string // of virtual addresses, for the proxy
	Broker      Broker
	Cluster     string // default if the registration does not contain it
	Address     string // of this node, to announce; empty: determined from the route to the cluster
	Port        int    // of the tunnel, to announce
	NetManager  string // directory of NetManager, with its socket, and its files as defaults for other options
	MTU         int    // of services, in bytes; 0: from NetManager's file
	// Packages are directories of packages that services can use by name.
	Packages       []string
	RequireModules bool // reject a deployment whose modules are unknown
	Abstractor     int  // port of the cluster's resource abstractor
}

// Limits of a request. Applying may verify chains of many services on a slow node.
const (
	maxBody     = 1 << 20
	workTimeout = 5 * time.Minute
	sweepEvery  = 5 * time.Second
	reportEvery = time.Second
)

// Listener serves Oakestra's requests.
type Listener struct {
	agent agent
	log   *slog.Logger
	file  string
	// ranges are the ranges of virtual addresses, for the proxy.
	ranges       []string
	options      Options
	intervals    intervals     // of sessions
	wakeup       chan struct{} // wakes follow; buffered
	usedServices usedServices  // safe for concurrent use
	jobs         inbox         // safe for concurrent use
	// resolved receives results of lookups for the agent.
	resolved func(link.Result)

	mu      sync.Mutex // serializes changes, and guards the fields below
	net     *network
	state   state
	session *session      // nil before the registration
	subnet  chan struct{} // closed when the node has a subnet
	// planeApplied are the modules of the data plane as they were applied: users may change them.
	planeApplied     []v1.Module
	planeUnconfirmed bool // the agent did not confirm them in time, which was logged
	// lateRequestsUntil is how long the agent may still execute requests that have timed out.
	lateRequestsUntil time.Time
	// prepared are services whose modules wait for their first instance, with their expiry.
	prepared map[string]time.Time
	// preparing is a resource of the last preparation that the agent did not confirm in time.
	preparing string
}

// Main is the main function of the integration's process. It serves until ctx ends.
func Main(ctx context.Context, o Options, log *slog.Logger, agent *link.Agent) error {
	o, err := o.withNetcfg()
	if err != nil {
		return err
	}
	l, err := open(ctx, o, log, agent.Resolved)
	if err != nil {
		return err
	}
	defer l.leave()
	endpoints, err := listen(o, log)
	if err != nil {
		return err
	}
	var follow sync.WaitGroup
	defer follow.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	follow.Go(func() { l.follow(ctx) })
	if o.Alongside != "" {
		follow.Go(func() { l.followPorts(ctx) })
	}
	go l.usedServices.followRequests(agent) // ends with the process
	log.Info("serving Oakestra", "socket", o.Socket, "tcp", o.TCP)
	follow.Go(func() { l.report(ctx, agent.Report) })
	return serve.Serve(ctx, l.handler(), workTimeout, log, endpoints...)
}

// open reads the state of the last run, and removes incomplete changes of that run.
func open(ctx context.Context, o Options, log *slog.Logger, resolved func(link.Result)) (*Listener, error) {
	l := &Listener{agent: newAgent(o.Agent), log: log, file: o.File, ranges: o.Ranges, options: o, intervals: defaultTimes,
		net: newNetwork(o), usedServices: usedServices{used: map[string]bool{}}, resolved: resolved,
		wakeup: make(chan struct{}, 1)}
	var err error
	if l.state, err = readState(l.file); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.restoreSubnet(); err != nil {
		return nil, err
	}
	if err := l.sweep(ctx, true); err != nil {
		return nil, err
	}
	if o.Alongside != "" {
		return l, l.deletePlane(ctx)
	}
	if err := l.dropPorts(ctx); err != nil {
		return nil, err
	}
	if l.state.Worker != "" {
		l.join()
	}
	return l, nil
}

// listen opens the configured sockets. NodeEngine's default socket is optional: a failure is only logged. On any other
// error, it closes the opened sockets.
func listen(o Options, log *slog.Logger) ([]serve.Endpoint, error) {
	var all []serve.Endpoint
	if o.Socket != "" {
		socket, err := serve.ListenUnix(o.Socket, o.SocketGroup)
		if err != nil {
			return nil, err
		}
		all = append(all, serve.Endpoint{Listener: socket})
	}
	if e, err := listenDefault(o); err != nil {
		log.Warn("NodeEngine's default socket is not served", "error", err)
	} else if e != nil {
		all = append(all, *e)
	}
	if o.TCP == "" {
		return all, nil
	}
	tcp, err := listenTCP(o)
	if err != nil {
		for _, e := range all {
			err = errors.Join(err, e.Close())
		}
		return nil, err
	}
	return append(all, tcp), nil
}

// listenDefault listens on the default socket that NodeEngine expects of NetManager, on nodes that were set up for
// Oakestra.
func listenDefault(o Options) (*serve.Endpoint, error) {
	if _, err := os.Stat(o.NetManager); o.NetManager == "" || o.Alongside != "" || errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	path := filepath.Join(o.NetManager, "netmanager.sock")
	if path == filepath.Clean(o.Socket) {
		return nil, nil // served already
	}
	socket, err := serve.ListenUnix(path, o.SocketGroup)
	if err != nil {
		return nil, err
	}
	return &serve.Endpoint{Listener: socket}, nil
}

func listenTCP(o Options) (serve.Endpoint, error) {
	if o.TLS != nil {
		t := *o.TLS
		t.Address = o.TCP
		return serve.ListenTCP(t)
	}
	return serve.ListenUnauthenticatedTCP(o.TCP) // a loopback address, as the configuration requires
}

// handler has all routes. It rejects requests of web pages: a browser on the node reaches 127.0.0.1, too.
func (l *Listener) handler() http.Handler {
	mux := http.NewServeMux()
	l.addModuleRoutes(mux)
	if l.options.Alongside == "" {
		l.addNodeRoutes(mux)
	}
	limited := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A change that has started is completed even if the client disconnects.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), workTimeout)
		defer cancel()
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		defer l.recover(w, r)
		mux.ServeHTTP(w, r.WithContext(ctx))
	})
	return http.NewCrossOriginProtection().Handler(limited)
}

// recover logs a panic of a handler, and sends an error response.
func (l *Listener) recover(w http.ResponseWriter, r *http.Request) {
	reason := recover()
	if reason == nil {
		return
	}
	if reason == http.ErrAbortHandler { // a module's response was aborted: the client must notice that it is incomplete
		panic(reason)
	}
	l.log.Error("panic in a request of Oakestra", "method", r.Method, "path", r.URL.Path, "panic", reason,
		"stack", string(debug.Stack()))
	http.Error(w, fmt.Sprintf("internal error; the agent's log has the details: %v", reason),
		http.StatusInternalServerError)
}

// follow removes services whose namespace ended without an undeploy, and resources that the agent did not confirm.
func (l *Listener) follow(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-l.wakeup:
		}
		l.mu.Lock()
		if err := l.keepJobs(); err != nil {
			l.log.Error("the modules of services cannot be stored", "error", err)
		}
		if err := l.sweep(ctx, false); err != nil && ctx.Err() == nil {
			l.log.Error("services without a network namespace cannot be removed", "error", err)
		}
		if err := l.ensurePlane(ctx); err != nil && ctx.Err() == nil {
			l.log.Error("services do not reach other workers", "error", err, "retryIn", sweepEvery.String())
		}
		l.mu.Unlock()
		l.prepareJobs(ctx)
	}
}
