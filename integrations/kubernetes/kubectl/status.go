// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
)

// maxNodes is how many nodes a status names for each ClusterModule.
const maxNodes = 10

// printStatus prints the rollout of one ClusterModule, or of all that have one.
func printStatus(ctx context.Context, c *watch.Client, name string, out io.Writer) (int, error) {
	var modules []api.Module
	var err error
	if name != "" {
		var one api.Module
		one, err = inRollout(ctx, c, name)
		modules = []api.Module{one}
	} else {
		modules, err = watch.List[api.Module](ctx, c, watch.Resource{Path: modulesPath}, discard)
	}
	if err != nil {
		return exitError, err
	}
	nodes, err := listNodes(ctx, c)
	if err != nil {
		return exitError, err
	}
	code := 0
	for _, m := range modules {
		if m.Spec.Rollout == nil {
			continue
		}
		s := summarize(m, nodes)
		if _, err := io.WriteString(out, s.text(m)); err != nil {
			return exitError, err
		}
		if p := m.Progress(); len(s.failed)+len(s.unable) > 0 || p != nil && p.Halted != nil {
			code = exitFailed
		}
	}
	return code, nil
}

var discard = slog.New(slog.DiscardHandler) // errors of lists are returned

// listNodes returns the KerbNodes. It treats nodes that are not Ready as if they had not reported what they run.
func listNodes(ctx context.Context, c *watch.Client) ([]api.KerbNode, error) {
	nodes, err := watch.List[api.KerbNode](ctx, c, watch.Resource{Path: basePath + api.KerbNodes}, discard)
	if err != nil {
		return nil, err
	}
	hosts, err := watch.List[api.Node](ctx, c, watch.Resource{Path: api.NodesPath}, discard)
	if err != nil {
		return nil, fmt.Errorf("which nodes are Ready is not known: %w", err)
	}
	lost := map[string]bool{}
	for _, n := range hosts {
		lost[n.Metadata.Name] = n.Lost()
	}
	return api.Silence(nodes, lost), nil
}

// summary summarises the reports of nodes about one rollout.
type summary struct {
	nodes   int // that report at all
	updated int // that the rollout gives the new version
	run     int // of those, that say that they run it
	late    int // that say so, and that the rollout gives the previous version
	back    int // that have gone back by themselves
	failed  []failure
	unable  []failure // further nodes, which could not run it, as they have checked
}

type failure struct {
	node   string
	report api.ModuleReport
}

func summarize(m api.Module, nodes []api.KerbNode) (s summary) {
	name, version := m.Metadata.Name, m.Version()
	s.nodes = len(nodes)
	division := m.Division()
	for _, n := range nodes {
		is, runs := division.Has(n.Metadata.Name), n.Begun(name, version) && n.Problem(name) == nil
		switch {
		case is && runs:
			s.run++
		case runs:
			s.late++
		}
		if r := n.Problem(name); !is && r != nil && r.Reason == api.CheckFailed {
			s.unable = append(s.unable, failure{n.Metadata.Name, *r})
		}
		if !is {
			continue
		}
		s.updated++
		if r := n.Problem(name); r != nil {
			if r.Reason == api.RolledBack {
				s.back++
			}
			s.failed = append(s.failed, failure{n.Metadata.Name, *r})
		}
	}
	return s
}

// text returns a line with the rollout, one with the reports of nodes, and one for each of the first nodes with a
// problem.
func (s summary) text(m api.Module) string {
	var b strings.Builder
	d := m.Division()
	fmt.Fprintf(&b, "%s: %d %% of the nodes", m.Metadata.Name, d.Percent)
	if n := len(d.Nodes); n > 0 {
		fmt.Fprintf(&b, " and %d by name", n)
	}
	if m.Spec.Rollout.Paused {
		b.WriteString(", paused")
	}
	p := m.Progress()
	halted := p != nil && p.Halted != nil
	switch {
	case halted:
		b.WriteString(", halted")
	case p == nil && !m.Spec.Rollout.ByHand():
		b.WriteString(", waits for kerb-kube-controller")
	}
	fmt.Fprintf(&b, "\n  new version: %d of %d nodes, %d run it, %d went back, %d with another problem, "+
		"%d have not said yet\n", s.updated, s.nodes, s.run, s.back, len(s.failed)-s.back, s.updated-s.run-len(s.failed))
	if halted {
		fmt.Fprintf(&b, "  %s: %s\n", p.Halted.Reason, api.Printable(p.Halted.Message))
	}
	if s.late > 0 {
		fmt.Fprintf(&b, "  %d more still run it\n", s.late)
	}
	if n := len(s.unable); n > 0 {
		fmt.Fprintf(&b, "  %d more could not run it\n", n)
	}
	all := slices.Concat(s.failed, s.unable)
	for _, f := range all[:min(maxNodes, len(all))] {
		fmt.Fprintf(&b, "  %s %s: %s\n", f.node, api.Printable(f.report.Reason), api.Printable(f.report.Message))
	}
	if more := len(all) - maxNodes; more > 0 {
		fmt.Fprintf(&b, "  and %d more: kubectl get kerbnodes\n", more)
	}
	return b.String()
}
