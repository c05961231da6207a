// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

const (
	wantedTime = 45 * time.Second // the control plane answers after 30 s at the latest
	updateTime = 30 * time.Second
)

// follower knows what a control plane has been notified of one kind of resources, in updates U.
type follower[U any] interface {
	Restart()
	Ready() <-chan struct{}
	Next() (U, bool)
	Taken(U, error)
	Err() error
	Close()
}

// update is what follower's updates can do.
type update[U any] interface {
	*U
	For(generation string)
	Answer() any
}

// feed keeps a run's resources as the tables have them, and takes what it wants. It is apart from all else that the run is
// told: a packet may be waiting for it.
func (p *Plane) feed(ctx context.Context, r *run) {
	var feeding sync.WaitGroup
	defer feeding.Wait()
	if p.services != nil {
		feeding.Go(func() { follow(ctx, p, r, "virtualservices", p.services) })
	}
	if p.models != nil {
		feeding.Go(func() { follow(ctx, p, r, "models", p.models) })
	}
}

// follow tells a run of one kind of resources by a call.
func follow[U any, P update[U]](ctx context.Context, p *Plane, r *run, call string, f follower[U]) {
	told := ""
	for {
		generation, progress := p.startedOn()
		if generation != "" && generation != told {
			f.Restart() // it knows nothing of what an earlier one was told
			told = generation
		}
		if told != "" {
			tellAll[U, P](ctx, p, r, call, f, told)
		}
		select {
		case <-ctx.Done():
			return
		case <-f.Ready():
		case <-progress:
		}
	}
}

// startedOn is the generation that the present run has started with, and what is closed when that may have changed.
func (p *Plane) startedOn() (string, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.startedWith, p.progress
}

// tellAll tells all that there is to tell.
func tellAll[U any, P update[U]](ctx context.Context, p *Plane, r *run, call string, f follower[U], generation string) {
	for {
		u, more := f.Next()
		if !more || ctx.Err() != nil {
			return
		}
		P(&u).For(generation)
		err := p.call(ctx, r, updateTime, call, u, P(&u).Answer())
		if answered(err, http.StatusNotFound) {
			err = nil // it does not care
		}
		f.Taken(u, err)
		if err == nil {
			continue
		}
		if now, _ := p.startedOn(); ctx.Err() != nil || now != generation {
			return // it is not this one's business any more
		}
		pause := retryTell
		if answered(err, http.StatusConflict) {
			pause = 10 * time.Millisecond // it has just started with a newer generation, of which we hear in a moment
		} else {
			p.log.Warn("control plane does not take "+call+"; trying again", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// pollRequests fetches what the control plane asks for, by long polls.
func (p *Plane) pollRequests(ctx context.Context, r *run) {
	if p.services == nil && p.door == nil && p.examine == nil {
		return
	}
	for ctx.Err() == nil {
		var requests sdk.Requests
		asked := time.Now()
		err := p.call(ctx, r, wantedTime, "wanted", nil, &requests)
		if answered(err, http.StatusNotFound) {
			return
		}
		hasty := requests.Empty() && time.Since(asked) < retryTell // it does not hold the request: do not poll in a loop
		if err != nil || hasty {
			select {
			case <-ctx.Done():
			case <-time.After(retryTell):
			}
			continue
		}
		if p.services != nil {
			p.services.Wants(requests)
		}
		for _, g := range requests.SendMaps {
			p.give(g)
		}
		p.examineAll(ctx, r, requests.Examine)
	}
}

// answered reports whether an error is an answer with this status.
func answered(err error, status int) bool {
	var answer *AnswerError
	return errors.As(err, &answer) && answer.Status == status
}

// ServicesErr is why the control plane does not have the present virtual services; nil if it has, or has no use for them.
func (p *Plane) ServicesErr() error {
	if p.services == nil {
		return nil
	}
	return p.services.Err()
}

// ModelsErr is why the control plane does not run the models that it should; nil if it does, or has no use for them.
func (p *Plane) ModelsErr() error {
	if p.models == nil {
		return nil
	}
	return p.models.Err()
}
