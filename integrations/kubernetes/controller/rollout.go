// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
)

// Reasons of the condition RolledOut, and of halts.
const (
	conditionRolledOut = "RolledOut"
	reasonPreflight    = "Preflight"
	reasonCanaries     = "Canaries"
	reasonWaves        = "Waves"
	reasonPaused       = "Paused"
	reasonComplete     = "Complete"
	reasonFailed       = "NodesFailed"
	reasonSilent       = "NodesSilent"
)

// Limits of texts in a status.
const (
	maxNamed   = 3   // nodes in a message
	maxSaid    = 250 // runes of what one of them says
	maxMessage = 1024
)

// tally counts the reports of nodes that should run the new version.
type tally struct {
	nodes, run, silent int
	accepted           int // of those without the version that resume has accepted, those that have been given it
	failed             []said
	quiet              []string // names of the silent ones
}

// said is the report of a node about a module.
type said struct{ node, text string }

// count counts the reports of the nodes of a division. It ignores reports about earlier generations, since the node has
// not processed the current one yet, and problems of nodes that have not started to switch, since they concern the
// previous version, which the new one may fix. Named nodes without a KerbNode count as silent.
func count(m api.Module, d api.Division, nodes []api.KerbNode) (t tally) {
	name, version, present := m.Metadata.Name, m.Version(), map[string]bool{}
	if p := m.Progress(); p != nil {
		t.accepted = p.Accepted
	}
	for _, n := range nodes { // resume has accepted those, too, that no wave has reached
		if !d.Has(n.Metadata.Name) && refuses(m, n) && t.accepted > 0 {
			t.accepted--
		}
	}
	for _, n := range d.Of(nodes) {
		present[n.Metadata.Name] = true
		t.nodes++
		switch p := n.Problem(name); {
		case p != nil && p.Generation >= m.Metadata.Generation && (n.Begun(name, version) || api.OfNew(p.Reason)):
			t.failed = append(t.failed, said{n.Metadata.Name, p.Reason + ": " + p.Message})
		case p == nil && n.Begun(name, version):
			t.run++
		default:
			t.silent++
			t.quiet = append(t.quiet, n.Metadata.Name)
		}
	}
	for _, name := range d.Nodes {
		if !present[name] {
			t.nodes, t.silent, t.quiet = t.nodes+1, t.silent+1, append(t.quiet, name)
		}
	}
	t.sort()
	return t
}

// refuses reports whether a check of the version has failed on a node.
func refuses(m api.Module, n api.KerbNode) bool {
	p := n.Problem(m.Metadata.Name)
	return p != nil && p.Reason == api.CheckFailed && p.Generation >= m.Metadata.Generation
}

func (t tally) sort() {
	slices.SortFunc(t.failed, func(a, b said) int { return cmp.Compare(a.node, b.node) })
	slices.Sort(t.quiet)
}

// wave is the state of a rollout in which no problem has been reported since a time. It is in memory, with times of
// this process's clock: a new leader starts to wait again. RolloutStatus.Since comes from another clock, that of an
// earlier leader or of a user who resumed the rollout, and only distinguishes states of the rollout.
type wave struct {
	version  string
	complete string    // version that all nodes have run: the condition RolledOut was True
	began    time.Time // RolloutStatus.Since
	seen     time.Time // when this process saw that state first, or wrote it
	green    time.Time // zero if a node has not answered
	silent   time.Time // since when nodes have not answered; zero if all have

	next, wrote time.Time // RolloutStatus.Since of the state that this process was to write last, and when
}

// see notes a state of the rollout that this process has not seen before.
func (w *wave) see(p api.RolloutStatus, now time.Time) {
	if w.version == p.Version && w.began.Equal(p.Since) {
		return
	}
	if w.version == p.Version && w.next.Equal(p.Since) {
		now = w.wrote
	}
	*w = wave{version: p.Version, complete: w.complete, began: p.Since, seen: now, silent: now}
}

// write returns RolloutStatus.Since of the state that follows.
func (w *wave) write(now time.Time) time.Time {
	w.next, w.wrote, w.silent = sinceOf(now), now, now
	return w.next
}

func sinceOf(now time.Time) time.Time { return now.UTC().Truncate(time.Second) }

// advance returns the next state of a rollout, and its condition. nodes has all nodes.
func advance(m api.Module, nodes []api.KerbNode, w *wave, now time.Time) (*api.RolloutStatus, api.Condition) {
	r, was := m.Spec.Rollout, m.Progress()
	p := api.RolloutStatus{Version: m.Version(), Since: sinceOf(now)}
	if was != nil {
		p = *was
	}
	w.see(p, now)
	if !p.Begun() {
		return preflight(m, p, nodes, w, now)
	}
	m.Status = &api.ModuleStatus{Rollout: &p}
	t := count(m, m.Division(), nodes)
	if p.Halted == nil && p.Percent == 100 && w.complete == p.Version { // what fails from now on is reported
		return &p, condition("True", reasonComplete, t.text(p))
	}
	if t.silent == 0 {
		w.silent = time.Time{}
	} else if w.silent.IsZero() {
		w.silent = now
	}
	late := isLate(m, w.silent, now)
	if p.Halted == nil {
		p.Halted = halt(m, p, t, late)
	}
	switch waiting := t.silent > 0 && !late; {
	case p.Halted != nil:
		w.green = time.Time{}
		return &p, condition("False", p.Halted.Reason, p.Halted.Message)
	case waiting || t.nodes == 0:
		w.green = time.Time{}
	case w.green.IsZero():
		w.green = now
	}
	soaked := !w.green.IsZero() && !now.Before(w.green.Add(r.Soak()))
	switch {
	case p.Percent == 100 && !w.green.IsZero():
		w.complete = p.Version
		return &p, condition("True", reasonComplete, t.text(p))
	case r.Paused:
		return &p, condition("False", reasonPaused, t.text(p)+resumes(m))
	case soaked:
		p.Percent, p.Since = nextPercent(m, p, nodes), w.write(now)
		m.Status = &api.ModuleStatus{Rollout: &p}
		t = count(m, m.Division(), nodes)
	}
	if p.Percent == 0 {
		return &p, condition("False", reasonCanaries, t.text(p)+t.waits(m))
	}
	return &p, condition("False", reasonWaves, t.text(p)+t.waits(m))
}

// preflight waits until all nodes have checked the version, and then starts the canaries. It treats nodes that do not
// report as offline.
func preflight(m api.Module, p api.RolloutStatus, nodes []api.KerbNode, w *wave, now time.Time) (*api.RolloutStatus,
	api.Condition) {
	name, t := m.Metadata.Name, tally{nodes: len(nodes)}
	var able []api.KerbNode
	for _, n := range nodes {
		switch r := n.Problem(name); {
		case refuses(m, n):
			t.failed = append(t.failed, said{n.Metadata.Name, r.Message})
		case n.Could(name, p.Version):
			able = append(able, n)
		default:
			t.silent++
		}
	}
	t.sort()
	limit := max(m.Spec.Rollout.MaxFailed, p.Accepted)
	if len(t.failed) == t.nodes {
		limit = p.Accepted // do not wait if no node can run it
	}
	if p.Halted == nil && len(t.failed) > limit {
		p.Halted = t.halt(m, p, len(t.failed), api.CheckFailed)
	}
	text := fmt.Sprintf("of %d nodes, %d could run the new version, %d could not, %d have not answered", t.nodes,
		len(able), len(t.failed), t.silent)
	switch {
	case p.Halted != nil:
		return &p, condition("False", p.Halted.Reason, p.Halted.Message)
	case m.Spec.Rollout.Paused:
		return &p, condition("False", reasonPaused, text+resumes(m))
	case len(able) > 0 && (t.silent == 0 || isLate(m, w.seen, now)):
		p.Canaries, p.Since = canaries(m, able), w.write(now)
		return &p, condition("False", reasonCanaries, text)
	}
	return &p, condition("False", reasonPreflight, text+t.waits(m))
}

// resumes describes how a paused rollout continues.
func resumes(m api.Module) string {
	return "; kubectl kerb rollout resume " + m.Metadata.Name + " continues it"
}

// waits describes until when a rollout waits for nodes that have not reported, and how to list them. It is empty if all
// have.
func (t tally) waits(m api.Module) string {
	if t.silent == 0 {
		return ""
	}
	return fmt.Sprintf("; it waits for them for %v (spec.rollout.deadlineSeconds): kubectl kerb rollout status %s names "+
		"them", m.Spec.Rollout.Deadline(), m.Metadata.Name)
}

// isLate reports whether the deadline has passed of nodes that have not answered since a time.
func isLate(m api.Module, since, now time.Time) bool {
	return !now.Before(since.Add(m.Spec.Rollout.Deadline()))
}

// canaries returns the nodes named by the user, and one of each other kind of node, since kernels differ in what they
// accept. Of several able nodes of a kind, it selects the one that waves reach first.
func canaries(m api.Module, able []api.KerbNode) []string {
	out, covered := slices.Clone(m.Spec.Rollout.Nodes), map[string]bool{}
	for _, n := range able {
		if slices.Contains(out, n.Metadata.Name) {
			covered[kind(n)] = true
		}
	}
	d := m.Division()
	able = slices.SortedFunc(slices.Values(able), func(a, b api.KerbNode) int {
		return d.Compare(a.Metadata.Name, b.Metadata.Name)
	})
	for _, n := range able {
		if k := kind(n); !covered[k] && len(out) < api.MaxCanaries {
			covered[k], out = true, append(out, n.Metadata.Name)
		}
	}
	return out
}

// kind is the kernel of a node, as far as its verifier depends on it: MAJOR.MINOR of its release, and its architecture.
func kind(n api.KerbNode) string {
	if n.Status == nil {
		return ""
	}
	release := strings.SplitN(n.Status.Kernel, ".", 3)
	return strings.Join(release[:min(2, len(release))], ".") + " " + n.Status.Architecture
}

// nextPercent is that of the next wave with a node that has not had one: in a small cluster many waves have none.
func nextPercent(m api.Module, p api.RolloutStatus, nodes []api.KerbNode) int {
	has := len(m.Division().Of(nodes))
	for _, step := range m.Spec.Rollout.Steps() {
		next := p
		next.Percent = step
		m.Status = &api.ModuleStatus{Rollout: &next}
		if step > p.Percent && len(m.Division().Of(nodes)) > has {
			return step
		}
	}
	return 100
}

// halt returns why a rollout must halt, or nil. A canary that does not report may be down because of the new version.
// In a wave, nodes may be offline, but not most of them. A version that no node runs is not rolled out further: resume
// may accept some canaries that do not run it, but not all.
func halt(m api.Module, p api.RolloutStatus, t tally, late bool) *api.Halt {
	limit := max(m.Spec.Rollout.MaxFailed, t.accepted)
	if t.run == 0 {
		limit = t.accepted
		if t.silent == 0 || late {
			limit = 0
		}
	}
	bad, reason := len(t.failed), reasonFailed
	if late && t.silent > 0 && (p.Percent == 0 || t.silent > t.run) {
		if bad <= limit {
			reason = reasonSilent
		}
		bad += t.silent
	}
	if bad <= limit {
		return nil
	}
	return t.halt(m, p, bad, reason)
}

// halt returns the halt for nodes that do not run the version, or cannot.
func (t tally) halt(m api.Module, p api.RolloutStatus, bad int, reason string) *api.Halt {
	text := fmt.Sprintf("%d of %d nodes do not run the new version, and spec.rollout.maxFailed allows %d", bad, t.nodes,
		m.Spec.Rollout.MaxFailed)
	if p.Accepted > m.Spec.Rollout.MaxFailed {
		text += fmt.Sprintf(", and resume accepted %d", p.Accepted)
	}
	remedy := "and resume continues without these nodes"
	if p.Begun() && t.run == 0 {
		remedy = "as no node runs the new one; then change it, or spec.rollout.nodes, and start again"
	}
	return &api.Halt{Reason: reason, Message: truncate(fmt.Sprintf("%s: %s; kubectl kerb rollout undo %s has all nodes "+
		"run the previous version, %s", text, t.failureSummary(bad > len(t.failed)), m.Metadata.Name, remedy), maxMessage)}
}

// failureSummary lists the first failed nodes with their messages, or the silent ones.
func (t tally) failureSummary(silent bool) string {
	var out []string
	for _, f := range t.failed {
		out = append(out, f.node+" "+truncate(f.text, maxSaid))
	}
	if silent {
		for _, name := range t.quiet {
			out = append(out, name+" has not answered")
		}
	}
	if more := len(out) - maxNamed; more > 0 {
		out = append(out[:maxNamed], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(out, "; ")
}

func (t tally) text(p api.RolloutStatus) string {
	return fmt.Sprintf("%d %% of the nodes and %d canaries: of %d nodes, %d run it, %d failed, %d have not answered",
		p.Percent, len(p.Canaries), t.nodes, t.run, len(t.failed), t.silent)
}

func condition(status, reason, message string) api.Condition {
	return api.Condition{Type: conditionRolledOut, Status: status, Reason: reason, Message: truncate(message, maxMessage)}
}

func truncate(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-3]) + "..."
	}
	return text
}
