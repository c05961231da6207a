// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/events"
)

// eventLimits are those of the one process that writes Events of ClusterModules.
var eventLimits = events.Limits{Burst: 30, Every: 10 * time.Second, Same: time.Minute, Retry: time.Second}

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

// haltReasons are the reasons of RolledOut while a rollout is halted.
var haltReasons = []string{api.CheckFailed, reasonFailed, reasonSilent}

// eventsOf returns what has happened to a ClusterModule when its status has become another one: at most one Event for
// the rollout, and one for each reason that no node reported before. Nothing in them grows with the nodes.
func eventsOf(c change) (out []events.Event) {
	before := c.before
	if before == nil {
		before = &api.ClusterModuleStatus{}
	}
	object := objectOf("ClusterModule", c.Metadata)
	if reason, message := happened(c, before); reason != "" {
		kind := events.Normal
		if reason == rolloutHalted {
			kind = events.Warning
		}
		out = append(out, events.Event{Object: object, Type: kind, Reason: reason, Message: message})
	}
	return append(out, newReasons(object, before.Problems, c.Status.Problems)...)
}

func objectOf(kind string, m api.ObjectMeta) events.Object {
	return events.Object{APIVersion: v1.APIVersion, Kind: kind, Namespace: m.Namespace, Name: m.Name, UID: m.UID}
}

// newReasons returns an Event for each reason of problems that was not among those before.
func newReasons(object events.Object, before, now []api.Problem) (out []events.Event) {
	for i, p := range now {
		same := func(o api.Problem) bool { return o.Reason == p.Reason }
		if !slices.ContainsFunc(before, same) && !slices.ContainsFunc(now[:i], same) {
			out = append(out, events.Event{Object: object, Type: events.Warning, Reason: p.Reason, Message: p.String()})
		}
	}
	return out
}

// happened returns the step that a rollout has made, and what is to be known of it; empty if it has made none.
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
