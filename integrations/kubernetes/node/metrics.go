// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/events"
	"github.com/kerb-edge/kerb/integrations/kubernetes/metrics"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
	"github.com/kerb-edge/kerb/internal/promtext"
)

var started = time.Now()

// roundStats has the statistics of synchronisation rounds, for metrics. It is safe for concurrent use.
type roundStats struct {
	mu       sync.Mutex
	rounds   uint64
	failed   uint64
	synced   time.Time // end of the last round without an error
	modules  int       // desired in that round, without the built-in one for pending pods
	problems []api.ModuleReport
	held     int       // pods held in that round
	saved    time.Time // time of the last snapshot
}

// round records a round and its error.
func (f *roundStats) round(s *syncer, problems []api.ModuleReport, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rounds++
	f.problems = problems
	if err != nil {
		f.failed++
		return
	}
	f.synced, f.modules, f.held = time.Now(), max(0, len(s.generations)-1), s.events.count()
}

func (f *roundStats) snapshot() {
	f.mu.Lock()
	f.saved = time.Now()
	f.mu.Unlock()
}

// collect adds the metrics of the process. Their number does not grow with the number of pods.
func (f *roundStats) collect(out *promtext.Set, s *state, c *watch.Client, recorder *events.Recorder) {
	metrics.API(out, c.Stats(), recorder.Counts())
	s.collect(out)
	f.mu.Lock()
	defer f.mu.Unlock()
	const rounds = "Comparisons of the agent with the API server: at least one in five seconds."
	out.Counter("kerb_kube_syncs_total", rounds, float64(f.rounds-f.failed), "result", "success")
	out.Counter("kerb_kube_syncs_total", rounds, float64(f.failed), "result", "error")
	metrics.Time(out, "kerb_kube_last_sync_timestamp_seconds", "When the agent was last as it should be, but for "+
		"kerb_kube_problem; before the first time, when the program started.", cmp.Or(f.synced, started))
	if !f.saved.IsZero() {
		metrics.Time(out, "kerb_kube_snapshot_timestamp_seconds", "When the state for a start without the API server was "+
			"written.", f.saved)
	}
	out.Gauge("kerb_kube_modules", "ClusterModules and Modules that the node is to run.", float64(f.modules))
	for _, p := range f.problems {
		out.Gauge("kerb_kube_problem", "Modules that do not run as specified, as in the KerbNode: at most ten.", 1, "module",
			p.Name, "reason", p.Reason)
	}
	out.Gauge("kerb_kube_pods_not_admitted", "Pods that are not admitted and drop all packets, without those that "+
		"are only starting.", float64(f.held))
}

// collect adds metrics about the state of the API server.
func (s *state) collect(out *promtext.Set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out.Gauge("kerb_kube_synced", "1 if all lists have come since the start: nothing is deleted before.",
		metrics.Is(s.synced == ofAll))
	out.Gauge("kerb_kube_pods", "Pods of the node.", float64(len(s.pods)))
	if s.runtime.enabled {
		out.Gauge("kerb_kube_runtime_connected", "1 if the container runtime reports pods by NRI.",
			metrics.Is(s.runtime.name != ""))
	}
	begun := 0
	for _, t := range s.trials {
		if t.Failure == "" {
			begun++
		}
	}
	const versions = "New versions of rollouts that the node has begun with."
	out.Gauge("kerb_kube_rollout_versions", versions, float64(begun), "state", "running")
	out.Gauge("kerb_kube_rollout_versions", versions, float64(len(s.trials)-begun), "state", "rolled_back")
}

// count returns how many pods were held in the last round.
func (e *podEvents) count() int {
	if e == nil {
		return 0
	}
	n := 0
	for _, p := range e.pods {
		if !p.unprotected {
			n++
		}
	}
	return n
}
