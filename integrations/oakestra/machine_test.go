// SPDX-License-Identifier: Apache-2.0

package oakestra_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

const machineNetns = "/run/netns/" + appName + ".instance.7"

// deployMachine does what NodeEngine does for a unikernel. The namespace's name is global on the machine: no other test
// may run at the same time.
func (n *node) deployMachine(more string) (four, six string) {
	n.T.Helper()
	n.T.Cleanup(func() { _ = netns.DeleteNamed(appName + ".instance.7") }) // of a failed test
	body := fmt.Sprintf(`{"pid":0,"serviceName":%q,"instanceNumber":7%s}`, appName, more)
	var r response
	n.Eventually("a deployment in time", func() bool {
		r = n.do("POST", "/unikernel/deploy", body)
		return !r.tooSlow()
	})
	var got struct{ ServiceName, NsAddress, NsAddressv6 string }
	if err := json.Unmarshal([]byte(r.body), &got); err != nil || r.status != 200 || got.ServiceName != appName {
		n.T.Fatalf("deploy: %+v %v", r, err)
	}
	return got.NsAddress, got.NsAddressv6
}

func (n *node) undeployMachine() {
	n.T.Helper()
	n.must("POST", "/unikernel/undeploy", fmt.Sprintf(`{"pid":0,"serviceName":%q,"instanceNumber":7}`, appName))
}

// openTap opens an existing or new tap in the namespace of the thread, as a hypervisor does.
func openTap(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// boot connects a guest to the machine's tap. The guest's network stack is a namespace with a tap of its own; frames
// are copied between the two.
func (n *node) boot() *container {
	n.T.Helper()
	guest := n.container()
	var outer, inner *os.File
	err := n.inMachine(func() (err error) {
		outer, err = openTap("tap0")
		return err
	})
	if err != nil {
		n.T.Fatal(err)
	}
	err = guest.do(func() (err error) {
		if inner, err = openTap("eth0"); err != nil {
			return err
		}
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		for own, gateway := range map[string]string{"192.168.1.2/30": "192.168.1.1",
			"fd6b:6572:62::2/126": "fd6b:6572:62::1"} {
			at, e := netlink.ParseAddr(own)
			if e != nil {
				return e
			}
			at.Flags = unix.IFA_F_NODAD
			err = errors.Join(err, netlink.AddrAdd(link, at), netlink.LinkSetUp(link),
				netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(gateway)}))
		}
		return err
	})
	if err != nil {
		n.T.Fatal(err)
	}
	copyFrames := func(to, from *os.File) {
		frame := make([]byte, 1<<16)
		for {
			size, err := from.Read(frame)
			if err != nil {
				return
			}
			_, _ = to.Write(frame[:size]) // fails while the other interface is down
		}
	}
	go copyFrames(outer, inner)
	go copyFrames(inner, outer)
	n.T.Cleanup(func() { outer.Close(); inner.Close() })
	return guest
}

func (n *node) inMachine(f func() error) error {
	ns, err := netns.GetFromPath(machineNetns)
	if err != nil {
		return err
	}
	defer ns.Close()
	return inNamespace(ns, f)
}

// A virtual machine reaches other services and is reached, by the addresses of its service and by a mapped port, over
// TCP, UDP and both versions of IP. An undeploy leaves nothing of it.
func TestMachine(t *testing.T) {
	n := newNodeAlone(t) // names of machines are global on the host
	register(n)
	b := n.container()
	b4, b6 := b.deploy("other.test.back.test", 0, "")
	four, six := n.deployMachine(`,"portMappings":"8080:2000/tcp"`)
	if again4, again6 := n.deployMachine(`,"portMappings":"8080:2000/tcp"`); again4 != four || again6 != six {
		t.Errorf("deployed again: %s and %s, then %s and %s", four, six, again4, again6)
	}
	guest := n.boot()
	for _, v := range []struct{ own, machine, b, gateway string }{{"192.168.1.2", four, b4, "10.18.0.1"},
		{"fd6b:6572:62::2", six, b6, "fc00::1"}} {
		guest.serveEcho(v.own)
		peers := b.serveEcho(v.b)
		for _, network := range []string{"udp", "tcp"} {
			guest.exchange(network, net.JoinHostPort(v.b, "2000"), 1000)
			b.exchange(network, net.JoinHostPort(v.machine, "2000"), 1000)
		}
		b.exchange("tcp", net.JoinHostPort(v.gateway, "8080"), 1000)
		for len(peers) > 0 {
			if peer := <-peers; peer.Addr() != netip.MustParseAddr(v.machine) {
				t.Errorf("%s sees %s, want %s", v.b, peer, v.machine)
			}
		}
	}
	if all := list[v1.Service](n, "service"); len(all) != 2 {
		t.Errorf("services: %v", all)
	}
	n.undeployMachine()
	n.undeployMachine()
	if _, err := os.Stat(machineNetns); !os.IsNotExist(err) {
		t.Errorf("the namespace is left: %v", err)
	}
	if all, links := list[v1.Service](n, "service"), n.links(); len(all) != 1 || len(links) != 2 {
		t.Errorf("left: %d services, %v", len(all), links)
	}
}

// A failed deployment leaves no namespace, one that a killed agent has left does not prevent the next, and a purge
// removes it.
func TestMachineCleanup(t *testing.T) {
	n := newNodeAlone(t)
	register(n)
	failed := n.do("POST", "/unikernel/deploy", fmt.Sprintf(
		`{"pid":0,"serviceName":%q,"instanceNumber":7,"ebpfModules":[{"name":"firewall","config":{"colour":"red"}}]}`, appName))
	if failed.status == 200 {
		t.Errorf("%+v", failed)
	}
	if _, err := os.Stat(machineNetns); !os.IsNotExist(err) {
		t.Errorf("the namespace of a failed deployment is left: %v", err)
	}
	n.deployMachine("")
	n.Kill()
	if err := os.Remove(n.Oakestra()); err != nil {
		t.Fatal(err)
	}
	n.start()
	register(n)
	n.deployMachine("") // the namespace of a deployment that is not in the file
	if err := n.inMachine(func() error { _, err := netlink.LinkByName("oakestra0"); return err }); err != nil {
		t.Error(err)
	}
	n.purged()
	if _, err := os.Stat(machineNetns); !os.IsNotExist(err) {
		t.Errorf("after a purge the namespace is left: %v", err)
	}
}
