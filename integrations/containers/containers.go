// SPDX-License-Identifier: Apache-2.0

// Package containers makes the containers of a node's runtime services of the agent: Docker's, or Podman's, which
// serves the same API. It is a process of its own, a client of the agent's API like any other, and keeps nothing: what
// should be there follows from what runs.
package containers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/internal/integration/link"
)

// Owner is whose the services are: others change them by force only.
const Owner = "containers"

// Options are what the agent starts the integration with.
type Options struct {
	Agent   string `json:"agent"`   // socket of the agent's API
	Runtime string `json:"runtime"` // docker or podman
	Socket  string `json:"socket"`  // of the runtime's API
}

const (
	agentTime = 5 * time.Minute        // the agent may verify the chains of many services on a slow machine
	minDelay  = 500 * time.Millisecond // before the runtime is asked again; doubles until
	maxDelay  = 15 * time.Second
	relist    = time.Minute // also without an event
)

// Main is the integration's process: it runs until ctx ends. options is the JSON of Options.
func Main(ctx context.Context, options []byte, log *slog.Logger, agent *link.Agent) error {
	var o Options
	if err := json.Unmarshal(options, &o); err != nil {
		return fmt.Errorf("options: %w", err)
	}
	f := &follower{options: o, agent: client.New(o.Agent), runtime: newRuntime(o.Socket), log: log, report: agent.Report,
		known: map[string]container{}}
	for delay := minDelay; ; delay = min(2*delay, maxDelay) {
		begun := time.Now()
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		f.say("NotConnected", fmt.Sprintf("%s: %v; services stay as they are", o.Runtime, err))
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

// follower keeps the services of the agent what the runtime says.
type follower struct {
	options Options
	agent   *client.Client
	runtime *runtime
	log     *slog.Logger
	report  func(reason, message string)

	known   map[string]container // that run, by id, since their last event
	applied []v1.Service         // nil before the agent has confirmed any
	// names of the services that are there, by where they are; nil if unknown.
	names  map[v1.ServiceSpec]string
	said   [2]string
	warned map[string]string // reasons for which containers are no services, by id
}

func (f *follower) say(reason, message string) {
	if said := [2]string{reason, message}; said != f.said {
		f.said = said
		f.report(reason, message)
		if reason != "" {
			f.log.Warn("containers are not followed", "reason", reason, "error", message)
		}
	}
}

// follow synchronizes after each event until the runtime or the agent fails. Events are asked for first, so that none
// is missed between the list and them.
func (f *follower) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := f.runtime.events(ctx)
	if err != nil {
		return err
	}
	clear(f.known) // containers may have been restarted meanwhile
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
			f.applied, f.names = nil, nil // a user may have deleted one
		case id, ok := <-events:
			if !ok {
				return errors.New("the stream of events ended")
			}
			delete(f.known, id)
			for len(events) > 0 { // what happened together is one change
				delete(f.known, <-events)
			}
		}
	}
}

// sync makes the services those of the containers that run now.
func (f *follower) sync(ctx context.Context) error {
	running, err := f.runtime.running(ctx)
	if err != nil {
		return err
	}
	now := map[string]container{}
	for _, id := range running {
		c, known := f.known[id]
		if !known {
			if c, err = f.runtime.inspect(ctx, id); err != nil {
				return err
			}
		}
		if c.State.Running { // else it ended since the list, and an event comes
			now[id] = c
		}
	}
	f.known = now
	if f.names == nil {
		if f.names, err = f.present(ctx); err != nil {
			return fmt.Errorf("the agent: %w", err)
		}
	}
	services, problems := translate(f.options.Runtime, now, f.names)
	f.warn(problems)
	if f.applied != nil && reflect.DeepEqual(services, f.applied) {
		return nil
	}
	f.applied, f.names = nil, nil
	refused, err := f.apply(ctx, services)
	if err != nil {
		return fmt.Errorf("the agent: %w", err)
	}
	f.applied, f.names = services, namesOf(services)
	if refused != nil {
		f.names = nil
		f.say("Refused", refused.Error())
		return nil
	}
	f.say("", fmt.Sprintf("%s: %d containers are services", f.options.Runtime, len(services)))
	return nil
}

// present returns the names of the services that are there.
func (f *follower) present(ctx context.Context) (map[v1.ServiceSpec]string, error) {
	ctx, cancel := context.WithTimeout(ctx, agentTime)
	defer cancel()
	var all []v1.Service
	if err := f.agent.Call(ctx, http.MethodGet, "/v1/services", nil, &all); err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(s v1.Service) bool { return s.Metadata.Owner != Owner })
	return namesOf(all), nil
}

func namesOf(services []v1.Service) map[v1.ServiceSpec]string {
	out := map[v1.ServiceSpec]string{}
	for _, s := range services {
		out[s.Spec] = s.Metadata.Name
	}
	return out
}

// apply makes the owner's services exactly these. If the agent refuses one, such as one whose name is that of a service
// of the user, the others are applied.
func (f *follower) apply(ctx context.Context, services []v1.Service) (refused, err error) {
	ctx, cancel := context.WithTimeout(ctx, agentTime)
	defer cancel()
	if err = f.call(ctx, "&prune=true", services); !isRefusal(err) {
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
	return refused, f.call(ctx, "&prune=true", accepted)
}

func (f *follower) call(ctx context.Context, query string, services []v1.Service) error {
	return f.agent.Call(ctx, http.MethodPost, "/v1/apply?owner="+Owner+query, services, nil)
}

// isRefusal reports whether the agent has judged the request, and refused it.
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

// warn logs once for each container what is not as its labels say.
func (f *follower) warn(now map[string]string) {
	for id, reason := range now {
		if f.warned[id] != reason {
			f.log.Warn("container", "name", f.known[id].name(), "problem", reason)
		}
	}
	f.warned = now
}
