// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"net/http"
	"time"
)

const (
	updateTime    = 30 * time.Second
	firstConflict = 10 * time.Millisecond // before an update is sent again after a conflict; doubles until retrySync
)

// source knows what a control plane has been notified of one kind of resources, in updates U.
type source[U any] interface {
	Restart(mapSet string)
	Ready() <-chan struct{}
	Next() (U, bool)
	Ack(U, error)
	Err() error
	Close()
}

// update is what a source's updates can do.
type update[U any] interface {
	*U
	Response() any
}

// feed sends a run the resources of one kind by a call, until ctx ends. It is independent of all other calls, as a
// packet may be waiting for a resource, but for one: where the module runs comes first. A virtual service may have an
// instance in a service that was attached before, and to a proxy that did not know the service it would be elsewhere.
func feed[U any, P update[U]](ctx context.Context, p *Supervisor, r *run, call string, f source[U]) {
	fed := ""
	for {
		mapSet, progress := p.startedOn()
		if mapSet != "" && mapSet != fed {
			f.Restart(mapSet) // it has nothing of what an earlier map set received
			fed = mapSet
		}
		if fed != "" && p.isPlaced() {
			feedAll[U, P](ctx, p, r, call, f, fed)
		}
		select {
		case <-ctx.Done():
			return
		case <-f.Ready():
		case <-progress:
		}
	}
}

// startedOn is the map set that the present run has started with, and what is closed when that may have changed.
func (p *Supervisor) startedOn() (string, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.startedWith, p.progress
}

// isPlaced reports whether the run knows where its map set runs, or has refused to: that is tried again by itself.
func (p *Supervisor) isPlaced() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.want == nil || p.placed == p.want || p.startedWith != p.want.name
}

// feedAll sends all updates that there are, until the module runs elsewhere.
func feedAll[U any, P update[U]](ctx context.Context, p *Supervisor, r *run, call string, f source[U],
	mapSet string) {
	for conflicts := firstConflict; p.isPlaced(); {
		u, more := f.Next()
		if !more || ctx.Err() != nil {
			return
		}
		err := p.callOptional(ctx, r, updateTime, call, u, P(&u).Response())
		f.Ack(u, err)
		if err == nil {
			conflicts = firstConflict
			continue
		}
		pause := retrySync
		if answered(err, http.StatusConflict) {
			// It has just started with a newer map set, which startedOn reports in a moment.
			pause, conflicts = conflicts, min(2*conflicts, retrySync)
		} else {
			p.log.Warn("control plane does not take "+call+"; trying again", "error", err)
		}
		if !p.waitOn(ctx, mapSet, pause) {
			return
		}
	}
}

// waitOn waits, and reports whether the present run is still on this map set. It returns early if it is not.
func (p *Supervisor) waitOn(ctx context.Context, mapSet string, pause time.Duration) bool {
	over := time.After(pause)
	for {
		now, progress := p.startedOn()
		if ctx.Err() != nil || now != mapSet {
			return false
		}
		select {
		case <-ctx.Done():
		case <-progress:
		case <-over:
			return true
		}
	}
}

// answered reports whether an error is an answer with this status.
func answered(err error, status int) bool {
	var answer *AnswerError
	return errors.As(err, &answer) && answer.Status == status
}
