// SPDX-License-Identifier: Apache-2.0

package oakestra_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// process returns the PID of the integration's process, 0 if there is none.
func (n *node) process() int {
	n.T.Helper()
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", n.PID()))
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		for pid := range strings.FieldsSeq(string(text)) {
			if command, _ := os.ReadFile("/proc/" + pid + "/cmdline"); strings.HasPrefix(string(command),
				"kerb\x00integration-run\x00oakestra\x00") {
				number, _ := strconv.Atoi(pid)
				return number
			}
		}
	}
	return 0
}

// killProcess kills (SIGKILL) the integration.
func (n *node) killProcess() {
	if pid := n.process(); pid != 0 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		n.Eventually("the process ends", func() bool { return n.process() != pid })
	}
}

func (n *node) condition() (c v1.Condition) {
	n.T.Helper()
	var status v1.NodeStatus
	n.Must(http.MethodGet, "/v1/status", nil, &status)
	for _, c := range status.Conditions {
		if c.Type == "Integrations" {
			return c
		}
	}
	return c
}

// The process keeps the capabilities that it needs and no others, and the change log contains its name.
func TestProcess(t *testing.T) {
	n := newNode(t)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.process()))
	if err != nil {
		t.Fatal(err)
	}
	// CHOWN, NET_BIND_SERVICE, NET_ADMIN, SYS_CHROOT, SYS_PTRACE, SYS_ADMIN
	for _, want := range []string{"CapBnd:\t00000000002c1401\n", "CapEff:\t00000000002c1401\n", "NoNewPrivs:\t1\n"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("the process lacks %q:\n%s", want, status)
		}
	}
	n.Eventually("the condition is true", func() bool { return n.condition().Status == "True" })
	n.must("POST", "/ebpf", `{"name":"packetCounter","config":{}}`)
	by := fmt.Sprintf(`msg=change by="integration oakestra, uid 0 pid %d" action=create kind=Module name=oakestra-0`,
		n.process())
	if !strings.Contains(n.Log(), by) {
		t.Errorf("the log does not contain %s:\n%s", by, n.Log())
	}
	pid := n.process()
	n.Stop()
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
		t.Error("the process outlives an agent that was stopped")
	}
	n.start()
	pid = n.process()
	n.Kill()
	n.Eventually("the process dies with its agent", func() bool {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || regexp.MustCompile(`\) [ZX] `).Match(state)
	})
}

// TestKilledAtAnyStep kills (SIGKILL) the process, and the agent, at moments spread over a deployment: the deployment
// can be repeated, and an undeployment leaves nothing.
func TestKilledAtAnyStep(t *testing.T) {
	const moments = 8
	n := newNode(t)
	register(n)
	n.must("POST", "/ebpf", `{"name":"packetCounter","config":{}}`)
	c := n.container()
	start := time.Now()
	c.deploy(appName, 0, withPorts("8000:80/tcp"))
	whole := time.Since(start)
	n.undeploy(appName, 0)
	body := fmt.Sprintf(`{"pid":%d,"serviceName":%q,"instanceNumber":0,"portMappings":"8000:80/tcp"}`, c.pid(), appName)
	for i := range moments {
		for name, kill := range n.killers() {
			n.requestAndKill("/container/deploy", body, whole*time.Duration(i)/moments, kill)
			c.deploy(appName, 0, withPorts("8000:80/tcp"))
			services, links := list[v1.Service](n, "service"), n.links()
			if len(services) != 1 || len(links) != 2 || len(n.tables()) != 1 {
				t.Errorf("%s killed at %d of %d: %d services, links %v, tables %v",
					name, i, moments, len(services), links, n.tables())
			}
			n.undeploy(appName, 0)
			services, links = list[v1.Service](n, "service"), n.links()
			if len(services) != 0 || !cmp.Equal(links, []string{"oakbr"}) || len(n.tables()) != 0 {
				t.Errorf("%s killed at %d of %d: after an undeployment %v, %v, %v",
					name, i, moments, services, links, n.tables())
			}
		}
	}
	if got := n.must("GET", "/ebpf", ""); got != `[{"id":0,"name":"packetCounter","priority":1,"config":{}}]` {
		t.Errorf("modules: %s", got)
	}
}

func (n *node) answersAgain() bool {
	r, err := n.client.Get("http://node/ebpf")
	if err != nil {
		return false
	}
	r.Body.Close()
	return r.StatusCode == http.StatusOK
}
