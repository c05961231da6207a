// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net"
	"regexp"
	"strings"
	"testing"
)

// kerb status lists modules that violate their package's declared verdicts, with the exit status that scripts check.
func TestProblemsOfModules(t *testing.T) {
	n := newRunningNode(t)
	n.must("status", "--exit-code")
	odd := module("odd", testPackage(t, "verdict"), "app=web", map[string]any{"verdict": 9})
	n.apply(module("slow", testPackage(t, "spin"), "app=db", nil), odd)
	n.settled(map[string]int{"slow": 2, "odd": 2})
	if err := n.db.Do(func() error { // egress of db, ingress of web
		c, err := net.Dial("udp4", net.JoinHostPort(n.web.Addr4().String(), "9"))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("x"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var r result
	n.Eventually("both modules are problems", func() bool { // a module is measured after it has gone live
		r = n.kerb("status", "--exit-code")
		return strings.Contains(r.stdout, "module/odd") && strings.Contains(r.stdout, "module/slow")
	})
	_, problems, _ := strings.Cut(r.stdout, "\nProblems:\n")
	for _, want := range []string{
		`module/slow +WithinBudget \(LatencyExceeded\) +a packet .* the budget of its package is 200ns`,
		`module/odd +ValidVerdicts \(InvalidVerdict\) +it returned no valid verdict for [1-9][0-9]* packets`,
	} {
		if !regexp.MustCompile(want).MatchString(problems) {
			t.Errorf("no %q in\n%s", want, r.stdout)
		}
	}
	if r.code != 1 || !strings.Contains(r.stderr, "2 problems") {
		t.Errorf("exit status %d: %s", r.code, r.stderr)
	}
	if r := n.kerb("status"); r.code != 0 {
		t.Errorf("without --exit-code: exit status %d: %s", r.code, r.stderr)
	}
}
