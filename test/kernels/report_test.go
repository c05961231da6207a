// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"
)

var (
	good    = packageRun{pkg: "good", pass: 3, skip: 1, started: time.Unix(1, 0)}
	bad     = packageRun{pkg: "bad", status: 1, pass: 1, fail: 1, failed: []string{"TestBad"}, started: time.Unix(1, 0)}
	crashed = packageRun{pkg: "crashed", status: 2, pass: 1, started: time.Unix(1, 0)}
	slow    = packageRun{pkg: "slow", status: 2, pass: 1, fail: 1, failed: []string{"TestBad"}, open: []string{"TestSlow"},
		started: time.Unix(1, 0)}
	cut = packageRun{pkg: "cut", status: noStatus, pass: 1, started: time.Unix(1, 0)}
)

func result(err error, packages ...packageRun) kernelResult {
	return kernelResult{spec: "6.1", err: err, log: &transcript{packages: packages}, boots: 1}
}

func TestReport(t *testing.T) {
	for _, c := range []struct {
		name    string
		results []kernelResult
		last    string
		ok      bool
	}{
		{"all passed", []kernelResult{result(nil, good), result(nil, good)}, "6 passed, 0 failed", true},
		{"a test failed", []kernelResult{result(nil, good, bad)}, "4 passed, 1 failed", false},
		{"a binary crashed", []kernelResult{result(nil, crashed)}, "1 passed, 1 failed", false},
		{"a test was cut short", []kernelResult{result(nil, slow)}, "1 passed, 2 failed", false},
		{"the machine hung in a package", []kernelResult{result(errHung, good, cut)}, "4 passed, 1 failed", false},
		{"the machine hung after the tests", []kernelResult{result(errHung, good)}, "3 passed, 1 failed", false},
		{"no kernel", []kernelResult{{spec: "4.4", err: errNoKernel}}, "0 passed, 1 failed", false},
		{"nothing", nil, "0 passed, 0 failed", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			ok := report(&out, c.results)
			if ok != c.ok || !strings.HasSuffix(out.String(), "\n"+c.last+"\n") {
				t.Fatalf("report is %v, want %v with the last line %q:\n%s", ok, c.ok, c.last, out.String())
			}
		})
	}
}

func TestReportNamesFailures(t *testing.T) {
	r := result(nil, bad, crashed, slow)
	r.consoles = "/logs/6.1"
	var out strings.Builder
	report(&out, []kernelResult{r})
	for _, want := range []string{"bad TestBad", "crashed: FAIL (exit 2)", "slow TestSlow (did not end)", "/logs/6.1"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, out.String())
		}
	}
}

// TestExpect: packages that did not start count as failed, and so does a machine in which no test ran.
func TestExpect(t *testing.T) {
	r := result(errHung, good)
	r.expect([]testBinary{{pkg: "good"}, {pkg: "late"}})
	if pass, fail, _ := r.counts(); pass != 3 || fail != 1 {
		t.Errorf("%d passed, %d failed, want 3 and 1", pass, fail)
	}
	empty := result(nil, packageRun{pkg: "empty", skip: 2, started: time.Unix(1, 0)})
	empty.expect([]testBinary{{pkg: "empty"}})
	if empty.ok() {
		t.Error("a kernel on which every test was skipped passed")
	}
}
