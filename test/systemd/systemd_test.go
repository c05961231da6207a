// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

func TestMain(m *testing.M) {
	if os.Getenv("KERB_TEST_SYSTEMD") == "" {
		os.Exit(m.Run())
	}
	os.Exit(nodetest.Main(m))
}

func needContainer(t *testing.T) {
	t.Helper()
	if os.Getenv("KERB_TEST_SYSTEMD") == "" {
		t.Skip("make test-systemd runs it: it boots systemd in a container")
	}
	if _, err := exec.LookPath("systemd-nspawn"); err != nil {
		t.Fatal("systemd-nspawn is missing: apt install systemd-container")
	}
}

// modules has a config for every built-in package.
var modules = map[string]string{
	"counter":  "{}",
	"firewall": "{rules: [{name: web, action: allow, direction: ingress, protocol: tcp, dstPort: 80}]}",
	"proxy":    "{}",
	"tunnel": "{nodes: [{address: 192.0.2.1, subnets: [10.18.0.0/26]}, {address: 192.0.2.2, subnets: " +
		"[10.18.0.64/26]}]}",
	"responder":   "{listeners: [{app: echo, port: 7777}]}",
	"intercept":   "{classes: [{name: ping, match: {protocol: icmp}}]}",
	"classifier":  "{extractor: flow}",
	"accelerator": "{}",
	"flows":       "{}",
	"nat":         "{to_ip: 192.0.2.9}",
}

// Runs without the container, so that a new package without a config is found before make test-systemd.
func TestPackagesHaveConfigs(t *testing.T) {
	for _, name := range builtins(t) {
		if _, known := modules[name]; !known {
			t.Errorf("no config for package %s", name)
		}
	}
}

func manifest(pkg, config string) string {
	attach := `services: "*"`
	if pkg == "tunnel" {
		attach += ", interfaces: [underlay0]" // unhealthy without an underlay
	}
	return fmt.Sprintf("apiVersion: kerb.dev/v1alpha1\nkind: Module\nmetadata: {name: %s}\nspec:\n  package: %s\n  "+
		"attach: {%s}\n  config: %s\n", pkg, pkg, attach, config)
}

// The shipped unit starts under this distribution's systemd, confines control planes, and runs every built-in module.
func TestBuiltinModulesUnderShippedUnit(t *testing.T) {
	needContainer(t)
	m := boot(t, nodetest.Kerb, nil)
	m.service()
	m.do("systemctl", "start", "kerb")
	if c := condition(m.status().Conditions, "ControlPlanes"); c.Status != "True" || c.Message != "" {
		t.Errorf("before any module: %+v", c)
	}
	m.do("kerb", "service", "add", "web", "--netns", "/run/netns/web", "--label", "app=web")
	for _, dir := range builtins(t) {
		m.do("kerb", "apply", "-f", m.file(dir+".yaml", manifest(dir, modules[dir])))
	}
	for _, name := range builtins(t) {
		m.awaitReady(name)
	}
	if c := condition(m.status().Conditions, "ControlPlanes"); c.Status != "True" {
		t.Errorf("with all modules: %+v", c)
	}
	m.expectDoctor("unit system calls", "ok")
	m.do("systemctl", "restart", "kerb")
	m.await("the control planes are back", func() (bool, string) {
		c := condition(m.status().Conditions, "ControlPlanes")
		return c.Status == "True", c.Message
	})
}

// A unit that denies what the sandbox needs is reported before a module fails: in the node's conditions and by the
// doctor.
func TestUnitWithoutSeccomp(t *testing.T) {
	needContainer(t)
	m := boot(t, nodetest.Kerb, map[string]string{"kerb.service.d/old.conf": "[Service]\nSystemCallFilter=\n" +
		"SystemCallFilter=@system-service bpf perf_event_open setns unshare\n"})
	m.do("systemctl", "start", "kerb")
	if c := condition(m.status().Conditions, "ControlPlanes"); c.Status != "False" ||
		!strings.Contains(c.Message, "restrict system calls") {
		t.Errorf("%+v", c)
	}
	m.expectDoctor("unit system calls", "fail")
}

// awaitReady waits for a module and its control plane.
func (m *machine) awaitReady(name string) {
	m.Helper()
	m.await("module "+name+" and its control plane are ready", func() (bool, string) {
		out := m.do("kerb", "module", "get", name, "-o", "json")
		var got v1.Module
		must(m.T, json.Unmarshal([]byte(out), &got))
		return condition(got.Status.Conditions, "Ready").Status == "True" &&
			condition(got.Status.Conditions, "ControlPlane").Status != "False", out
	})
}

// service creates a network namespace with an interface to the container's node, and an underlay for the node.
func (m *machine) service() {
	m.Helper()
	for _, line := range []string{"ip netns add web", "ip link add web0 type veth peer name eth0 netns web",
		"ip addr add 10.99.0.1/24 dev web0",
		"ip link set web0 up", "ip -n web addr add 10.99.0.2/24 dev eth0", "ip -n web link set eth0 up",
		"ip link add underlay0 type veth peer name underlay1", "ip addr add 192.0.2.1/24 dev underlay0",
		"ip link set underlay0 up", "ip link set underlay1 up"} {
		m.do(strings.Fields(line)...)
	}
}

func (m *machine) status() (st v1.NodeStatus) {
	m.Helper()
	must(m.T, json.Unmarshal([]byte(m.do("kerb", "status", "-o", "json")), &st))
	return st
}

func (m *machine) expectDoctor(check, want string) {
	m.Helper()
	out, _ := m.try("kerb", "doctor", "-o", "json") // warnings have an exit code, too
	var checks []struct{ Name, Status, Found string }
	must(m.T, json.NewDecoder(strings.NewReader(out)).Decode(&checks)) // a summary follows on standard error
	for _, c := range checks {
		if c.Name == check {
			if c.Status != want {
				m.Errorf("kerb doctor: %+v, want %s", c, want)
			}
			return
		}
	}
	m.Errorf("kerb doctor has no check %q", check)
}

func condition(list []v1.Condition, kind string) v1.Condition {
	for _, c := range list {
		if c.Type == kind {
			return c
		}
	}
	return v1.Condition{}
}

// builtins returns the directories of packages.
func builtins(t *testing.T) (names []string) {
	t.Helper()
	manifests, err := filepath.Glob("../../modules/*/kerb.yaml")
	must(t, err)
	for _, path := range manifests {
		names = append(names, filepath.Base(filepath.Dir(path)))
	}
	if len(names) == 0 {
		t.Fatal("no packages")
	}
	return names
}
