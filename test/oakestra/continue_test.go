// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"net"
	"testing"
)

// Connections continue when an instance of their service that they do not use leaves the worker of the client: until
// then this worker knew the service without a lookup.
func TestConnectionsOutliveInstancesHere(t *testing.T) {
	m := newCluster(t, 2)
	here, away := m.workers[0], m.workers[1]
	m.add("app.ns.a.test", here)
	m.add("app.ns.b.test", here, away)
	m.add("app.ns.c.test", away)
	client := m.running["app.ns.a.test"][0].container
	tcp := m.connect(client, m.cluster.InstanceAddresses("app.ns.b.test", 1)[0])
	own := m.running["app.ns.b.test"][0]
	m.cluster.Undeploy(own.service, own.number)
	here.undeploy(own.service, own.number)
	here.end(own.container)
	m.removeInstance(own)
	m.connect(client, m.cluster.Addresses("app.ns.c.test")[0]) // its reply follows the earlier messages to the agent
	if _, err := exchange(tcp, uniqueText(), lostAfter); err != nil {
		t.Errorf("after the removal of an instance that the connection does not use: %v", err)
	}
}

// Connections and datagrams continue when the agent is killed right after their service was looked up, even if the
// cluster does not respond: the next agent knows the service.
func TestConnectionsOutliveTheAgent(t *testing.T) {
	m := newCluster(t, 2)
	here, away := m.workers[0], m.workers[1]
	m.add("app.ns.a.test", here)
	m.add("app.ns.b.test", away)
	m.add("app.ns.c.test", away)
	client, address := m.running["app.ns.a.test"][0].container, m.cluster.Addresses("app.ns.b.test")[0]
	m.connect(client, m.cluster.Addresses("app.ns.c.test")[0]) // the other worker now knows the client
	tcp := m.connect(client, address)
	m.inCluster(m.broker.Stop)
	here.killAgent()
	for network, conn := range map[string]net.Conn{"tcp": tcp, "udp": m.dial(client, "udp", address)} {
		if _, err := exchange(conn, uniqueText(), lostAfter); err != nil {
			t.Errorf("%s after the agent was killed: %v", network, err)
		}
	}
	m.inCluster(m.broker.Start)
}

// newCluster returns a cluster without services.
func newCluster(t *testing.T, workers int) *model {
	t.Helper()
	return &model{bed: newBed(t, workers, 0), running: map[string]map[int]*instance{}}
}

// add creates a service with an instance on each of some workers.
func (m *model) add(name string, at ...*worker) {
	m.Helper()
	m.running[name] = map[int]*instance{}
	m.cluster.Create(name)
	for n, w := range at {
		m.place(name, n, w)
	}
}

func (m *model) dial(c *container, network, address string) net.Conn {
	m.Helper()
	conn, err := c.dial(network, address)
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() { _ = conn.Close() })
	return conn
}

// connect returns a connection on which a reply has arrived.
func (m *model) connect(c *container, address string) net.Conn {
	m.Helper()
	if _, err := c.reach("tcp", address, "reach"); err != nil {
		m.Fatal(err)
	}
	conn := m.dial(c, "tcp", address)
	if _, err := exchange(conn, uniqueText(), lostAfter); err != nil {
		m.Fatal(err)
	}
	return conn
}
