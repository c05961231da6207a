// SPDX-License-Identifier: Apache-2.0

package paper

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/bench"
	_ "github.com/kerb-edge/kerb/bench/responder"
	"github.com/kerb-edge/kerb/modules/responder/apps/speedlimit"
)

func init() { register(&weinhold) }

var weinhold = Work{
	Name:   "weinhold",
	Title:  "Weinhold, real-time requests answered in the kernel (TU Berlin, 2023)",
	Tables: []Table{weinholdTimes, weinholdLoss, weinholdThreads},
	Claims: weinholdClaims,
}

var weinholdConfigs = []Config{{"user", "user"}, {"mixed", "mixed"}, {"kernel", "kernel"}}

// weinholdPrograms adds the work's programs in the kernel, rebuilt from its description: a map with strings as keys,
// and four operations on it per request.
var weinholdPrograms = append(slices.Clone(weinholdConfigs), Config{"published-mixed", "rebuilt from its text"},
	Config{"published-kernel", "rebuilt from its text"})

const oneMachine = "one machine with network namespaces instead of two virtual machines, the client on one half of " +
	"the CPUs and the server on the other"

var weinholdCounts = counts("10,000 requests per thread", "1,000 requests per thread",
	"10 requests per thread")

// three returns the values of the configs in their order.
func three(user, mixed, kernel float64) map[string]float64 {
	return map[string]float64{"user": user, "mixed": mixed, "kernel": kernel}
}

var weinholdTimes = Table{
	Name:  "times",
	Title: "Tables 5.4 and 5.5, figures 5.3 and 5.4: response times of 120 threads",
	Shows: "The time that a thread takes, divided by its requests: of one run (table 5.4; ours are the medians, the " +
		"minimum and the maximum of all runs), and the medians of 96 runs (table 5.5)",
	Experiment: "responder",
	Loads:      Same([]string{"published/120"}),
	Rounds:     [modes]int{96, 10, 3},
	Counts:     weinholdCounts,
	Takes:      [modes]time.Duration{200 * time.Minute, 3 * time.Minute, 12 * time.Second},
	Configs:    weinholdPrograms,
	Differs:    oneMachine,
	Rows: []Row{
		{Label: "5.4 median", Load: "published/120", Metric: "thread_mean", Stat: "p50", Unit: "ms", By: 1e-3,
			Published: three(1.8868, 1.0784, 1.3252)},
		{Label: "5.4 deviation", Load: "published/120", Metric: "thread_mean", Stat: "stddev", Unit: "ms", By: 1e-3,
			Published: three(0.1608, 0.0878, 0.0818)},
		{Label: "5.4 min", Load: "published/120", Metric: "thread_mean", Stat: "min", Unit: "ms", By: 1e-3,
			Published: map[string]float64{"user": 1.60}},
		{Label: "5.4 max", Load: "published/120", Metric: "thread_mean", Stat: "max", Unit: "ms", By: 1e-3,
			Published: map[string]float64{"mixed": 1.28, "kernel": 1.55}},
		{Label: "5.5 median of medians", Load: "published/120", Metric: "thread_mean", Stat: "p50", Unit: "ms", By: 1e-3,
			Over: "median", Published: three(1.7476, 1.2010, 1.2654)},
		{Label: "5.5 mean of medians", Load: "published/120", Metric: "thread_mean", Stat: "p50", Unit: "ms", By: 1e-3,
			Over: "mean"},
		{Label: "5.5 deviation of medians", Load: "published/120", Metric: "thread_mean", Stat: "p50", Unit: "ms",
			By: 1e-3, Over: "stddev"},
		{Label: "a single request, median", Load: "published/120", Metric: "rtt", Stat: "p50", Unit: "ms", By: 1e-3},
		{Label: "a single request, p99", Load: "published/120", Metric: "rtt", Stat: "p99", Unit: "ms", By: 1e-3},
		{Label: "the client's CPUs, busy", Load: "published/120", Metric: "client_busy", Stat: "p50", Unit: "%"},
		{Label: "the servers' CPUs, busy", Load: "published/120", Metric: "server_busy", Stat: "p50", Unit: "%"},
	},
	Figures: []bench.Figure{
		{Kind: "each", Name: "5-2", X: "cars", Computed: limits(),
			Title: "Figure 5.2: speed limit by cars in range (computed, not measured)"},
		{Kind: "box", Name: "5-3", Title: "Figure 5.3: response times of 120 threads", Metric: "thread_mean"},
		{Kind: "each", Name: "5-4", Title: "Figure 5.4: median of each thread", Metric: "thread_mean", X: "thread"},
	},
}

// limits returns the limits of equation 5.1, and Kerb's answers in the kernel: the nearest integers, as a test of the
// responder checks for every number of cars.
func limits() []bench.Series {
	var exact, answered []float64
	for cars := range int64(131) {
		v := speedlimit.Limit(cars)
		exact, answered = append(exact, v), append(answered, math.Round(v))
	}
	return []bench.Series{{Config: "equation 5.1", Unit: "km/h", Rounds: [][]float64{exact}},
		{Config: "answered (nearest integer)", Unit: "km/h", Rounds: [][]float64{answered}}}
}

// untilLoss is the load with up to maxThreads.
const (
	untilLoss  = "until-loss/400"
	maxThreads = 400
)

var weinholdLoss = Table{
	Name:       "loss",
	Title:      "Table 5.6, figure 5.5: threads until the first request is lost",
	Shows:      "The number of threads, increased one by one, until a thread misses a reply",
	Experiment: "responder",
	Loads:      [modes][]string{{untilLoss}, {untilLoss}, {"until-loss/40"}},
	Rounds:     [modes]int{5, 1, 1},
	Counts:     weinholdCounts,
	Takes:      [modes]time.Duration{80 * time.Hour, 5 * time.Minute, 6 * time.Second},
	Configs:    weinholdPrograms,
	Differs: oneMachine + "; increased by 20 threads unless with the published number of repetitions, up to 400, which " +
		"means no loss",
	Rows: []Row{
		{Label: "median", Load: "until-loss/*", Metric: "lossfree_threads", Stat: "p50", Unit: "threads",
			Over: "median", Published: three(139, 265, 270)},
		{Label: "mean", Load: "until-loss/*", Metric: "lossfree_threads", Stat: "p50", Unit: "threads", Over: "mean",
			Published: three(139.5, 269.6, 271.7)},
	},
	Figures: []bench.Figure{{Kind: "box", Name: "5-5", Title: fmt.Sprintf("Figure 5.5: threads until the first request "+
		"is lost, at most %d", maxThreads), Metric: "lossfree_threads", Stat: "p50"}},
}

var weinholdThreads = Table{
	Name:       "threads",
	Title:      "Figure 5.6: response time by number of threads",
	Shows:      "The median over threads for each number of threads, and a linear regression",
	Experiment: "responder",
	Loads: [modes][]string{threadLoads(10, 10), threadLoads(50, 50),
		{"threads/1", "threads/60", "threads/120"}},
	Rounds:  [modes]int{1, 3, 1},
	Counts:  weinholdCounts,
	Takes:   [modes]time.Duration{50 * time.Minute, 8 * time.Minute, 6 * time.Second},
	Configs: weinholdPrograms,
	Differs: oneMachine + "; up to 250 threads, not in steps of one",
	Rows: []Row{
		{Label: "120 threads", Load: "threads/120", Metric: "thread_mean", Stat: "p50", Unit: "ms", By: 1e-3},
		{Label: "250 threads", Load: "threads/250", Metric: "thread_mean", Stat: "p50", Unit: "ms", By: 1e-3},
	},
	Figures: []bench.Figure{{Kind: "regression", Name: "5-6", Title: "Figure 5.6: response time by threads",
		Metric: "thread_mean", Stat: "p50", X: "threads"}},
}

// threadLoads returns the loads up to 250 threads.
func threadLoads(first, step int) []string {
	loads := []string{"threads/1"}
	for n := first; n <= 250; n += step {
		loads = append(loads, fmt.Sprintf("threads/%d", n))
	}
	return loads
}

var weinholdClaims = []Claim{
	{Text: "Replies from the kernel are 1.76 times (mixed) and 1.43 times (kernel) as fast", Where: "the text; the " +
		"tables give 1.75 and 1.42, or 1.46 and 1.38 over 96 runs", Evaluate: func(f *results) (bool, string) {
		time := func(config string) float64 { return f.positive("times", config, "published/120", "thread_mean", "p50") }
		asked := func(config string) float64 {
			return weinholdTimes.publishedRatio("5.5 median of medians", "user", config)
		}
		mixed, kernel := time("user")/time("mixed"), time("user")/time("kernel")
		return atLeast(mixed, asked("mixed")) && atLeast(kernel, asked("kernel")),
			fmt.Sprintf("%.2f and %.2f times; required are the %.3f and %.3f of 96 runs", mixed, kernel, asked("mixed"),
				asked("kernel"))
	}},
	{Text: "The slowest thread with replies from the kernel is faster than the fastest without", Where: "table 5.4",
		Evaluate: func(f *results) (bool, string) {
			of := func(config, stat string) float64 {
				return f.positive("times", config, "published/120", "thread_mean", stat)
			}
			slowest, fastest := max(of("mixed", "max"), of("kernel", "max")), of("user", "min")
			return slowest < fastest, fmt.Sprintf("%.3f ms, without %.3f ms", slowest/1e3, fastest/1e3)
		}},
	{Text: "Response times vary less between threads with replies from the kernel", Where: "table 5.4",
		Evaluate: func(f *results) (bool, string) {
			of := func(config string) float64 {
				return f.positive("times", config, "published/120", "thread_mean", "stddev")
			}
			user, mixed, kernel := of("user"), of("mixed"), of("kernel")
			return max(mixed, kernel) < user, fmt.Sprintf("deviations %.3f, %.3f and %.3f ms (user, mixed, kernel)", user/1e3,
				mixed/1e3, kernel/1e3)
		}},
	{Text: "No thread is preferred", Where: "figure 5.4", Evaluate: func(f *results) (bool, string) {
		worst, parts := 0.0, []string{}
		for _, c := range weinholdConfigs {
			each := f.each("times", c.Name, "published/120", "thread_mean")
			spread := slices.Max(each) / slices.Min(each)
			worst, parts = max(worst, spread), append(parts, fmt.Sprintf("%s %.2f", c.Name, spread))
		}
		return worst < 1.5, "slowest over fastest thread, by medians of the runs: " + strings.Join(parts, ", ") +
			"; below 1.5 counts as none"
	}},
	{Text: "1.93 times (mixed) and 1.95 times (kernel) as many threads until the first loss", Where: "table 5.6, from " +
		"its means; its medians give 1.91 and 1.94", Evaluate: lossComesLater},
	{Text: "The regression lines meet near 250 threads", Where: "figure 5.6", Evaluate: regressionsMeet},
	{Text: "TCP needs little change", Where: "section 4.1",
		NotMeasured: "`kerb bench responder --loads 'tcp/*'` measures what was tried; docs/limits.md says why Kerb does " +
			"not include it"},
	{Text: "More clients on the same hardware need less energy", Where: "section 5.4",
		NotMeasured: "the machines used have no energy counters; `kerb bench responder --loads 'energy/*'` reads those " +
			"that Linux provides"},
}

// lossComesLater has no verdict if even the maximum number of threads loses nothing and is too low for the claim.
func lossComesLater(f *results) (bool, string) {
	of := func(config string) float64 { return f.positive("loss", config, untilLoss, "lossfree_threads", "p50") }
	user, good, short := of("user"), true, false
	for _, config := range []string{"mixed", "kernel"} {
		enough := atLeast(of(config)/user, weinholdLoss.publishedRatio("median", config, "user"))
		good = good && enough
		short = short || !enough && of(config) < maxThreads
	}
	if !good && !short {
		f.miss(fmt.Sprintf("runs with more than %d threads (at the cap)", maxThreads))
	}
	return good, fmt.Sprintf("%g, %g and %g threads (user, mixed, kernel), of at most %d; required are the "+
		"ratios of the medians", user, of("mixed"), of("kernel"), maxThreads)
}

// regressionsMeet compares every two of the lines.
func regressionsMeet(f *results) (bool, string) {
	lines := map[string]bench.Line{}
	for _, c := range weinholdConfigs {
		lines[c.Name] = f.line("threads", c.Name, "thread_mean", "p50")
	}
	near, parts := false, []string{}
	for _, pair := range [][2]string{{"user", "mixed"}, {"user", "kernel"}, {"mixed", "kernel"}} {
		a, b := lines[pair[0]], lines[pair[1]]
		at := (b.Intercept - a.Intercept) / (a.Slope - b.Slope)
		near = near || at >= 200 && at <= 300
		if at > 0 && !math.IsInf(at, 0) {
			parts = append(parts, fmt.Sprintf("%s and %s at %.0f", pair[0], pair[1], at))
		} else {
			parts = append(parts, fmt.Sprintf("%s and %s nowhere", pair[0], pair[1]))
		}
	}
	return near, "lines meet: " + strings.Join(parts, ", ") + "; 200 to 300 counts as near"
}
