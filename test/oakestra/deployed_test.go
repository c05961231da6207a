// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// NodeEngine starts the program of a container when it has the response to its deployment: the first datagram then
// comes from the instance IP, and a datagram of a client on the same worker reaches an instance that has moved to it.
func TestFirstDatagramAfterADeployment(t *testing.T) {
	m := newCluster(t, 2)
	here, away := m.workers[0], m.workers[1]
	m.add("app.ns.server.test", away)
	m.add("app.ns.client.test", here)
	address := m.cluster.Addresses("app.ns.server.test")[0]
	for i := range 10 {
		name := fmt.Sprintf("app.ns.new%d.test", i)
		m.add(name, here)
		got, err := exchange(m.dial(m.running[name][0].container, "udp", address), uniqueText(), lostAfter)
		if own := m.cluster.InstanceAddresses(name, 0)[0]; err != nil || got.client != own {
			t.Errorf("datagram of a new instance: %v %v, want it from %s", got, err, own)
		}
	}
	conn := m.dial(m.running["app.ns.client.test"][0].container, "udp", address)
	for range 5 {
		m.moveTo("app.ns.server.test", away)
		m.inUse("app.ns.server.test", here)
		if _, err := exchange(conn, uniqueText(), lostAfter); err != nil {
			t.Fatal(err)
		}
		m.moveTo("app.ns.server.test", here)
		got, err := exchange(conn, uniqueText(), lostAfter)
		if server := m.running["app.ns.server.test"][0].container.identity; err != nil || got.identity != server {
			t.Errorf("datagram to an instance that has moved here: %v %v, want it of %s", got, err, server)
		}
	}
}

// A worker learns only from the notice of the cluster that an instance has moved between two other workers: earlier
// packets go to the former worker, and are lost. They cannot be held, as nothing distinguishes them from earlier ones,
// and the former worker cannot forward them: others accept a client's packets only from its worker.
func TestMoveIsKnownByTheNotice(t *testing.T) {
	m := newCluster(t, 3)
	m.add("app.ns.server.test", m.workers[1])
	m.add("app.ns.client.test", m.workers[0])
	address := m.cluster.Addresses("app.ns.server.test")[0]
	conn := m.dial(m.running["app.ns.client.test"][0].container, "udp", address)
	if _, err := exchange(conn, uniqueText(), lostAfter); err != nil {
		t.Fatal(err)
	}
	told := m.cluster.Quiet()
	m.moveTo("app.ns.server.test", m.workers[2])
	if got, err := exchange(conn, uniqueText(), time.Second); err == nil {
		t.Errorf("answered without a notice: %v", got)
	}
	told()
	m.inUse("app.ns.server.test", m.workers[0])
	if _, err := exchange(conn, uniqueText(), lostAfter); err != nil {
		t.Errorf("after the notice: %v", err)
	}
}

// inUse waits until all workers have the model's state of a service, and also the modules of one with a client of it.
func (m *model) inUse(name string, by *worker) {
	m.Helper()
	m.awaitSettled(name)
	var got v1.VirtualService
	wait.Until(m.T, by.name+"'s modules have "+name, func() bool {
		got = v1.VirtualService{}
		return by.Get("/v1/virtualservices/oakestra."+name, &got) == nil && got.Status != nil &&
			slices.Contains(got.Status.Modules, "oakestra-proxy") && slices.Contains(got.Status.Modules, "oakestra-tunnel")
	}, func() any { return got.Status })
}

// moveTo ends an instance, and starts it on another worker.
func (m *model) moveTo(name string, w *worker) {
	m.Helper()
	i := m.running[name][0]
	i.at.undeploy(i.service, i.number)
	i.at.end(i.container)
	m.removeInstance(i)
	m.place(name, 0, w)
}
