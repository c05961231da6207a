// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
)

// check is the agent's result for a new version before this node switches to it.
type check struct {
	Version string
	Failure string // why the node cannot run it
	Waits   string // why there is no result yet, such as an unreachable registry
	at      time.Time
	maxCost *int          // of spec.rollout
	dear    time.Duration // if it fails because it costs more than that: when it is measured again
}

// maxDear is the longest time between measurements of a version that costs too much.
const maxDear = time.Hour

// of reports whether the check is of the new version of m, and of what it may cost.
func (c check) of(m api.Module) bool {
	return c.Version == m.Version() && reflect.DeepEqual(c.maxCost, m.Spec.Rollout.MaxCost)
}

// passed reports whether the node could run the new version of m.
func (c check) passed(m api.Module) bool { return c.of(m) && c.Failure+c.Waits == "" }

// unchecked returns the ClusterModules in waves whose new version this node neither runs nor has checked. A failed
// check is repeated periodically, since a package may have been pulled in the meantime. One that exceeds the cost limit
// is repeated with growing intervals, since with enough measurements one would be below the limit by chance. Resuming
// the rollout repeats both immediately.
func (s *state) unchecked() (out []api.Module) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.checks, func(name string, _ check) bool { _, there := s.modules[name]; return !there })
	for _, name := range slices.Sorted(maps.Keys(s.modules)) {
		m := s.modules[name]
		if m.Metadata.Namespace != "" || m.Spec.Rollout == nil || m.Spec.Rollout.ByHand() ||
			s.trials[name].Version == m.Version() {
			continue
		}
		c := s.checks[name]
		if c.Failure != "" && m.Holds() {
			c.at = time.Time{}
			s.checks[name] = c
		}
		if !c.of(m) || c.Waits != "" ||
			c.Failure != "" && !m.Holds() && s.clock.since(c.at) >= max(fullEvery, c.dear) {
			out = append(out, m)
		}
	}
	return out
}

// check has the agent verify new versions with the modules that it has, and with maxCost measure them, before a wave
// reaches this node: the kernel of another node may accept what this one refuses.
// Pods do not wait for it: it neither comes before their services nor ends a round.
func (s *syncer) check(ctx context.Context, v view) {
	if s.guard == nil || !v.complete {
		return
	}
	for _, m := range s.state.unchecked() {
		c := check{Version: m.Version(), at: s.state.clock.now(), maxCost: m.Spec.Rollout.MaxCost}
		module, _, err := translate(m.Side(true), v.namespaces)
		reason, lacks := s.provided(v, m.Spec.Package.Image)
		switch {
		case err != nil:
			c.Failure = err.Error()
		case errors.Is(lacks, errPulling):
			continue
		case reason == api.PackageUnavailable, reason == api.TrustUnknown:
			c.Waits = lacks.Error()
		case lacks != nil:
			c.Failure = lacks.Error()
		default:
			if err = s.try(ctx, m, module, &c); err != nil {
				return // no answer: the next round asks again
			}
		}
		s.state.update(ofClusterModules, func() bool {
			before := s.state.checks[m.Metadata.Name]
			if c.dear > 0 && before.dear > 0 && before.of(m) {
				c.dear = min(2*before.dear, maxDear)
				c.Failure = before.Failure // another measurement has other figures: no reason to report it again
			}
			s.state.checks[m.Metadata.Name] = c
			return !before.of(m) || before.Failure != c.Failure || before.Waits != c.Waits
		})
	}
}

// try has the agent verify a new version, and measure it if the rollout limits its cost. It notes why this node cannot
// run it, and returns an error if there is no answer. A version that costs too much is measured again: another program
// may have slowed down the first measurement.
func (s *syncer) try(ctx context.Context, m api.Module, module v1.Module, c *check) error {
	text := ""
	for range 2 {
		cost, err := s.agent.verify(ctx, module, m.Spec.Rollout.MaxCost != nil)
		var status *client.StatusError
		if errors.As(err, &status) {
			c.Failure = checkFailure(err)
			return nil
		}
		if err != nil {
			return err
		}
		if text = excessCost(m.Spec.Rollout, latencyOf(cost.Before), latencyOf(cost.After)); text == "" {
			return nil
		}
	}
	c.dear, c.Failure = fullEvery, text+"; this node has not begun with it: write another version, or raise maxCost"
	return nil
}

func checkFailure(err error) string {
	if detail, refused := refusal(err); refused {
		return detail
	}
	return err.Error()
}
