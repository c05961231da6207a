// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

const (
	wantedTime = 45 * time.Second // the control plane answers after 30 s at the latest
	updateTime = 30 * time.Second
)

// feed keeps a run's virtual services as the table has them, and takes what it wants. It is apart from all else that the
// run is told: a packet may be waiting for it.
func (p *Plane) feed(ctx context.Context, r *run) {
	if p.services == nil {
		return
	}
	told := ""
	for {
		generation, progress := p.startedOn()
		if generation != "" && generation != told {
			p.services.Restart() // it knows nothing of what an earlier one was told
			told = generation
		}
		if told != "" {
			p.update(ctx, r, told)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.services.Ready():
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

// update tells all that there is to tell.
func (p *Plane) update(ctx context.Context, r *run, generation string) {
	for {
		u, more := p.services.Next()
		if !more || ctx.Err() != nil {
			return
		}
		u.Generation = generation
		err := p.call(ctx, r, updateTime, "virtualservices", u, nil)
		if answered(err, http.StatusNotFound) {
			err = nil // it does not care
		}
		p.services.Taken(u, err)
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
			p.log.Warn("control plane does not take virtual services; trying again", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// pollWants asks what the control plane wants, again and again.
func (p *Plane) pollWants(ctx context.Context, r *run) {
	if p.services == nil && p.door == nil {
		return
	}
	for ctx.Err() == nil {
		var wants sdk.Wanted
		err := p.call(ctx, r, wantedTime, "wanted", nil, &wants)
		if answered(err, http.StatusNotFound) {
			return
		}
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(retryTell):
			}
			continue
		}
		if p.services != nil {
			p.services.Wants(wants)
		}
		for _, g := range wants.Give {
			p.give(g)
		}
	}
}

// answered tells whether an error is an answer with this status.
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
