// SPDX-License-Identifier: Apache-2.0

package oakestra_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/cgrouptest"
	kerbnode "github.com/kerb-edge/kerb/internal/lab/node"
)

// netManager simulates NetManager's data plane: its bridge, a veth for each container, and a TUN device, created in the
// order and with the names of release v0.4.411.
type netManager struct {
	n    *node
	next int
}

func (n *node) netManager() *netManager {
	n.T.Helper()
	m := &netManager{n: n}
	err := n.Lab.Node().Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "goProxyBridge"
		bridge := &netlink.Bridge{LinkAttrs: attrs}
		at, err := netlink.ParseAddr("10.18.0.1/26")
		return errors.Join(err, netlink.LinkAdd(bridge), netlink.AddrAdd(bridge, at), netlink.LinkSetUp(bridge))
	})
	if err != nil {
		n.T.Fatal(err)
	}
	return m
}

// connect gives a container an address, and returns the port's name.
func (m *netManager) connect(c *container, address string) string {
	m.n.T.Helper()
	port, peer := fmt.Sprintf("veth00%dab12", m.next), fmt.Sprintf("veth01%dab12", m.next)
	m.next++
	err := m.n.Lab.Node().Do(func() error {
		bridge, err := netlink.LinkByName("goProxyBridge")
		if err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = port
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: peer}
		err = errors.Join(netlink.LinkAdd(veth), netlink.LinkSetMaster(veth, bridge), netlink.LinkSetUp(veth))
		if err != nil {
			return err
		}
		inner, err := netlink.LinkByName(peer)
		return errors.Join(err, netlink.LinkSetNsPid(inner, c.pid()))
	})
	if err == nil {
		err = c.do(func() error {
			link, err := netlink.LinkByName(peer)
			if err != nil {
				return err
			}
			at, err := netlink.ParseAddr(address)
			return errors.Join(err, netlink.AddrAdd(link, at), netlink.LinkSetUp(link))
		})
	}
	if err != nil {
		m.n.T.Fatal(err)
	}
	return port
}

// named puts a container into a cgroup as containerd does.
func (c *container) named(instance string) {
	c.n.T.Helper()
	parent := cgrouptest.New(c.n.T, "", fmt.Sprintf("kerb-oak-%d", packetNumber.Add(1)))
	group := filepath.Join(parent, instance)
	err := os.Mkdir(group, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(c.pid())), 0)
	}
	if err != nil {
		c.n.T.Fatal(err)
	}
	c.n.T.Cleanup(func() {
		c.end()
		c.n.Eventually("the cgroup is removed", func() bool { return os.Remove(group) == nil })
	})
}

const alongsideConfig = "oakestra: {alongside: goProxyBridge, netManager: /none}\n"

// portLabels returns the labels of the agent's services by interface.
func (n *node) portLabels() map[string]map[string]string {
	all := map[string]map[string]string{}
	for _, s := range list[v1.Service](n, "service") {
		all[s.Spec.Interface] = s.Metadata.Labels
	}
	return all
}

// Next to NetManager the ports of its bridge become services as soon as their container is connected, with the names
// that the node knows. Modules filter and count their packets. NetManager's bridge, veths and addresses stay unchanged,
// and its sockets are not used.
func TestAlongsideNetManager(t *testing.T) {
	n := newNode(t)
	former := kerbnode.Module("oakestra-proxy", "proxy", "oakestra.io/service", map[string]any{"ranges": []string{}})
	if err := n.Call("POST", "/v1/apply?owner=oakestra", []any{former}, nil); err != nil {
		t.Fatal(err)
	}
	n.Stop()
	n.Configure(alongsideConfig)
	m := n.netManager()
	a, b, other := n.container(), n.container(), n.container()
	a.named("shop.test.web.test.instance.0")
	b.named("shop.test.web.test.instance.1")
	aPort := m.connect(a, "10.18.0.2/26")
	n.start()
	n.Eventually("the port that was there", func() bool { return len(n.portLabels()) == 1 })
	bPort, otherPort := m.connect(b, "10.18.0.3/26"), m.connect(other, "10.18.0.4/26")
	web := func(instance, port string) map[string]string {
		return map[string]string{"oakestra.io/service": "shop.test.web.test", "oakestra.io/app": "shop",
			"oakestra.io/instance": instance, "oakestra.io/port": port}
	}
	want := map[string]map[string]string{aPort: web("0", aPort), bPort: web("1", bPort),
		otherPort: {"oakestra.io/port": otherPort}}
	n.Eventually("all ports", func() bool { return cmp.Equal(n.portLabels(), want) })

	if all := moduleNames(list[v1.Module](n, "module")); len(all) != 0 {
		t.Errorf("modules of Kerb's time as network manager: %v", all)
	}
	if got := n.do("POST", "/container/deploy", `{}`); got.status != 404 {
		t.Errorf("NodeEngine's routes are served: %+v", got)
	}
	n.must("POST", "/ebpf", `{"name":"packetCounter","config":{}}`)
	from, to, third := a.listen("10.18.0.2:1000"), b.listen("10.18.0.3:2000"), other.listen("10.18.0.4:2000")
	if !arrives(from, to, manyTries) || !arrives(from, third, manyTries) {
		t.Fatal("packets do not arrive")
	}
	var counts map[string]map[string]int
	if err := json.Unmarshal([]byte(n.must("GET", "/ebpf/0/counts", "")), &counts); err != nil {
		t.Fatal(err)
	}
	if counts[aPort]["egress"] == 0 || counts[bPort]["ingress"] == 0 {
		t.Errorf("%v", counts)
	}
	n.must("POST", "/ebpf", `{"name":"firewall","config":{}}`)
	if arrives(from, to, fewTries) {
		t.Error("a packet passes a firewall without rules")
	}

	// After a kill of the agent, too, ports are the same services, and always have their chains.
	n.Kill()
	if arrives(from, to, fewTries) {
		t.Error("a packet passes without the agent")
	}
	n.start()
	for range 20 {
		if arrives(from, to, 1) {
			t.Fatal("a packet passes after a restart")
		}
	}
	n.Eventually("all ports again", func() bool { return cmp.Equal(n.portLabels(), want) })
	n.must("DELETE", "/ebpf", "")
	to.Close() // it holds the namespace open
	b.end()
	delete(want, bPort)
	n.Eventually("a port that is gone is no service", func() bool { return cmp.Equal(n.portLabels(), want) })

	// Without the option the ports are not services any more, and NetManager's interfaces stay unchanged.
	n.Stop()
	n.Configure(oakestraConfig)
	n.start()
	n.Eventually("no services", func() bool { return len(n.portLabels()) == 0 })
	if !arrives(from, third, manyTries) {
		t.Error("packets do not arrive")
	}
}

// A container in the namespace of another one, a damaged cgroup path, and a second port of one instance.
func TestNamesOfPorts(t *testing.T) {
	n := newNode(t)
	n.Stop()
	n.Configure(alongsideConfig)
	m := n.netManager()
	a, b := n.container(), n.container()
	a.named("shop.test.web.test.instance.0")
	first := m.connect(a, "10.18.0.2/26")
	second := m.connect(a, "10.18.0.5/26") // as NetManager does when an instance is deployed again
	b.named("shop.test.web.test.instance.99999999999999999999")
	third := m.connect(b, "10.18.0.3/26")
	n.start()
	n.Eventually("three services", func() bool { return len(n.portLabels()) == 3 })
	labels := n.portLabels()
	if labels[second]["oakestra.io/instance"] != "0" || labels[first]["oakestra.io/service"] != "" ||
		labels[third]["oakestra.io/service"] != "" {
		t.Errorf("%v", labels)
	}
	if all := list[v1.Service](n, "service"); !bytes.Contains([]byte(fmt.Sprint(all)), []byte("oak-port-"+first)) {
		t.Errorf("%v", all)
	}
}
