// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/events"
)

// eventLimits are the limits of each recorder of Events about ClusterModules.
var eventLimits = events.Limits{Burst: 30, Every: 10 * time.Second, Same: time.Minute, Retry: time.Second,
	Old: 15 * time.Minute}

// Reasons of Events about a rollout. Those about nodes are the reasons that the nodes report.
const (
	rolloutStarted   = "RolloutStarted"
	rolloutCanaries  = "RolloutCanaries"
	rolloutWave      = "RolloutWave"
	rolloutPaused    = "RolloutPaused"
	rolloutHalted    = "RolloutHalted"
	rolloutResumed   = "RolloutResumed"
	rolloutUndone    = "RolloutUndone"
	rolloutCompleted = "RolloutCompleted"
)

// nodeProblem is the reason of Events about problems with a reason outside of api.NodeReasons: a compromised node must
// not be able to forge Events about a rollout.
const nodeProblem = "NodeProblem"

// recorders write Events about rollouts, and about problems that nodes report. They have separate queues and rates, so
// that nodes cannot delay or displace Events about rollouts.
type recorders struct{ rollouts, problems *events.Recorder }

func (r recorders) record(c change) {
	for _, e := range rolloutEvents(c) {
		r.rollouts.Record(e)
	}
	for _, e := range problemEvents(c) {
		r.problems.Record(e)
	}
}

// run writes until the context ends.
func (r recorders) run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { r.rollouts.Run(ctx) })
	r.problems.Run(ctx)
	running.Wait()
}

// clear drops what waits: another process leads.
func (r recorders) clear() {
	r.rollouts.Clear()
	r.problems.Clear()
}

func (r recorders) counts() events.Counts {
	a, b := r.rollouts.Counts(), r.problems.Counts()
	return events.Counts{Written: a.Written + b.Written, Dropped: a.Dropped + b.Dropped}
}

// haltReasons are the reasons of RolledOut while a rollout is halted.
var haltReasons = []string{api.CheckFailed, reasonFailed, reasonSilent}

// rolloutEvents returns the step that the rollout of a ClusterModule has made with a change of its status: at most one.
func rolloutEvents(c change) []events.Event {
	reason, message := happened(c, c.earlier())
	if reason == "" {
		return nil
	}
	kind := events.Normal
	if reason == rolloutHalted {
		kind = events.Warning
	}
	return []events.Event{{Object: objectOf("ClusterModule", c.Metadata), Type: kind, Reason: reason, Message: message}}
}

// problemEvents returns an Event for each reason that no node reported of a ClusterModule before.
func problemEvents(c change) []events.Event {
	return newReasons(objectOf("ClusterModule", c.Metadata), c.earlier().Problems, c.Status.Problems)
}

// earlier returns the status before the change.
func (c change) earlier() *api.ClusterModuleStatus {
	return cmp.Or(c.before, &api.ClusterModuleStatus{})
}

func objectOf(kind string, m api.ObjectMeta) events.Object {
	return events.Object{APIVersion: v1.APIVersion, Kind: kind, Namespace: m.Namespace, Name: m.Name, UID: m.UID}
}

// newReasons returns an Event for each reason of problems that was not among those before. Their number does not grow
// with the nodes.
func newReasons(object events.Object, before, now []api.Problem) (out []events.Event) {
	for i, p := range now {
		reason, message := problemReason(p), p.String()
		same := func(o api.Problem) bool { return problemReason(o) == reason }
		if slices.ContainsFunc(before, same) || slices.ContainsFunc(now[:i], same) {
			continue
		}
		if reason == nodeProblem {
			message = p.Reason + ": " + message
		}
		out = append(out, events.Event{Object: object, Type: events.Warning, Reason: reason, Message: message})
	}
	return out
}

// problemReason returns the reason of Events about a problem.
func problemReason(p api.Problem) string {
	if slices.Contains(api.NodeReasons, p.Reason) {
		return p.Reason
	}
	return nodeProblem
}

// happened returns reason and message for the last step of a rollout, empty if there was none.
func happened(c change, before *api.ClusterModuleStatus) (reason, message string) {
	was, is := before.Rollout, c.Status.Rollout
	if is == nil {
		if r := c.Spec.Rollout; was != nil && r != nil && r.ByHand() && *r.Percent == 0 && len(r.Nodes) == 0 {
			return rolloutUndone, "all nodes run the previous version"
		}
		return "", ""
	}
	if was == nil || was.Version != is.Version {
		was = &api.RolloutStatus{}
	}
	earlier, now := rolledOut(before), rolledOut(c.Status)
	halted := slices.Contains(haltReasons, now.Reason)
	switch changed := now.Status != earlier.Status || now.Reason != earlier.Reason || was.Version == ""; {
	case changed && halted:
		return rolloutHalted, now.Reason + ": " + now.Message
	case changed && now.Status == "True":
		return rolloutCompleted, now.Message
	case changed && now.Reason == reasonPaused:
		return rolloutPaused, now.Message
	case was.Version == "" && !is.Begun():
		return rolloutStarted, "every node checks the new version before one runs it: " + now.Message
	case !was.Begun() && is.Begun():
		return rolloutCanaries, "the new version begins on " + some(is.Canaries)
	case is.Percent > was.Percent:
		return rolloutWave, now.Message
	case !halted && slices.Contains(haltReasons, earlier.Reason) && was.Version != "":
		return rolloutResumed, now.Message
	}
	return "", ""
}

// rolledOut returns the condition of the rollout; empty without one.
func rolledOut(s *api.ClusterModuleStatus) api.Condition {
	if i := slices.IndexFunc(s.Conditions, func(c api.Condition) bool { return c.Type == conditionRolledOut }); i >= 0 {
		return s.Conditions[i]
	}
	return api.Condition{}
}

// some names the first of some nodes.
func some(names []string) string {
	if more := len(names) - maxNamed; more > 0 {
		names = append(slices.Clone(names[:maxNamed]), fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}
