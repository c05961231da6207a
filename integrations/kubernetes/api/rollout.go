// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"hash/fnv"
	"slices"
	"strings"
	"time"
)

// Rollout divides the nodes between two versions of a ClusterModule. Each node computes which version it runs, so that
// one write starts a whole wave, and the object does not grow with the number of nodes.
type Rollout struct {
	Percent         *int     `json:"percent,omitempty" doc:"Percentage of nodes that run package and config of the spec, by hand: a larger one only adds nodes. Absent: kerb-kube-controller raises it in waves"`
	Waves           []int    `json:"waves,omitempty" minItems:"1" maxItems:"20" doc:"Percentages of nodes that kerb-kube-controller gives the new version, one wave after the other; default 5, 25, 50, 100"`
	SoakSeconds     *int     `json:"soakSeconds,omitempty" doc:"How long all nodes of a wave run the new version without a problem before the next wave; default 60"`
	DeadlineSeconds *int     `json:"deadlineSeconds,omitempty" doc:"How long a wave waits for nodes that do not answer; default 300"`
	MaxFailed       int      `json:"maxFailed,omitempty" doc:"How many nodes may refuse the new version, not run it or go back from it: beyond, the rollout halts"`
	Nodes           []string `json:"nodes,omitempty" maxItems:"50" doc:"Canaries: names of nodes that run the new version before the first wave. Without percent, one node of each kernel (major.minor) and architecture joins them"`
	Paused          bool     `json:"paused,omitempty" doc:"No further node switches to the new version; those that run it keep it"`
	MaxDrops        *int     `json:"maxDrops,omitempty" doc:"How many of 1,000 packets the new version may drop more than the module did before; beyond, a node returns to the previous version. Absent: any number"`
	MaxCost         *int     `json:"maxCost,omitempty" doc:"How many nanoseconds the new version may add to the slowest kind of packet more than the module did before; beyond, a node returns to the previous version. Absent: any number"`
	MaxUnready      *int     `json:"maxUnready,omitempty" doc:"How many of the pods of a node that the module selects, and that were Ready before the new version, may not be Ready within soakSeconds; beyond, the node returns to the previous version. Absent: any number"`
	Previous        Previous `json:"previous" doc:"The version that the other nodes run"`
}

// Defaults of Rollout.
const (
	defaultSoak     = 60
	defaultDeadline = 300
)

// MaxCanaries is the maximum number of canaries of a rollout.
const MaxCanaries = 50

var defaultWaves = []int{5, 25, 50, 100}

// ByHand reports whether the user sets the percentage, and not kerb-kube-controller.
func (r *Rollout) ByHand() bool { return r.Percent != nil }

// Soak returns how long a wave must run without a problem.
func (r *Rollout) Soak() time.Duration { return seconds(r.SoakSeconds, defaultSoak) }

// Deadline returns how long a wave waits for nodes that do not report.
func (r *Rollout) Deadline() time.Duration { return seconds(r.DeadlineSeconds, defaultDeadline) }

func seconds(n *int, otherwise int) time.Duration {
	if n != nil {
		otherwise = *n
	}
	return time.Duration(otherwise) * time.Second
}

// Steps returns the percentages of the waves.
func (r *Rollout) Steps() []int {
	if len(r.Waves) > 0 {
		return r.Waves
	}
	return defaultWaves
}

// RolloutStatus is the progress of the rollout of one version. It does not apply to other versions: a change of package
// or config restarts the rollout.
type RolloutStatus struct {
	Version  string    `json:"version" doc:"Hash of the package and config that it is about"`
	Percent  int       `json:"percent" doc:"Percentage of nodes that run the version"`
	Canaries []string  `json:"canaries,omitempty" maxItems:"50" doc:"Names of nodes that run it at any percentage"`
	Since    time.Time `json:"since" doc:"When nodes were added last"`
	Halted   *Halt     `json:"halted,omitempty" doc:"Why no further nodes switch, until kubectl kerb rollout resume or undo"`
	Accepted int       `json:"accepted,omitempty" doc:"Nodes without the version that kubectl kerb rollout resume has accepted"`
}

// Begun reports whether some nodes should run the version. Before, nodes only check it.
func (r RolloutStatus) Begun() bool { return r.Percent > 0 || len(r.Canaries) > 0 }

// Halt is the reason why a rollout has halted.
type Halt struct {
	Reason  string `json:"reason" doc:"Machine-readable reason, one CamelCase word"`
	Message string `json:"message" maxLength:"1024" doc:"Messages of nodes, and what to do"`
}

// Previous is the part of a ClusterModule for nodes that do not run the new version.
type Previous struct {
	Package Package        `json:"package" doc:"The package to deploy"`
	Config  map[string]any `json:"config,omitempty" doc:"Configuration, checked against the schema in the package's manifest"`
}

// Progress returns the progress of the rollout of the spec's version, or nil if it has not started, or is controlled by
// the user.
func (m Module) Progress() *RolloutStatus {
	if r := m.Spec.Rollout; r == nil || r.ByHand() || m.Status == nil || m.Status.Rollout == nil ||
		m.Status.Rollout.Version != m.Version() {
		return nil
	}
	return m.Status.Rollout
}

// Holds reports whether no node may switch to the new version.
func (m Module) Holds() bool {
	if m.Spec.Rollout.Paused {
		return true
	}
	p := m.Progress()
	return p != nil && p.Halted != nil
}

// Division determines which nodes run the new version of a ClusterModule.
type Division struct {
	Percent int
	Nodes   []string // at any percentage
	module  string
}

// Division returns the division of a ClusterModule. Without a rollout, no node has a new version.
func (m Module) Division() Division {
	r, d := m.Spec.Rollout, Division{module: m.Metadata.Name}
	if r == nil || m.Metadata.Namespace != "" {
		return d
	}
	if r.ByHand() {
		d.Percent, d.Nodes = *r.Percent, r.Nodes
	} else if p := m.Progress(); p != nil {
		d.Percent, d.Nodes = p.Percent, p.Canaries
	}
	return d
}

// Has reports whether a node has the new version.
func (d Division) Has(node string) bool {
	return slices.Contains(d.Nodes, node) || cohort(d.module, node) < d.Percent
}

// Compare returns a negative number if waves reach node a before b.
func (d Division) Compare(a, b string) int {
	return cmp.Or(cohort(d.module, a)-cohort(d.module, b), strings.Compare(a, b))
}

// Of returns the nodes that have the new version.
func (d Division) Of(nodes []KerbNode) (out []KerbNode) {
	for _, n := range nodes {
		if d.Has(n.Metadata.Name) {
			out = append(out, n)
		}
	}
	return out
}

// Updated reports whether a node should run the new version of a ClusterModule.
func (m Module) Updated(node string) bool { return m.Division().Has(node) }

// Side returns the ClusterModule with the new version if updated, and otherwise with the previous one.
func (m Module) Side(updated bool) Module {
	r := m.Spec.Rollout
	if r == nil || m.Metadata.Namespace != "" {
		return m
	}
	if !updated {
		m.Spec.Package, m.Spec.Config = r.Previous.Package, r.Previous.Config
	}
	m.Spec.Rollout, m.Status = nil, nil
	return m
}

// Version identifies the new version of a ClusterModule.
func (m Module) Version() string {
	text, _ := json.Marshal([]any{m.Spec.Package, m.Spec.Config}) // decoded from JSON
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:10])
}

// cohort is a number from 0 to 99. The name of the module is in it, so that modules do not all try their new versions
// on the same nodes first.
func cohort(module, node string) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(module + "/" + node)) // cannot fail
	return int(h.Sum64() % 100)
}
