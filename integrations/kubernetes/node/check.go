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

// check is the result of the agent's dry run of a new version, before this node switches to it.
type check struct {
	Version        string
	Failure        string // why the node cannot run the version
	Pending        string // why there is no result yet, for example an unreachable registry
	at             time.Time
	maxCost        *int          // limit of spec.rollout at the time of the check
	remeasureAfter time.Duration // backoff of the next measurement, if the version exceeded maxCost
}

// maxRemeasure is the longest interval between measurements of a version that exceeds maxCost.
const maxRemeasure = time.Hour

// matches reports whether the check is about the new version and the cost limit of m.
func (c check) matches(m api.Module) bool {
	return c.Version == m.Version() && reflect.DeepEqual(c.maxCost, m.Spec.Rollout.MaxCost)
}

// passed reports whether the node could run the new version of m.
func (c check) passed(m api.Module) bool { return c.matches(m) && c.Failure+c.Pending == "" }

// unchecked returns the ClusterModules with a rollout in waves whose new version this node neither runs nor has
// checked. A failed check is repeated periodically, since a package may have been pulled in the meantime. A check that
// exceeded the cost limit is repeated with backoff, because with enough measurements one would be below the limit by
// chance. Resuming the rollout repeats both immediately.
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
		if !c.matches(m) || c.Pending != "" ||
			c.Failure != "" && !m.Holds() && s.clock.since(c.at) >= max(fullEvery, c.remeasureAfter) {
			out = append(out, m)
		}
	}
	return out
}

// check has the agent verify new versions together with its other modules, and measure them if the rollout has maxCost,
// before a wave reaches this node: the kernel of another node may accept what this one rejects. Pods do not wait for
// it: it runs after the services of a round are synchronised, and its errors do not fail the round.
func (s *syncer) check(ctx context.Context, v view) {
	if s.guard == nil || !v.complete {
		return
	}
	for _, m := range s.state.unchecked() {
		c := check{Version: m.Version(), at: s.state.clock.now(), maxCost: m.Spec.Rollout.MaxCost}
		module, _, err := translate(m.Side(true), v.namespaces)
		reason, lacks := s.packageAvailable(v, m.Spec.Package.Image)
		switch {
		case err != nil:
			c.Failure = err.Error()
		case errors.Is(lacks, errPulling):
			continue
		case reason == api.PackageUnavailable, reason == api.TrustUnknown:
			c.Pending = lacks.Error()
		case lacks != nil:
			c.Failure = lacks.Error()
		default:
			if err = s.checkVersion(ctx, m, module, &c); err != nil {
				return // no response: the next round repeats the check
			}
		}
		s.state.update(ofClusterModules, func() bool {
			before := s.state.checks[m.Metadata.Name]
			if c.remeasureAfter > 0 && before.remeasureAfter > 0 && before.matches(m) {
				c.remeasureAfter = min(2*before.remeasureAfter, maxRemeasure)
				c.Failure = before.Failure // only the figures differ: not worth another report
			}
			s.state.checks[m.Metadata.Name] = c
			return !before.matches(m) || before.Failure != c.Failure || before.Pending != c.Pending
		})
	}
}

// checkVersion has the agent verify a new version, and measure it if the rollout limits its cost. It stores in c why
// this node cannot run the version, and returns an error if there was no response. A version that costs too much is
// measured twice, since another process may have slowed down the first measurement.
func (s *syncer) checkVersion(ctx context.Context, m api.Module, module v1.Module, c *check) error {
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
	c.remeasureAfter = fullEvery
	c.Failure = text + "; this node has not begun with it: write another version, or raise maxCost"
	return nil
}

func checkFailure(err error) string {
	if detail, refused := refusal(err); refused {
		return detail
	}
	return err.Error()
}
