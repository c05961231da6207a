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
	firstConflict = 10 * time.Millisecond // backoff after a conflict: doubles up to retrySync
)

// source holds what a control plane has been sent of one kind of resources, in updates U.
type source[U any] interface {
	Restart(mapSet string)
	Ready() <-chan struct{}
	Next() (U, bool)
	Ack(U, error)
	Err() error
	Close()
}

// update is the interface of a source's updates.
type update[U any] interface {
	*U
	Response() any
}

// feed sends the resources of one kind to a run until ctx ends. Its calls do not wait for other calls, because a packet
// may be waiting for a resource, with one exception: attachments are sent first. A virtual service may have an instance
// in a service that was attached before it, and a proxy that did not know this service would consider the instance
// remote.
func feed[U any, P update[U]](ctx context.Context, p *Supervisor, r *run, call string, f source[U]) {
	fed := ""
	for {
		mapSet, progress := p.startedOn()
		if mapSet != "" && mapSet != fed {
			f.Restart(mapSet) // it has received nothing of what an earlier map set has
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

// startedOn returns the map set that the current run has started with, and a channel that is closed when that may
// change.
func (p *Supervisor) startedOn() (string, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.startedWith, p.progress
}

// isPlaced reports whether the run has received its attachments, or has rejected them, which is retried separately.
func (p *Supervisor) isPlaced() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.want == nil || p.placed == p.want || p.startedWith != p.want.name
}

// feedAll sends all pending updates, until the module's attachments change.
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
			// It has just started with a newer map set, which startedOn returns shortly.
			pause, conflicts = conflicts, min(2*conflicts, retrySync)
		} else {
			p.log.Warn("control plane does not take "+call+"; trying again", "error", err)
		}
		if !p.waitOn(ctx, mapSet, pause) {
			return
		}
	}
}

// waitOn waits, and reports whether the current run still uses this map set. It returns early if not.
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
