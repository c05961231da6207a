// SPDX-License-Identifier: Apache-2.0

// Package containers registers the containers of Docker, Podman or containerd as services with the agent. It runs in a
// separate process as a client of the agent's API, and stores nothing: the desired services follow from the running
// containers, and from those that are about to start their first process, which the runtime's hook reports (package
// hook).
package containers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/internal/integration/link"
)

// Owner is the owner of the services: other clients can change them only with force.
const Owner = "containers"

// Options are the options that the agent passes to the integration.
type Options struct {
	Agent   string `json:"agent"`   // socket of the agent's API
	Runtime string `json:"runtime"` // docker, podman or containerd
	Socket  string `json:"socket"`  // of the runtime's API
	Hook    string `json:"hook"`    // socket to which hooks report containers
}

const (
	agentTimeout = 5 * time.Minute        // the agent may verify the chains of many services on a slow machine
	minDelay     = 500 * time.Millisecond // first backoff before the runtime is contacted again; doubles until
	maxDelay     = 15 * time.Second
	relist       = time.Minute // also without an event
)

// Main is the main function of the integration's process. It runs until ctx ends. options is the JSON of Options.
func Main(ctx context.Context, options []byte, log *slog.Logger, agent *link.Agent) error {
	var o Options
	if err := json.Unmarshal(options, &o); err != nil {
		return fmt.Errorf("options: %w", err)
	}
	f := newFollower(o, log, agent.Report)
	if err := f.listen(ctx); err != nil {
		return err
	}
	for delay := minDelay; ; delay = min(2*delay, maxDelay) {
		begun := time.Now()
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		f.applying.Lock()
		f.recordEvent("NotConnected", fmt.Sprintf("%s: %v; services stay as they are", o.Runtime, err))
		f.applying.Unlock()
		if time.Since(begun) > maxDelay {
			delay = minDelay
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(delay):
		}
	}
}

// follower synchronises the agent's services with the runtime's containers.
type follower struct {
	options Options
	agent   *client.Client
	runtime runtime
	log     *slog.Logger
	report  func(reason, message string)

	mu       sync.Mutex           // never held during a request
	known    map[string]container // running containers by id, inspected after their last event
	synced   bool                 // known is complete: there was no event since the last sync
	existing map[string]container // existing containers with name and labels, by id
	hooked   map[string]container // containers reported by a hook, by id

	applying sync.Mutex   // held while services are applied
	applied  []v1.Service // nil before the agent has confirmed any
	pruned   bool         // all other services were deleted with applied
	// existing services by the location of their network; nil if unknown
	there  map[v1.ServiceSpec]present
	said   [2]string
	warned map[string]string // reasons why containers are not services, by id
}

func newFollower(o Options, log *slog.Logger, report func(reason, message string)) *follower {
	return &follower{options: o, agent: client.New(o.Agent), runtime: newRuntime(o), log: log, report: report,
		known: map[string]container{}, existing: map[string]container{}, hooked: map[string]container{}}
}

// recordEvent reports the state of the integration. The caller holds f.applying.
func (f *follower) recordEvent(reason, message string) {
	if said := [2]string{reason, message}; said != f.said {
		f.said = said
		f.report(reason, message)
		if reason != "" {
			f.log.Warn("containers are not followed", "reason", reason, "error", message)
		}
	}
}

// follow synchronises after each event until the runtime or the agent fails. It subscribes to events before it lists
// containers, so that it misses none.
func (f *follower) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := f.runtime.events(ctx)
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.synced = false
	clear(f.known) // containers may have been restarted in the meantime
	clear(f.existing)
	f.mu.Unlock()
	ids := make(chan string, maxEvents)
	go f.readEvents(ctx, events, ids) // in the background, since the list may wait for a hook
	if err := f.loadExisting(ctx); err != nil {
		return err
	}
	again := time.NewTicker(relist)
	defer again.Stop()
	for {
		if err := f.sync(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-again.C:
			f.applying.Lock()
			f.applied, f.there = nil, nil // a user may have deleted one
			f.applying.Unlock()
		case id, ok := <-ids:
			if !ok {
				return errors.New("the event stream ended")
			}
			f.forget(id)
			for len(ids) > 0 { // coalesces events in quick succession
				f.forget(<-ids)
			}
		}
	}
}

// loadExisting stores names and labels of the existing containers.
func (f *follower) loadExisting(ctx context.Context) error {
	all, err := f.runtime.created(ctx)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range all {
		if _, newer := f.existing[c.ID]; !newer {
			f.existing[c.ID] = c
		}
	}
	return nil
}

// readEvents stores names and labels of containers, also while sync waits for the runtime, which may wait for a hook.
func (f *follower) readEvents(ctx context.Context, events <-chan event, ids chan<- string) {
	defer close(ids)
	for e := range events {
		f.mu.Lock()
		if e.gone {
			delete(f.existing, e.id)
		} else if e.ID != "" {
			f.existing[e.id] = e.container
		}
		f.mu.Unlock()
		select {
		case ids <- e.id:
		case <-ctx.Done():
			return
		}
	}
}

// forget makes the next sync inspect a container again. Until then the running containers are incomplete.
func (f *follower) forget(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.known, id)
	f.synced = false
}

// sync makes the services match the running containers.
func (f *follower) sync(ctx context.Context) error {
	running, err := f.runtime.running(ctx)
	if err != nil {
		return err
	}
	now := map[string]container{}
	for _, id := range running {
		f.mu.Lock()
		c, known := f.known[id]
		f.mu.Unlock()
		if !known {
			if c, err = f.runtime.inspect(ctx, id); err != nil {
				return err
			}
		}
		if c.State.Running { // otherwise it ended after the list, and an event follows
			now[id] = c
		}
	}
	f.mu.Lock()
	f.known, f.synced = now, true
	f.mu.Unlock()
	f.dropHooked()
	_, err = f.converge(ctx)
	return err
}

// converge makes the services match the known containers. It deletes no services while these are incomplete: before the
// first sync, and between an event and the next sync.
func (f *follower) converge(ctx context.Context) (refused, err error) {
	f.applying.Lock()
	defer f.applying.Unlock()
	all, complete := f.all() // under the lock, to include what another call has applied
	if f.there == nil {
		if f.there, err = f.present(ctx); err != nil {
			return nil, fmt.Errorf("the agent: %w", err)
		}
	}
	services, problems := translate(f.options.Runtime, all, f.there, complete)
	f.warn(all, problems)
	if f.applied != nil && (f.pruned || !complete) && reflect.DeepEqual(services, f.applied) {
		return nil, nil
	}
	f.applied, f.there = nil, nil
	refused, err = f.apply(ctx, services, complete)
	if err != nil {
		return nil, fmt.Errorf("the agent: %w", err)
	}
	f.applied, f.pruned, f.there = services, complete, presentOf(services)
	if !complete {
		f.there = nil
		return refused, nil // sync reports it
	}
	if refused != nil {
		f.there = nil
		f.recordEvent("Refused", refused.Error())
		return refused, nil
	}
	f.recordEvent("", f.summary(services))
	return nil, nil
}

// all returns the running containers, and those that are about to start, for which the runtime may still report an
// earlier run.
func (f *follower) all() (all map[string]container, complete bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all = maps.Clone(f.known)
	for id, c := range f.hooked {
		if known := f.known[id]; known.State.Pid == c.State.Pid { // and at the location that the hook has reported
			known.NetworkSettings, known.hook = c.NetworkSettings, true
			c = known
		}
		all[id] = c
	}
	return all, f.synced
}

func (f *follower) summary(services []v1.Service) string {
	hooked := 0
	for _, s := range services {
		if s.Metadata.Labels[labelBy] == byHook {
			hooked++
		}
	}
	return fmt.Sprintf("%s: %d containers are services, %d of them since before their first process (hook), %d since the "+
		"runtime's events", f.options.Runtime, len(services), hooked, len(services)-hooked)
}

// present returns the existing services.
func (f *follower) present(ctx context.Context) (map[v1.ServiceSpec]present, error) {
	ctx, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	var all []v1.Service
	if err := f.agent.Call(ctx, http.MethodGet, "/v1/services", nil, &all); err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(s v1.Service) bool { return s.Metadata.Owner != Owner })
	return presentOf(all), nil
}

func presentOf(services []v1.Service) map[v1.ServiceSpec]present {
	out := map[v1.ServiceSpec]present{}
	for _, s := range services {
		out[s.Spec] = present{s.Metadata.Name, s.Metadata.Labels[labelBy] == byHook, title(s.Metadata.Labels)}
	}
	return out
}

// apply makes the owner's services exactly these if they are complete. If the agent rejects one, for example because
// its name is that of a user's service, the others are applied.
func (f *follower) apply(ctx context.Context, services []v1.Service, complete bool) (refused, err error) {
	ctx, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	prune := fmt.Sprintf("&prune=%t", complete)
	if err = f.call(ctx, prune, services); !isRefusal(err) {
		return nil, err
	}
	accepted := []v1.Service{}
	for _, s := range services {
		switch err := f.call(ctx, "", []v1.Service{s}); {
		case err == nil:
			accepted = append(accepted, s)
		case !isRefusal(err):
			return nil, err
		default:
			refused = errors.Join(refused, fmt.Errorf("service %s: %s", s.Metadata.Name, detail(err)))
		}
	}
	return refused, f.call(ctx, prune, accepted)
}

func (f *follower) call(ctx context.Context, query string, services []v1.Service) error {
	return f.agent.Call(ctx, http.MethodPost, "/v1/apply?owner="+Owner+query, services, nil)
}

// isRefusal reports whether err is the agent's rejection of a request, rather than a failure.
func isRefusal(err error) bool {
	var status *client.StatusError
	return errors.As(err, &status) && status.Status < http.StatusInternalServerError &&
		status.Status != http.StatusTooManyRequests
}

func detail(err error) string {
	var status *client.StatusError
	if errors.As(err, &status) {
		return status.Detail()
	}
	return err.Error()
}

// warn logs once for each container which of its labels or settings could not be used.
func (f *follower) warn(all map[string]container, now map[string]string) {
	for id, reason := range now {
		if f.warned[id] != reason {
			f.log.Warn("container", "name", all[id].name(), "problem", reason)
		}
	}
	f.warned = now
}
