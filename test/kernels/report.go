// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// kernelResult is the result of one kernel.
type kernelResult struct {
	spec, release string
	err           error       // the kernel could not be fetched, or the machine did not respond
	log           *transcript // of the last boot; nil if there was none
	boots         int
	seconds       float64
	consoles      string // directory of the logs
}

// expect adds packages that did not run, so that they count as failed.
func (r *kernelResult) expect(tests []testBinary) {
	started := map[string]bool{}
	ran := 0
	for _, p := range r.log.packages {
		started[p.pkg] = true
		ran += p.pass + p.fail
	}
	for _, t := range tests {
		if !started[t.pkg] {
			r.log.packages = append(r.log.packages, packageRun{pkg: t.pkg, status: noStatus})
		}
	}
	if r.err == nil && ran == 0 {
		r.err = errNothingRan
	}
}

func (r *kernelResult) packages() []packageRun {
	if r.log == nil {
		return nil
	}
	return r.log.packages
}

func (r *kernelResult) ok() bool {
	_, failed, _ := r.counts()
	return failed == 0
}

// counts sums over the packages. An interrupted test counts as failed; so does a binary that failed without such a
// test, and a kernel that failed before any package.
func (r *kernelResult) counts() (pass, fail, skip int) {
	for _, p := range r.packages() {
		pass, fail, skip = pass+p.pass, fail+p.fail+len(p.open), skip+p.skip
		if p.fail+len(p.open) == 0 && !p.ok() {
			fail++
		}
	}
	if fail == 0 && r.err != nil {
		fail++
	}
	return pass, fail, skip
}

func (r *kernelResult) verdict() string {
	switch {
	case r.err != nil:
		return "FAIL (" + r.err.Error() + ")"
	case !r.ok():
		return "FAIL"
	}
	return "ok"
}

func (p *packageRun) verdict() string {
	switch {
	case p.ok():
		return "ok"
	case p.status == noStatus && p.started.IsZero():
		return "not run"
	case p.status == noStatus:
		return "FAIL (no end)"
	}
	return fmt.Sprintf("FAIL (exit %d)", p.status)
}

// report prints the table, the failures and the sum, and returns whether everything passed.
func report(w io.Writer, results []kernelResult) bool {
	table(w, results)
	pass, fail, skip := 0, 0, 0
	for _, r := range results {
		failures(w, &r)
		p, f, s := r.counts()
		pass, fail, skip = pass+p, fail+f, skip+s
	}
	fmt.Fprintf(w, "\n%d kernels, %d skipped tests\n%d passed, %d failed\n", len(results), skip, pass, fail)
	return fail == 0 && len(results) > 0
}

func table(w io.Writer, results []kernelResult) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "KERNEL\tRELEASE\tPACKAGE\tRESULT\tPASS\tFAIL\tSKIP\tSECONDS")
	for _, r := range results {
		for _, p := range r.packages() {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%.1f\n", r.spec, r.release, p.pkg, p.verdict(), p.pass,
				p.fail+len(p.open), p.skip, p.seconds)
		}
		pass, fail, skip := r.counts()
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%.1f\n", r.spec, r.release, boots(r.boots), shortVerdict(&r), pass, fail,
			skip, r.seconds)
	}
	t.Flush()
}

func boots(n int) string {
	if n == 1 {
		return "(all, 1 boot)"
	}
	return fmt.Sprintf("(all, %d boots)", n)
}

func shortVerdict(r *kernelResult) string {
	if r.ok() {
		return "ok"
	}
	return "FAIL"
}

func failures(w io.Writer, r *kernelResult) {
	if r.ok() {
		return
	}
	fmt.Fprintf(w, "\n%s failed\n", r.spec)
	if r.err != nil {
		fmt.Fprintf(w, "  %v\n", r.err)
	}
	for _, p := range r.packages() {
		for _, test := range p.failed {
			fmt.Fprintf(w, "  %s %s\n", p.pkg, test)
		}
		for _, test := range p.open {
			fmt.Fprintf(w, "  %s %s (did not end)\n", p.pkg, test)
		}
		if p.fail+len(p.open) == 0 && !p.ok() {
			fmt.Fprintf(w, "  %s: %s\n", p.pkg, p.verdict())
		}
	}
	if r.consoles != "" {
		fmt.Fprintf(w, "  logs of kernel and tests: %s\n", r.consoles)
	}
}
