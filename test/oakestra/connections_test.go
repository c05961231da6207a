// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
)

const firstPort = 20001 // of the clients next to NetManager, below the ephemeral ones

// TestConnections opens 10,000 connections, of which 2,500 are open at a time.
func TestConnections(t *testing.T) { testConnections(t, 0) }

// TestConnectionsWithNetManager is the same with a worker that has the double of NetManager. Each connection has a
// different source port: NetManager mixes up those of two clients with the same one.
func TestConnectionsWithNetManager(t *testing.T) { testConnections(t, 1) }

func testConnections(t *testing.T, stock int) {
	if os.Getenv("KERB_OAKESTRA_STEPS") == "" {
		t.Skip("needs minutes: make test-oakestra")
	}
	m := newModel(t, stock)
	m.connectAll(4, 2500)
}

// connectAll connects all services to all others, by all of their addresses, from the first contact on. No connection
// is lost, none reaches a wrong service or instance, and each server receives the instance IP of its client.
func (m *model) connectAll(rounds, connections int) {
	m.Helper()
	all, between := m.all(), map[string]int{}
	stock := slices.ContainsFunc(m.workers, func(w *worker) bool { return w.Node == nil })
	for round := range rounds {
		open := make([]*connection, connections)
		var group errgroup.Group
		group.SetLimit(16)
		for i := range open {
			c := m.connection(all, round*connections+i)
			open[i] = c
			between[fmt.Sprintf("%s to %s", c.from.at.name, c.to.at.name)]++
			if stock {
				c.port = firstPort + round*connections + i
			}
			group.Go(c.open)
		}
		err := group.Wait()
		for _, c := range open {
			if err == nil {
				err = c.check() // all are open
			}
			if c.conn != nil {
				_ = c.conn.Close()
			}
		}
		if err != nil {
			m.Fatalf("round %d: %v", round, err)
		}
	}
	if len(between) != len(m.workers)*len(m.workers) {
		m.Errorf("between workers: %v", between)
	}
	m.Logf("%d connections, none lost or misdelivered: %v", rounds*connections, between)
}

// connection is a connection of a client to an address of a service with one instance.
type connection struct {
	from, to    *instance
	address     string
	own         string // source address that the server sees
	port        int    // of the client, or 0
	conn        net.Conn
	description string
}

// connection returns the nth connection: round-robin over all pairs of services, and for each of them over the four
// addresses.
func (m *model) connection(all []*instance, n int) *connection {
	pair := n % (len(all) * (len(all) - 1))
	from := all[pair%len(all)]
	others := slices.DeleteFunc(slices.Clone(all), func(i *instance) bool { return i == from })
	to := others[pair/len(all)]
	way := (n + n/len(all)/len(others)) % 4
	addresses := m.cluster.Addresses(to.service)
	if way >= 2 {
		addresses = m.cluster.InstanceAddresses(to.service, to.number)
	}
	c := &connection{from: from, to: to, address: addresses[way%2],
		own: m.cluster.InstanceAddresses(from.service, from.number)[way%2]}
	c.description = fmt.Sprintf("connection %d, %s on %s to %s on %s by %s", n, from.container.identity, from.at.name,
		to.container.identity, to.at.name, c.address)
	return c
}

func (c *connection) open() (err error) {
	d := net.Dialer{Timeout: 3 * lostAfter}
	if c.port > 0 {
		d.LocalAddr = &net.TCPAddr{Port: c.port}
	}
	to := netip.AddrPortFrom(netip.MustParseAddr(c.address), port).String()
	if inside := c.from.container.do(func() error {
		c.conn, err = d.Dial("tcp", to)
		return nil
	}); inside != nil {
		return inside
	}
	if err != nil {
		c.conn = nil
		return fmt.Errorf("%s: %w", c.description, err)
	}
	return c.check()
}

func (c *connection) check() error {
	got, err := exchange(c.conn, uniqueText(), 3*lostAfter)
	if err != nil {
		return fmt.Errorf("%s: %w", c.description, err)
	}
	if want := (answer{c.to.container.identity, c.own}); got != want {
		return fmt.Errorf("%s: answered by %s to %s", c.description, got.identity, strings.TrimSpace(got.client))
	}
	return nil
}
