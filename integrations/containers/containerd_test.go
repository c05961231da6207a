// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/gobuild"
	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// bridge is a network of ctr run --cni.
const bridge = `{"cniVersion": "0.4.0", "name": "test", "plugins": [{"type": "bridge", "bridge": "test0", "isGateway": true,
	"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.89.7.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`

// ctr run --cni connects the network of a container, which has no path, between its creation and its start: the hook
// runs after that, and before the first process.
func TestCNI(t *testing.T) {
	m := newMachine(t, "containerd", "--fail-closed", "--timeout", "60s")
	bin, conf := filepath.Join(m.dir, "cni/opt/cni/bin"), filepath.Join(m.dir, "cni/etc/cni/net.d")
	for _, dir := range []string{bin, conf, filepath.Join(m.dir, "cni/var/lib")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	err := os.WriteFile(filepath.Join(conf, "10-test.conflist"), []byte(bridge), 0o600)
	for _, plugin := range []string{"main/bridge", "ipam/host-local", "main/loopback"} {
		err = errors.Join(err, gobuild.Build(filepath.Join(bin, filepath.Base(plugin)),
			"github.com/containernetworking/plugins/plugins/"+plugin))
	}
	if err != nil {
		t.Fatal(err)
	}
	r := newReceiver(m)
	m.Start()
	m.Apply(node.Module("deny", "firewall", "app=denied", map[string]any{
		"defaultPolicy": map[string]any{"ingress": "deny", "egress": "deny"}}))
	for _, app := range []string{"open", "denied"} {
		r.counts()
		if out, err := m.start(app, []string{"/bin/flood"}, "--cni", "--label", "app="+app); err != nil {
			t.Fatal(err, out)
		}
		m.Eventually(app+" has sent its packets", func() bool { return m.sent(app) })
		if got := r.counts(); (got == nothing) != (app == "denied") {
			t.Errorf("of the container %s %s arrived", app, got)
		}
		if s := m.services()["containerd-"+app]; s.Spec.PID == 0 || s.Metadata.Labels[labelBy] != byHook {
			t.Errorf("the container is %+v", s)
		}
	}
}

// Containers of containerd are services with their labels, in all namespaces but those of other integrations, from
// their start to their end, also while containerd is down.
func TestContainerd(t *testing.T) {
	m := newMachine(t, "containerd")
	m.run("before", "--label", "app=web")
	m.Start()
	m.Apply(node.Module("fw", "firewall", "app=web", map[string]any{
		"defaultPolicy": map[string]any{"ingress": "deny", "egress": "allow"}}))
	m.awaitServices("containerd-before")
	host := m.Host("shared")
	shared := "network:" + host.Path()
	m.run("shop", "--label", "app=shop", "--label", "note=not a label", "--with-ns", shared)
	m.run("with-shop", "--with-ns", shared)
	m.run("of-the-node", "--net-host")
	for _, namespace := range []string{"other", "k8s.io", "moby"} {
		run := append(append([]string{"--namespace", namespace}, m.ctr(namespace)...), "--with-ns",
			"network:"+m.Host(strings.TrimSuffix(namespace, ".io")).Path(), "--rootfs", filepath.Join(m.dir, "rootfs"))
		m.do(append(run, "shop", "/bin/busybox", "sleep", "1000")...)
	}
	got := m.awaitServices("containerd-before", "containerd-shop", "containerd-other-shop")
	labels := got["containerd-shop"].Metadata.Labels
	if labels["app"] != "shop" || labels[labelSpace] != "default" || labels[labelName] != "shop" ||
		labels[labelBy] != byEvents || len(labels) != 5 {
		t.Errorf("labels of the container: %v", labels)
	}
	if len(got["containerd-shop"].Status.Addresses) == 0 {
		t.Error("the service has no addresses")
	}
	reaches := func(address string) bool {
		return m.Lab.Node().Command(context.Background(), "busybox", "ping", "-c", "1", "-W", "1", address).Run() == nil
	}
	if !reaches(host.Addr4().String()) {
		t.Error("the container without a module does not answer")
	}
	m.do("containers", "label", "shop", "app=web")
	m.Eventually("a new label is on the service", func() bool {
		return m.services()["containerd-shop"].Metadata.Labels["app"] == "web"
	})
	wait.Until(t, "the firewall denies", func() bool { return !reaches(host.Addr4().String()) })

	m.stopRuntime()
	m.Eventually("the agent says that containerd is away", func() bool { return m.integration().Reason == "NotConnected" })
	if now := m.services(); len(now) != len(got) {
		t.Errorf("while containerd is away the services are %v", now)
	}
	m.serve()
	m.remove("default", "shop")
	m.Eventually("the other container of the network is the service", func() bool {
		return m.services()["containerd-shop"].Metadata.Labels[labelName] == "with-shop"
	})
	m.removeAll()
	m.Eventually("no container is a service", func() bool { return len(m.services()) == 0 })
}
