// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"net/http"
	"path/filepath"
	"slices"
	"strings"

	modules "github.com/kerb-edge/kerb/modules/accelerator"
)

// pairReport returns the module's counts, summed over all pairs of services.
func (n *node) pairReport() (sum modules.PairReport) {
	n.T.Helper()
	var pairs []modules.PairReport
	n.Must(http.MethodGet, "/v1/modules/fast/pairs", nil, &pairs)
	sum.Refused = map[string]uint64{}
	for _, p := range pairs {
		sum.Offered += p.Offered
		sum.Paired += p.Paired
		sum.Accelerated += p.Accelerated
		sum.Left += p.Left
		sum.Messages += p.Messages
		sum.Bytes += p.Bytes
		for reason, connections := range p.Refused {
			sum.Refused[reason] += connections
		}
	}
	return sum
}

// spliceFails reports whether splice(2) fails on accelerated sockets.
func (n *node) spliceFails() bool {
	n.T.Helper()
	var kernel modules.KernelReport
	n.Must(http.MethodGet, "/v1/modules/fast/kernel", nil, &kernel)
	return kernel.Guard
}

// executables returns the module's verdicts on programs, by name.
func (n *node) executables() map[string]modules.ExecutableReport {
	n.T.Helper()
	var all []modules.ExecutableReport
	n.Must(http.MethodGet, "/v1/modules/fast/executables", nil, &all)
	found := map[string]modules.ExecutableReport{}
	for _, x := range all {
		found[filepath.Base(x.Path)] = x
	}
	return found
}

// awaitVerdicts repeats run until the module knows the programs in it: the first connection of each is plain.
func (n *node) awaitVerdicts(run func(), programs ...string) {
	n.T.Helper()
	run()
	if plain {
		return
	}
	n.Eventually("the module has judged "+strings.Join(programs, " and "), func() bool {
		run()
		found := n.executables()
		return !slices.ContainsFunc(programs, func(name string) bool { return found[name].Path == "" })
	})
}

// checkVerdicts checks the module's verdict on each program that ran: their connections were accelerated, or they are
// excluded, with the reason.
func (n *node) checkVerdicts(programs ...string) {
	n.T.Helper()
	if plain {
		return
	}
	safe, found := 0, n.executables()
	n.Eventually("the module has judged "+strings.Join(programs, " and "), func() bool {
		found = n.executables()
		return !slices.ContainsFunc(programs, func(name string) bool { return found[name].Path == "" })
	})
	for _, name := range programs {
		x := found[name]
		switch {
		case x.Verdict == "safe":
			safe++
		case x.Why == "":
			n.T.Errorf("%s is %s, without a reason", name, x.Verdict)
		}
		n.T.Logf("%s: %s %s", name, x.Verdict, x.Why)
	}
	n.T.Logf("%+v", n.pairReport())
	if safe == len(programs) {
		n.Eventually("programs that are safe are accelerated", func() bool { return n.pairReport().Bytes > 0 })
	}
}
