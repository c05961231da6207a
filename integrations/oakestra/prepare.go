// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"time"
)

// Limits of prepared modules: the number of services; the time until NodeEngine deploys the first instance, since it
// pulls the image before; and the time that NodeEngine's requests wait while the agent applies modules that they did
// not request. The agent continues if it takes longer.
const (
	maxPrepared  = 8
	preparedFor  = 10 * time.Minute
	prepareLimit = 2 * time.Second
)

// prepareJobs applies the modules of announced instances, so that /container/deploy, whose timeout is 7 s, attaches
// chains that are already linked. The deployment applies the modules again, and reports errors.
func (l *Listener) prepareJobs(ctx context.Context) {
	for ctx.Err() == nil && l.prepareNext(ctx) {
	}
}

// prepareNext reports whether there was a job to prepare.
func (l *Listener) prepareNext(ctx context.Context) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.prepared, func(_ string, until time.Time) bool { return time.Now().After(until) })
	i := slices.IndexFunc(l.state.Jobs, func(j job) bool {
		_, already := l.prepared[j.Name]
		return !j.prepared && !j.Doubtful && j.Wrong == "" && len(j.Modules) > 0 && !already && !l.state.uses(j.Name)
	})
	if i < 0 || len(l.prepared) >= maxPrepared || l.awaitsPreparation(ctx) {
		return false
	}
	j := &l.state.Jobs[i]
	j.prepared = true
	want, err := j.read()
	if err == nil && len(want) > 0 {
		err = l.prepare(ctx, j.Name, want)
	}
	if err != nil {
		l.log.Warn("the modules of a service are not prepared", "service", j.Name, "error", err)
	}
	return true
}

// prepare applies the modules of a service that does not run here.
func (l *Listener) prepare(ctx context.Context, name string, want []moduleRequest) error {
	ctx, cancel := context.WithTimeout(ctx, prepareLimit)
	defer cancel()
	added, _, err := l.deploy(ctx, name, want, nil)
	var open *unconfirmed
	if err != nil && !errors.As(err, &open) {
		return err
	}
	if l.prepared == nil {
		l.prepared = map[string]time.Time{}
	}
	l.prepared[name] = time.Now().Add(preparedFor)
	if open != nil {
		l.preparing = resourceOf(added[0].ID)
	}
	for i := range l.state.Modules {
		if m := &l.state.Modules[i]; slices.ContainsFunc(added, func(a module) bool { return a.ID == m.ID }) {
			m.Pending = pendingPrepared
		}
	}
	return l.save()
}

// awaitsPreparation reports whether the agent may still be processing an unconfirmed preparation, so that a deployment
// would also have to wait for another one. A preparation that the agent rejects late is awaited until it expires.
func (l *Listener) awaitsPreparation(ctx context.Context) bool {
	if slices.ContainsFunc(l.state.Modules, func(m module) bool { return resourceOf(m.ID) == l.preparing }) {
		if _, err := l.agent.module(ctx, l.preparing); err != nil {
			return true
		}
	}
	l.preparing = ""
	return false
}

// endPreparation ends the preparation of a service that is about to be deployed. It removes the prepared modules unless
// they are exactly those of the service.
func (l *Listener) endPreparation(ctx context.Context, name string, want []moduleRequest) error {
	delete(l.prepared, name)
	ours := func(m module) bool { return m.Service == name && m.Pending == pendingPrepared }
	var have []moduleRequest
	for _, m := range l.state.Modules {
		if ours(m) {
			have = append(have, moduleRequest{m.Name, m.Config})
		}
	}
	if len(have) == 0 || reflect.DeepEqual(have, want) {
		return nil
	}
	return l.removePending(ctx, ours)
}
