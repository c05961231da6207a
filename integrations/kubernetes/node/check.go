// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
)

// check is what the agent said of a new version before this node has begun with it.
type check struct {
	Version string
	Failure string // why the node cannot run it
	Waits   string // why it is not known yet: no registry answers
	at      time.Time
}

// passed reports whether the node could run the new version of m.
func (c check) passed(m api.Module) bool { return c.Version == m.Version() && c.Failure+c.Waits == "" }

// unchecked returns the ClusterModules in waves whose new version this node has neither begun with nor checked. One
// that has failed is checked again now and then: a package may have been pulled meanwhile.
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
		if c := s.checks[name]; c.Version != m.Version() || c.Waits != "" ||
			c.Failure != "" && !m.Holds() && s.clock.since(c.at) >= fullEvery {
			out = append(out, m)
		}
	}
	return out
}

// check has the agent verify new versions with the modules that it has, before a wave reaches this node: the kernel of
// another node may accept what this one refuses.
// Pods do not wait for it: it neither comes before their services nor ends a round.
func (s *syncer) check(ctx context.Context, v view) {
	if s.guard == nil || !v.complete {
		return
	}
	for _, m := range s.state.unchecked() {
		c := check{Version: m.Version(), at: s.state.clock.now()}
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
			err = s.agent.verify(ctx, module)
			var status *client.StatusError
			if err != nil && !errors.As(err, &status) {
				return // no answer: the next round asks again
			}
			if err != nil {
				c.Failure = checkFailure(err)
			}
		}
		s.state.update(ofClusterModules, func() bool {
			before := s.state.checks[m.Metadata.Name]
			s.state.checks[m.Metadata.Name] = c
			return before.Version != c.Version || before.Failure != c.Failure || before.Waits != c.Waits
		})
	}
}

func checkFailure(err error) string {
	if detail, refused := refusal(err); refused {
		return detail
	}
	return err.Error()
}
