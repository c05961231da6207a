// SPDX-License-Identifier: Apache-2.0

package oaktest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
)

const (
	managerBridge = "goProxyBridge"
	managerTUN    = "goProxyTun"
	managerMTU    = 1450
)

// devices are a network manager's devices and sockets.
type devices struct {
	tun    *os.File
	socket *net.UDPConn
	ns     netns.NsHandle
	links  *netlink.Handle
	bridge netlink.Link

	mu    sync.Mutex
	gate  [2]netip.Addr // of the bridge
	free  [][2]netip.Addr
	veths int
}

// hosted is a service that is connected to the bridge.
type hosted struct {
	addresses [2]netip.Addr
	veth      string
}

// open creates the TUN device and the tunnel's socket, in the network namespace of the calling thread.
func (w *devices) open() (err error) {
	if w.ns, err = netns.Get(); err != nil {
		return err
	}
	if w.links, err = netlink.NewHandleAt(w.ns); err != nil {
		return err
	}
	if w.socket, err = net.ListenUDP("udp4", &net.UDPAddr{Port: netManagerPort}); err != nil {
		return err
	}
	if w.tun, err = traffic.OpenTUN(managerTUN); err != nil {
		return err
	}
	link, err := w.links.LinkByName(managerTUN)
	if err != nil {
		return err
	}
	err = errors.Join(w.links.LinkSetMTU(link, managerMTU), w.links.LinkSetUp(link),
		w.address(link, "10.19.1.254/12"), w.address(link, "fcef::dead:beef/128"))
	virtual6 := netlink.Route{LinkIndex: link.Attrs().Index, Dst: netlab.IPNet(virtualRanges[1])}
	err = errors.Join(err, w.links.RouteAdd(&virtual6))
	for _, knob := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		err = errors.Join(err, os.WriteFile("/proc/sys/net/"+knob, []byte("1"), 0o644))
	}
	for _, of := range []string{"all", managerTUN} {
		err = errors.Join(err, os.WriteFile("/proc/sys/net/ipv4/conf/"+of+"/rp_filter", []byte("0"), 0o644))
	}
	return err
}

func (w *devices) address(link netlink.Link, text string) error {
	return netlab.AddAddresses(w.links, link, netip.MustParsePrefix(text))
}

// addBridge creates the bridge with the first addresses of two networks, of 62 and 254 addresses.
func (w *devices) addBridge(first [2]netip.Addr) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = managerBridge, managerMTU
	attrs.HardwareAddr = netlab.BridgeMAC // unlike NetManager, whose containers may lose their gateway for a while
	w.bridge = &netlink.Bridge{LinkAttrs: attrs}
	if err := w.links.LinkAdd(w.bridge); err != nil {
		return err
	}
	a := [2]netip.Addr{first[0].Next(), first[1].Next()}
	w.gate = a
	for range 61 {
		a = [2]netip.Addr{a[0].Next(), a[1].Next()}
		w.free = append(w.free, a)
	}
	return errors.Join(netlab.AddAddresses(w.links, w.bridge, netip.PrefixFrom(w.gate[0], 26)),
		netlab.AddAddresses(w.links, w.bridge, netip.PrefixFrom(w.gate[1], 120)), w.links.LinkSetUp(w.bridge))
}

// addService connects the network namespace of a process to the bridge.
func (w *devices) addService(pid int) (*hosted, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bridge == nil || len(w.free) == 0 {
		return nil, errors.New("no address is left")
	}
	ns, err := netns.GetFromPid(pid)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	inner, err := netlink.NewHandleAt(ns)
	if err != nil {
		return nil, err
	}
	defer inner.Close()
	w.veths++
	h := &hosted{addresses: w.free[0], veth: fmt.Sprintf("veth%d", w.veths)}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.MasterIndex = h.veth, managerMTU, w.bridge.Attrs().Index
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace, veth.PeerMTU = "veth0", netlink.NsFd(ns), managerMTU
	if err := w.links.LinkAdd(veth); err != nil {
		return nil, err
	}
	if err := errors.Join(w.links.LinkSetUp(veth), w.configure(inner, h)); err != nil {
		return nil, errors.Join(err, w.links.LinkDel(veth))
	}
	w.free = w.free[1:]
	return h, nil
}

func (w *devices) configure(inner *netlink.Handle, h *hosted) error {
	link, err := inner.LinkByName("veth0")
	if err != nil {
		return err
	}
	err = errors.Join(netlab.AddAddresses(inner, link, netip.PrefixFrom(h.addresses[0], 26)),
		netlab.AddAddresses(inner, link, netip.PrefixFrom(h.addresses[1], 120)), inner.LinkSetUp(link))
	for _, gate := range w.gate {
		err = errors.Join(err, inner.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gate.AsSlice()}))
	}
	return err
}

// removeService frees the addresses, which the next service reuses immediately.
func (w *devices) removeService(h *hosted) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if link, err := w.links.LinkByName(h.veth); err == nil { // otherwise it was removed with the container
		_ = w.links.LinkDel(link)
	}
	w.free = append([][2]netip.Addr{h.addresses}, w.free...)
}

func (w *devices) close() {
	if w.socket != nil {
		_ = w.socket.Close()
	}
	if w.tun != nil {
		_ = w.tun.Close()
	}
	if w.links != nil {
		w.links.Close()
		_ = w.ns.Close()
	}
}

// fromServices translates packets of services one after another, and sends them from one UDP port for each worker.
func (n *NetManager) fromServices() {
	sockets := map[netip.AddrPort]*net.UDPConn{}
	for buffer := make([]byte, 1<<16); ; {
		size, err := n.wires.tun.Read(buffer)
		if err != nil {
			break
		}
		p, ok := traffic.ParsePacket(buffer[:size])
		if !ok {
			continue // ICMP, for example
		}
		raw, to, ok := n.cache.outgoing(p, n, rand.IntN)
		switch {
		case !ok:
		case to.node.Addr() == n.host:
			n.deliver(raw)
		default:
			n.send(sockets, to.node, raw)
		}
	}
	for _, s := range sockets {
		_ = s.Close()
	}
}

func (n *NetManager) send(sockets map[netip.AddrPort]*net.UDPConn, to netip.AddrPort, raw []byte) {
	if sockets[to] == nil {
		err := n.inside(func() (err error) {
			sockets[to], err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
			return err
		})
		if err != nil { // the worker is unreachable
			delete(sockets, to)
			return
		}
	}
	_, _ = sockets[to].Write(raw)
}

// fromNodes delivers packets of other workers.
func (n *NetManager) fromNodes() {
	for buffer := make([]byte, 1<<16); ; {
		size, err := n.wires.socket.Read(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			n.deliver(buffer[:size])
		}
	}
}

func (n *NetManager) deliver(raw []byte) {
	if p, ok := traffic.ParsePacket(raw); ok {
		_, _ = n.wires.tun.Write(n.cache.incoming(p))
	}
}
