// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

// maxBackOff bounds how much longer an instance is ejected that fails again each time it returns.
const maxBackOff = 10

// health is what the connections of clients say about an instance.
type health struct {
	answers  uint64    // when last examined
	failures uint64    // when it last accepted a connection, or returned
	until    time.Time // ejected until then; zero: it takes part
	times    int       // ejected so often without a connection that succeeded
	why      string
}

func (h *health) ejected() bool { return !h.until.IsZero() }

// ejectedFlag is the flag by which the data plane takes the instance for none that a client may return to.
func (t *target) ejectedFlag() uint32 {
	if t.health.ejected() {
		return instanceEjected
	}
	return 0
}

func (h *health) text() string {
	return fmt.Sprintf("%s; until %s", h.why, h.until.Format(time.TimeOnly))
}

// ejectFailing ejects instances to which connects fail, and readmits those whose time is over.
func (w *running) ejectFailing(now time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.services {
		changed := false
		for _, t := range s.targets {
			if !w.updateEjection(s, t, now) {
				continue
			}
			changed = true
			if err := w.setFlags(t, t.entry.Flags&^instanceEjected|t.ejectedFlag()); err != nil {
				return err
			}
		}
		if !changed {
			continue
		}
		for _, v := range s.virtuals {
			if err := w.writeVirtual(v, w.run(v, now), now); err != nil {
				return err
			}
		}
	}
	return nil
}

// updateEjection reports whether an instance was ejected or readmitted. One that has accepted a connection since the
// last call is healthy, whatever else failed in the meantime.
func (w *running) updateEjection(s *service, t *target, now time.Time) bool {
	h, stats := &t.health, &w.maps.stats[t.index]
	answers, failures := stats.answers(), stats.failures()
	succeeded := answers != h.answers
	h.answers = answers
	switch {
	case h.ejected() && (now.Before(h.until) && w.config.Health.Failures > 0):
		return false
	case h.ejected():
		h.until, h.failures = time.Time{}, failures
		return true
	case succeeded || failures < h.failures: // or the index has become another instance's
		h.failures, h.times = failures, 0
		return false
	case w.config.Health.Failures == 0 || failures-h.failures < uint64(w.config.Health.Failures) || !w.mayEject(s):
		return false
	}
	h.why = fmt.Sprintf("%d connects failed in a row", failures-h.failures)
	h.until = now.Add(time.Duration(w.config.Health.EjectFor) * time.Duration(min(maxBackOff, 1<<min(h.times, 8))))
	h.times++
	w.ejections++
	return true
}

// mayEject reports whether one more instance of a service may be ejected.
func (w *running) mayEject(s *service) bool {
	able, ejected := 0, 0
	for _, t := range s.targets {
		switch {
		case t.drains:
		case t.health.ejected():
			able, ejected = able+1, ejected+1
		default:
			able++
		}
	}
	return able-ejected > 1 && (ejected+1)*100 <= able*w.config.Health.MaxEjected
}

// healthy leaves out the instances that are ejected, unless that is all of them.
func healthy(all []*target) []*target {
	well := slices.DeleteFunc(slices.Clone(all), func(t *target) bool { return t.health.ejected() })
	if len(well) == 0 {
		return all
	}
	return well
}

// Conditions implements sdk.Conditioner.
func (w *running) Conditions() ([]sdk.Condition, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]sdk.Condition{w.sessionsCondition(), w.instancesCondition()}, w.affinityCondition()...), nil
}

// Ejected implements sdk.InstanceReporter.
func (w *running) Ejected() ([]sdk.EjectedInstance, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []sdk.EjectedInstance
	for _, t := range w.targets {
		if t.service != nil && t.health.ejected() {
			out = append(out, sdk.EjectedInstance{Service: t.service.name, Instance: t.name, Reason: t.health.text()})
		}
	}
	return out, nil
}

// sessionsCondition says whether live sessions may be evicted.
func (w *running) sessionsCondition() sdk.Condition {
	c := sdk.Condition{Type: "SessionsKept", Status: "True", Reason: "BelowLimit"}
	ifindex, most := uint32(0), 0
	for i, n := range w.tally.crowded {
		if n > most || n == most && i < ifindex {
			ifindex, most = i, n
		}
	}
	if most == 0 {
		return c
	}
	c.Status, c.Reason = "False", "OverQuota"
	what, remedy := "the share of its interface is used up", "tables.sessions"
	if w.config.Tables.SessionsPerService > 0 {
		remedy = "tables.sessionsPerService"
	}
	if w.maps.shares[0].sessions() >= uint64(w.config.Tables.Sessions) {
		c.Reason, what, remedy = "TableFull", "the table is full", "tables.sessions"
	}
	c.Message = fmt.Sprintf("%d live sessions of %s may be evicted and then reset: %s; raise %s", most,
		w.locals.nameOf(ifindex), what, remedy)
	return c
}

// nameOf is what conditions call an interface.
func (l *locals) nameOf(ifindex uint32) string {
	if s := l.byIfindex[ifindex]; s != nil && s.Service != "" {
		return "service " + s.Service
	}
	return fmt.Sprintf("interface %d", ifindex)
}

// instancesCondition names the instances that get no new sessions because connects to them fail.
func (w *running) instancesCondition() sdk.Condition {
	c := sdk.Condition{Type: "InstancesHealthy", Status: "True", Reason: "AllHealthy"}
	var out []string
	for _, t := range w.targets {
		if t.service != nil && t.health.ejected() {
			out = append(out, fmt.Sprintf("%s of %s (%s)", t.name, t.service.name, t.health.why))
		}
	}
	if len(out) == 0 {
		return c
	}
	slices.Sort(out)
	if n := len(out); n > 3 {
		out = append(out[:3], fmt.Sprintf("and %d more", n-3))
	}
	c.Status, c.Reason, c.Message = "False", "Ejected", "no new sessions for a while: "+strings.Join(out, ", ")
	return c
}
