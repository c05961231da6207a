// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/node"
	"github.com/kerb-edge/kerb/internal/control/sandbox"
	"github.com/kerb-edge/kerb/internal/lab/kubeapi"
)

// wrongClock is the environment variable with a nodeWithClock, for its process.
const wrongClock = "KERB_WRONG_CLOCK"

// nodeWithClock configures a kerb-kube-node with a wrong clock.
type nodeWithClock struct {
	Kubeconfig, Agent, State string
	Wrong                    time.Duration
}

// TestNodeWithClock is the process of a node with a wrong clock.
func TestNodeWithClock(t *testing.T) {
	text := os.Getenv(wrongClock)
	if text == "" {
		t.Skip("a part of TestWrongClock")
	}
	var n nodeWithClock
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		t.Fatal(err)
	}
	o := node.Options{Node: "n1", Kubeconfig: n.Kubeconfig, Agent: n.Agent, State: n.State,
		Clock: func() time.Time { return time.Now().Add(n.Wrong) }}
	if err := node.Run(t.Context(), o, slog.New(slog.NewTextHandler(os.Stderr, nil))); err != nil {
		t.Error(err) // otherwise it runs until it is killed
	}
}

// startWithClock runs the code of kerb-kube-node with a wrong clock.
func (b *bed) startWithClock(wrong time.Duration) {
	b.T.Helper()
	text, err := json.Marshal(nodeWithClock{b.kubeconfig, b.Socket(), filepath.Join(b.Dir, "kube"), wrong})
	if err != nil {
		b.T.Fatal(err)
	}
	b.kube = b.Lab.Node().Command(context.Background(), os.Args[0], "-test.run=^TestNodeWithClock$", "-test.timeout=0")
	b.kube.Env = append(os.Environ(), wrongClock+"="+string(text), kubeapi.Program+"=")
	b.kube.Stderr = b.log
	if err := sandbox.Start(b.kube); err != nil {
		b.T.Fatal(err)
	}
}

// A node whose clock is wrong by days takes part in a rollout like others: it checks the version, becomes a canary, and
// the waves do not wait longer for it. A version that it cannot run halts the rollout.
func TestWrongClock(t *testing.T) {
	for name, wrong := range map[string]time.Duration{"days behind": -240 * time.Hour, "days ahead": 240 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, "guard")
			f.stop(syscall.SIGTERM)
			f.api.Must(http.MethodDelete, nodesPath+"n1", nil, nil) // it has times of the right clock
			f.startWithClock(wrong)
			f.Eventually("the node reports", func() bool {
				all := f.status().Status.Conditions
				return len(all) > 0 && time.Since(all[0].Transition.Add(-wrong)).Abs() < time.Hour
			})
			f.module(f.name, "{package: {name: firewall}, config: {defaultPolicy: {ingress: allow}}, attach: {pods: {}}}")
			f.Eventually("the first version runs", func() bool { return strings.Contains(f.config(), "allow") })

			f.module(f.name, firewallRollout("deny", "nodes: [n1], waves: [50, 100], soakSeconds: 1"))
			f.Eventually("it has checked the version", func() bool { return len(f.status().Status.Checked) == 1 })
			f.checks()
			f.Eventually("it is a canary", func() bool { return strings.Contains(f.config(), "deny") })
			for _, percent := range []int{50, 100} {
				f.runs()
				f.percent(percent)
			}
			f.runs()
			f.condition("True", "Complete")

			f.module(f.name, "{package: {name: firewall}, config: {rules: [{services: wrong}]}, attach: {pods: {}}, rollout: "+
				"{soakSeconds: 1, previous: {package: {name: firewall}, config: {defaultPolicy: {ingress: deny}}}}}")
			f.checks()
			if text := f.condition("False", api.CheckFailed); !strings.Contains(text, "n1 ") {
				t.Errorf("the condition says %s", text)
			}
		})
	}
}
