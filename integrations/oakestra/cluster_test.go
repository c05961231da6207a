// SPDX-License-Identifier: Apache-2.0

package oakestra_test

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	mqtt "github.com/eclipse/paho.mqtt.golang"

	"github.com/kerb-edge/kerb/internal/lab/oaktest"
)

// TestWorkerOfACluster runs a node with nothing configured: the cluster assigns its subnet and learns the address of a
// service, and the condition reports it. A new id releases services and causes another subnet.
func TestWorkerOfACluster(t *testing.T) {
	n, c := newClusterNode(t, "")
	c.Create(appName)
	c.Schedule(appName, 0)
	n.must("POST", "/register", `{"client_id":"w1","cluster_address":"127.0.0.1"}`)
	four, six := n.container().deploy(appName, 0, "")
	if !within("10.18.0.0/26", four) || !within("fc00::/120", six) {
		t.Errorf("deployed as %s and %s", four, six)
	}
	n.Eventually("the cluster has the address", func() bool {
		return c.Where(appName, 0) == four+"@127.0.0.1:50103"
	})
	n.Eventually("the condition", func() bool {
		got := n.condition()
		return got.Status == "True" && strings.Contains(got.Message,
			"oakestra: subnet 10.18.0.0/26 and fc00::/120, cluster 127.0.0.1, node w1, last message 2")
	})
	n.must("POST", "/register", `{"client_id":"w2","cluster_address":"127.0.0.1"}`)
	four, six = n.container().deploy(appName, 0, "")
	if !within("10.18.0.64/26", four) || !within("fc00::100/120", six) {
		t.Errorf("deployed as %s and %s", four, six)
	}
}

// within reports whether an address is in a subnet. Which one is open: a deployment that took too long on a busy
// machine is undone and repeated, and a freed address is not assigned next.
func within(subnet, address string) bool {
	a, err := netip.ParseAddr(address)
	return err == nil && netip.MustParsePrefix(subnet).Contains(a)
}

// newClusterNode returns a node in a cluster, with more fields of the section oakestra.
func newClusterNode(t *testing.T, more string) (n *node, c *oaktest.Cluster) {
	t.Helper()
	n = newNode(t)
	n.Kill()
	var b *oaktest.Broker
	if err := n.Lab.Node().Do(func() error {
		b = oaktest.NewBroker(t)
		b.Start()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	c = oaktest.NewCluster(t, b, func(*url.URL, mqtt.ClientOptions) (conn net.Conn, err error) {
		err = n.Lab.Node().Do(func() (err error) {
			conn, err = net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", b.Port))
			return err
		})
		return conn, err
	})
	n.Configure(fmt.Sprintf("oakestra: {bridge: oakbr, netManager: /none, broker: {port: %d}%s}\n", b.Port, more))
	n.start()
	return n, c
}
