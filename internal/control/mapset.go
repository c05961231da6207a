// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

// delivered is what a run has received.
type delivered struct {
	mapSet      string
	sent        string // the map set whose maps were sent last
	attachments map[sdk.AttachmentKey]sdk.Attachment
}

const retrySync = time.Second

// synchronize sends changes to a run, and retries later if that fails.
func (p *Supervisor) synchronize(ctx context.Context, r *run, t *delivered, retry *time.Timer) {
	p.mu.Lock()
	want := p.want
	p.mu.Unlock()
	if want == nil {
		return
	}
	if err := p.syncRun(ctx, r, t, want); err != nil && ctx.Err() == nil {
		p.log.Warn("control plane does not take over its map set; trying again", "error", err)
		p.setState(func(s *State) { s.Healthy, s.Reason = false, err.Error() })
		retry.Reset(retrySync)
	}
	p.mu.Lock()
	p.placed = want
	p.mu.Unlock()
	p.setState(func(*State) {})
}

// syncRun brings a run of the control plane to the wanted state: maps and "start" for another map set, otherwise only
// the attachments that were added, changed or removed. Delivered changes are recorded one by one, so that the next
// attempt starts with the call that failed.
func (p *Supervisor) syncRun(ctx context.Context, r *run, t *delivered, want *live) error {
	for _, g := range grantsOf[preparer](p) {
		if err := g.prepare(p, r, want.attachments); err != nil {
			return err
		}
	}
	if t.mapSet != want.name {
		if err := p.sendOnce(ctx, r, t, want); err != nil {
			return err
		}
		req := sdk.MapSetRequest{MapSet: want.name, Config: want.config, Attachments: want.attachments}
		for _, g := range grantsOf[describer](p) {
			g.describe(ctx, &req)
		}
		if err := p.callOptional(ctx, r, callTime, "start", req, nil); err != nil {
			return err
		}
		if t.mapSet != "" {
			// it may have closed them itself
			_ = p.call(ctx, r, callTime, "drop", sdk.MapSetRequest{MapSet: t.mapSet}, nil)
		}
		t.mapSet, t.attachments = want.name, byKey(want.attachments)
		p.mu.Lock()
		p.startedWith, p.placed = want.name, want
		p.mu.Unlock()
		p.setState(func(s *State) {
			s.Started, s.HealthKnown, s.Reason = true, false, "no answer to health yet"
		})
		p.maintain(r)
		p.checkHealth(ctx, r, 0)
		return nil
	}
	now := byKey(want.attachments)
	for key, i := range t.attachments {
		if _, stays := now[key]; !stays {
			if err := p.callOptional(ctx, r, callTime, "detached", i, nil); err != nil {
				return err
			}
			delete(t.attachments, key)
		}
	}
	for key, i := range now {
		if before, known := t.attachments[key]; !known || !before.Equal(i) {
			if err := p.callOptional(ctx, r, callTime, "attached", i, nil); err != nil {
				return err
			}
			t.attachments[key] = i
		}
	}
	return nil
}

// callOptional makes a call that a control plane need not implement.
func (p *Supervisor) callOptional(ctx context.Context, r *run, limit time.Duration, name string, body,
	answer any) error {
	err := p.call(ctx, r, limit, name, body, answer)
	if answered(err, http.StatusNotFound) {
		return nil
	}
	return err
}

// sendOnce sends the maps of a map set only before its first start: a repeated start may still be in progress, with the
// maps sent earlier. A map set that did not start is dropped.
func (p *Supervisor) sendOnce(ctx context.Context, r *run, t *delivered, want *live) error {
	if t.sent == want.name {
		return nil
	}
	if t.sent != "" && t.sent != t.mapSet {
		// if it fails, the control plane keeps the maps open
		_ = p.call(ctx, r, callTime, "drop", sdk.MapSetRequest{MapSet: t.sent}, nil)
	}
	if err := p.sendWanted(r, want); err != nil {
		return err
	}
	t.sent = want.name
	return nil
}

// sendWanted sends the maps unless they have been replaced by others, and closed.
func (p *Supervisor) sendWanted(r *run, want *live) error {
	p.sending.Lock()
	defer p.sending.Unlock()
	p.mu.Lock()
	superseded := p.want == nil || p.want.name != want.name
	p.mu.Unlock()
	if superseded {
		return errors.New("superseded by a newer map set")
	}
	return r.sendMaps(want.name, want.maps)
}

// byKey returns attachments by their keys, to compare two lists.
func byKey(list []sdk.Attachment) map[sdk.AttachmentKey]sdk.Attachment {
	out := make(map[sdk.AttachmentKey]sdk.Attachment, len(list))
	for _, i := range list {
		out[i.Key()] = i
	}
	return out
}

// name returns a map set name that has not been used before.
func (p *Supervisor) name(kind string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serial++
	return fmt.Sprintf("%s-%d", kind, p.serial)
}

// Start makes a map set the one that the control plane works on, now and after each restart. It does not wait. The
// caller keeps the maps.
func (p *Supervisor) Start(config json.RawMessage, m sdk.Maps, attachments []sdk.Attachment) error {
	own, err := p.copies(m)
	if err != nil {
		return err
	}
	p.setState(func(s *State) { s.Started = false })
	p.setWant(&live{name: p.name("live"), config: config, maps: own, of: m, attachments: attachments})
	return nil
}

// copies returns copies of maps, or the existing copies after a change of values.
func (p *Supervisor) copies(m sdk.Maps) (sdk.Maps, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.want != nil && maps.Equal(p.want.of, m) {
		return p.want.maps, nil
	}
	own := sdk.Maps{}
	for name, one := range m {
		c, err := one.Clone()
		if err != nil {
			closeMaps(own)
			return nil, err
		}
		own[name] = c
	}
	return own, nil
}

// SetAttachments notifies the control plane of the module's current attachments.
func (p *Supervisor) SetAttachments(list []sdk.Attachment) {
	p.mu.Lock()
	if p.want == nil || slices.EqualFunc(p.want.attachments, list, sdk.Attachment.Equal) {
		p.mu.Unlock()
		return
	}
	next := *p.want
	next.attachments = list
	p.want = &next
	p.mu.Unlock()
	p.wake()
}

// setWant replaces the wanted state of the run, and closes the maps of the previous one, unless both have the same
// maps.
func (p *Supervisor) setWant(next *live) {
	p.mu.Lock()
	before := p.want
	p.want = next
	p.mu.Unlock()
	if before != nil && (next == nil || !maps.Equal(before.maps, next.maps)) {
		p.sending.Lock() // they may just be in the process of being sent
		closeMaps(before.maps)
		p.sending.Unlock()
	}
	p.wake()
}

// wake makes the run compare again. A pending wake-up covers this one: the run reads the wanted state after it.
func (p *Supervisor) wake() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

func closeMaps(m sdk.Maps) {
	for _, one := range m {
		one.Close()
	}
}
