// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"reflect"
	"runtime"
	"slices"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
)

// Limits of KerbNode.status.
const (
	maxReports   = api.MaxReports
	maxVersions  = 100 // of ClusterModules with a rollout; for the others, the node counts as not reporting
	maxMessage   = 1024
	writeTimeout = 30 * time.Second
)

// Backoff of writes, to which the same time at random is added. It doubles up to the maximum, which is short: a rollout
// waits for nodes whose writes the API server could not store for a moment.
const (
	minWriteRetry = time.Second
	maxWriteRetry = 30 * time.Second
)

const nodesPath = "/apis/" + api.Group + "/" + api.Version + "/" + api.KerbNodes

// statusOf returns the node's status after a round that ended with err.
func statusOf(s *syncer, err error) api.KerbNodeStatus {
	out := api.KerbNodeStatus{Kernel: s.info.Kernel, Architecture: runtime.GOARCH, Agent: s.info.Version}
	rollouts := s.state.rollouts()
	reports := distinct(append(rollouts.failed, s.namedReports()...)) // reports that halt a rollout come first
	ready := api.Condition{Type: "Ready", Status: "True", Reason: "Synced", Message: "the agent runs all modules"}
	switch {
	case err != nil:
		rollouts = rolloutReport{}
		ready.Status, ready.Reason, ready.Message = "False", "AgentUnavailable",
			err.Error()+"; this is tried again: if it stays, see the log of the agent of this node"
	case len(reports) > 0:
		ready.Status, ready.Reason, ready.Message = "False", "ModulesNotReady", problem(reports)
	}
	ready.Message = truncate(ready.Message)
	out.Conditions = []api.Condition{ready}
	if s.virtual != nil {
		if c := s.virtual.state.condition(); c != nil {
			out.Conditions = append(out.Conditions, *c)
		}
	}
	if n, first := s.state.withTooMany(); n > 0 {
		out.Conditions = append(out.Conditions, api.Condition{Type: "PodsAdmitted", Status: "False", Reason: "TooManyLabels",
			Message: truncate(fmt.Sprintf("%s with over %d labels, or %d bytes of them, among them %s: a new one, or one that "+
				"ran before Kerb, drops all packets until it has fewer", plural(n, "pod"), maxLabels, maxLabelBytes, first))})
	}
	if c := s.state.modulesKept(); c != nil {
		out.Conditions = append(out.Conditions, *c)
	}
	if c := s.state.runtimeCondition(); c != nil {
		out.Conditions = append(out.Conditions, *c)
	}
	out.Checked = rollouts.checked[:min(maxVersions, len(rollouts.checked))]
	out.Updated = rollouts.begun[:min(maxVersions, len(rollouts.begun))]
	for _, r := range reports[:min(maxReports, len(reports))] {
		r.Message = truncate(r.Message)
		out.Modules = append(out.Modules, r)
	}
	return out
}

// distinct returns the first report of each module: names are unique in the list of the status.
func distinct(reports []api.ModuleReport) (out []api.ModuleReport) {
	for _, r := range reports {
		if !slices.ContainsFunc(out, func(o api.ModuleReport) bool { return o.Name == r.Name }) {
			out = append(out, r)
		}
	}
	return out
}

// namedReports returns the reports under the names that the modules have in the API server.
func (s *syncer) namedReports() []api.ModuleReport {
	out := slices.Clone(s.reports)
	for i := range out {
		out[i].Name = cmp.Or(s.fullNames[out[i].Name], out[i].Name)
	}
	return out
}

func truncate(text string) string {
	runes := []rune(text)
	if len(runes) > maxMessage {
		return string(runes[:maxMessage-3]) + "..."
	}
	return text
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// reporter writes KerbNode.status when it has changed, in a goroutine of its own, so that a slow API server blocks no
// round.
type reporter struct {
	client *watch.Client
	node   string
	log    *slog.Logger
	clock  clock
	next   chan api.KerbNodeStatus // has the newest status, at most one
}

func newReporter(c *watch.Client, node string, log *slog.Logger) *reporter {
	return &reporter{client: c, node: node, log: log, next: make(chan api.KerbNodeStatus, 1)}
}

// set sets the status to write, and replaces one that was not written yet.
func (r *reporter) set(status api.KerbNodeStatus) {
	select {
	case <-r.next:
	default:
	}
	r.next <- status
}

// run writes statuses until the context ends.
func (r *reporter) run(ctx context.Context) {
	var written *api.KerbNodeStatus
	for {
		var status api.KerbNodeStatus
		select {
		case <-ctx.Done():
			return
		case status = <-r.next:
		}
		for retry := minWriteRetry; ctx.Err() == nil; {
			if written == nil {
				written = r.read(ctx)
			}
			setTransitionTimes(&status, written, r.clock.now())
			if written != nil && reflect.DeepEqual(status, *written) {
				break
			}
			err := r.write(ctx, status)
			if err == nil {
				written = &status
				break
			}
			written = nil // the write may have succeeded without a response
			if ctx.Err() == nil {
				r.log.Warn("the status of this node is not written", "error", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(retry + rand.N(retry)):
			}
			retry = min(2*retry, maxWriteRetry)
			select {
			case status = <-r.next: // a newer one
			default:
			}
		}
	}
}

// setTransitionTimes sets the time of the last transition of each condition: the previous time if the status of the
// condition is unchanged, otherwise now.
func setTransitionTimes(status, before *api.KerbNodeStatus, now time.Time) {
	for i := range status.Conditions {
		c := &status.Conditions[i]
		c.Transition = now.UTC().Truncate(time.Second)
		if before == nil {
			continue
		}
		for _, b := range before.Conditions {
			if b.Type == c.Type && b.Status == c.Status {
				c.Transition = b.Transition
			}
		}
	}
}

// read returns the status that is stored in the API server, or nil.
func (r *reporter) read(ctx context.Context) *api.KerbNodeStatus {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	var n api.KerbNode
	if err := r.client.Get(ctx, nodesPath+"/"+r.node, &n); err != nil {
		return nil
	}
	if n.Status != nil && len(n.Status.Modules) == 0 {
		n.Status.Modules = nil // stored as an empty list; compared with nil
	}
	if n.Status != nil && len(n.Status.Updated) == 0 {
		n.Status.Updated = nil
	}
	if n.Status != nil && len(n.Status.Checked) == 0 {
		n.Status.Checked = nil
	}
	return n.Status
}

// write patches the status, and creates the object first if it does not exist. The Node owns the object, which is
// garbage-collected with it.
func (r *reporter) write(ctx context.Context, status api.KerbNodeStatus) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	modules := status.Modules
	if modules == nil {
		modules = []api.ModuleReport{} // a patch without the field would not change it
	}
	listed := func(all []api.NodeVersion) []api.NodeVersion { return append([]api.NodeVersion{}, all...) }
	patch := map[string]any{"status": map[string]any{"conditions": status.Conditions, "kernel": status.Kernel,
		"architecture": status.Architecture, "agent": status.Agent, "modules": modules,
		"updated": listed(status.Updated), "checked": listed(status.Checked)}}
	path := nodesPath + "/" + r.node + "/status"
	err := r.client.Merge(ctx, path, patch, nil)
	if !watch.IsStatus(err, http.StatusNotFound) {
		return err
	}
	var node api.Object
	metadata := map[string]any{"name": r.node}
	if err := r.client.Get(ctx, "/api/v1/nodes/"+r.node, &node); err == nil {
		metadata["ownerReferences"] = []any{map[string]any{
			"apiVersion": "v1", "kind": "Node", "name": r.node, "uid": node.Metadata.UID}}
	}
	object := map[string]any{"apiVersion": v1.APIVersion, "kind": "KerbNode", "metadata": metadata}
	if err := r.client.Create(ctx, nodesPath, object, nil); err != nil && !watch.IsStatus(err, http.StatusConflict) {
		return err
	}
	return r.client.Merge(ctx, path, patch, nil)
}
