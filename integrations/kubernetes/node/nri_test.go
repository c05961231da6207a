// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/internal/lab/nritest"
)

// runtimeCondition returns the condition about the source of labels of new pods.
func (b *bed) runtimeCondition() (out api.Condition) {
	b.T.Helper()
	for _, c := range b.status().Status.Conditions {
		if c.Type == "RuntimeLabels" {
			out = c
		}
	}
	return out
}

// With NRI a pod has its modules before the container runtime continues, although no event of the pod has arrived and
// the API server does not respond. The sandbox of a pod that cannot have them fails; so do sandboxes of pods that are
// newer than the last known state.
func TestRuntime(t *testing.T) {
	b := newBed(t)
	b.stop(syscall.SIGTERM)
	socket := filepath.Join(t.TempDir(), "nri.sock")
	b.flags = []string{"--nri", socket}
	b.start()
	b.module(count, counter("app: web"))
	b.module("refused", `{package: {name: counter}, config: {no: such},
    attach: {pods: {podSelector: {matchLabels: {app: db}}}}}`)
	b.Eventually("the node reports that there is no runtime", func() bool {
		return b.runtimeCondition().Reason == "NotConnected"
	})
	r := nritest.Start(t, socket)
	b.Eventually("the node reports the runtime", func() bool {
		c := b.runtimeCondition()
		return c.Status == "True" && strings.Contains(c.Message, "nritest v1")
	})
	b.Eventually("the module is there", func() bool { return strings.Contains(b.agentModules(), count) })
	b.pod("known", map[string]string{"app": "web"}).await(count)

	b.api.Hang()
	add := func(name string) *pod {
		t.Helper()
		p := &pod{names.Pod{Namespace: "default", Name: name, UID: "uid-" + name}, b.Host(name), b, ""}
		p.add()
		return p
	}
	run := func(p *pod, app string) error {
		return r.Run(nritest.Pod(p.Name, p.Namespace, p.Name, p.UID, map[string]string{"app": app}))
	}
	web, db := add("web"), add("db")
	if got := web.modules(); got != pending {
		t.Errorf("modules %q before the runtime reports it", got)
	}
	if err := run(web, "web"); err != nil || web.modules() != count {
		t.Errorf("%v, modules %q", err, web.modules())
	}
	err := run(db, "db")
	if err == nil || !strings.Contains(err.Error(), "module refused, which selects it") || db.modules() != pending {
		t.Errorf("%v, modules %q", err, db.modules())
	}

	b.stop(syscall.SIGKILL)
	b.start()
	web.await(count)
	newer := add("newer")
	b.Eventually("kerb-kube-node is connected again", func() bool {
		err := run(newer, "web")
		return err != nil && strings.Contains(err.Error(), "has not reached the API server since its start")
	})
	b.api.Resume()
	b.Eventually("the API server is back", func() bool { return run(newer, "web") == nil })
	for _, p := range []*pod{web, newer} {
		if got := p.modules(); got != count {
			t.Errorf("%s has modules %q", p.Name, got)
		}
	}
}

// Until the agent has its modules after a start, as in an upgrade, the container runtime is not connected: pods start
// as without NRI, and do not fail. After the connection, they have their modules.
func TestRuntimeConnects(t *testing.T) {
	b := newBed(t)
	b.module(count, counter("app: web"))
	b.Eventually("the module is there", func() bool { return strings.Contains(b.agentModules(), count) })
	p := b.pod("web", map[string]string{"app": "web"})
	p.await(count)
	b.stop(syscall.SIGTERM)
	b.Kill()
	socket := filepath.Join(t.TempDir(), "nri.sock")
	b.flags = []string{"--nri", socket}
	r := nritest.Start(t, socket)
	missed := func() int {
		text, _ := os.ReadFile(b.log.Name())
		return strings.Count(string(text), "the agent is not in sync with the API server yet")
	}
	before := missed()
	b.start()
	b.Eventually("kerb-kube-node misses the agent", func() bool { return missed() > before+2 })
	sandbox := nritest.Pod(p.Name, p.Namespace, p.Name, p.UID, map[string]string{"app": "web"})
	if err := r.Run(sandbox); err != nil {
		t.Errorf("without the agent: %v", err)
	}
	b.Start()
	b.Eventually("the runtime is connected", func() bool { return b.runtimeCondition().Status == "True" })
	if err := r.Run(sandbox); err != nil || p.modules() != count {
		t.Errorf("%v, modules %q", err, p.modules())
	}
}
