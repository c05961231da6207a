// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// kubectl runs kubectl-kerb, and returns its output and exit code.
func (b *bed) kubectl(args ...string) (string, int) {
	b.T.Helper()
	cmd := b.Lab.Node().Command(context.Background(), kubectlKerb, args...)
	cmd.Env = []string{"KUBECONFIG=" + b.kubeconfig}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		b.T.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// kubectl kerb rollout: a node does not start a version while the rollout is paused, keeps one that it has started, and
// reverts it after undo. status shows what nodes run, and the reasons.
func TestKubectl(t *testing.T) {
	b := newBed(t)
	const name = "guard"
	config := func(policy string) string {
		return "package: {name: firewall}, config: {defaultPolicy: {ingress: " + policy + "}}"
	}
	rollout := func(version, more string) {
		b.module(name, "{"+version+", attach: {pods: {}}, rollout: {percent: 0, nodes: [n1], "+more+
			"previous: {"+config("allow")+"}}}")
	}
	runs := func(policy string) bool {
		var m v1.Module
		err := b.Get("/v1/modules/"+name, &m)
		of, _ := m.Spec.Config["defaultPolicy"].(map[string]any)
		return err == nil && of["ingress"] == policy
	}
	await := func(what, policy string) {
		t.Helper()
		b.Eventually(what, func() bool { return runs(policy) })
	}
	// stays checks what the node runs after it has applied a later change.
	later := 0
	stays := func(what, policy string) {
		t.Helper()
		later++
		other := fmt.Sprint("later", later)
		b.module(other, counter("app: db"))
		b.Eventually(other+" is applied", func() bool { return b.Get("/v1/modules/"+other, &v1.Module{}) == nil })
		if !runs(policy) {
			t.Errorf("%s: the node does not run the version with %s", what, policy)
		}
	}
	do := func(verb string) {
		t.Helper()
		if out, code := b.kubectl("rollout", verb, name); code != 0 || out != "clustermodule guard: "+verb+"\n" {
			t.Fatalf("%s: %d %s", verb, code, out)
		}
	}
	status := func(want string, code int) {
		t.Helper()
		b.Eventually("status says "+want, func() bool {
			out, got := b.kubectl("rollout", "status")
			return got == code && strings.Contains(out, want)
		})
	}

	b.module(name, "{"+config("allow")+", attach: {pods: {}}}")
	await("the first version runs", "allow")
	if out, code := b.kubectl("rollout", "undo", name); code != 1 || !strings.Contains(out, "has no earlier revision") {
		t.Errorf("undo without a rollout: %d %s", code, out)
	}
	out, code := b.kubectl("rollout", "status", "absent")
	if code != 1 || !strings.Contains(out, "no ClusterModule absent") {
		t.Errorf("status of a missing module: %d %s", code, out)
	}

	rollout(config("deny"), "paused: true, ")
	stays("the rollout is paused before it begins", "allow")
	status("guard: 0 % of the nodes and 1 by name, paused\n  new version: 1 of 1 nodes, 0 run it, 0 went back, "+
		"0 with another problem, 1 have not said yet", 0)
	do("resume")
	await("the node begins", "deny")
	status("by name\n  new version: 1 of 1 nodes, 1 run it, 0 went back", 0)
	do("pause")
	stays("paused after it began", "deny")
	b.stop(syscall.SIGTERM)
	b.start()
	stays("after a start", "deny")
	status(", paused\n  new version: 1 of 1 nodes, 1 run it", 0)
	do("undo")
	await("the rollout is undone", "allow")
	status("guard: 0 % of the nodes, paused\n  new version: 0 of 1 nodes, 0 run it, 0 went back, 0 with another problem, "+
		"0 have not said yet\n", 0)

	rollout("package: {name: nothing}", "")
	do("resume") // an apply by the author of a module does not resume what another user has paused
	status("0 went back, 1 with another problem, 0 have not said yet\n  n1 Refused: ", 3)
}
