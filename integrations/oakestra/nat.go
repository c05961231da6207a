// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/netdump"
)

// newTable returns the nftables table of one agent's listener, of family inet (NAT there: Linux 5.2). Its content
// follows from the services alone, so that it is always replaced as a whole, in one transaction of the kernel:
//
//	chain ports   hook prerouting   fib daddr type local tcp dport 80 dnat ip to 10.18.0.2:8080, for each port and family
//	chain own     hook output       the same for the node itself, except by its loopback addresses
//	chain out     hook postrouting  from the subnet: masquerade what leaves the bridge or came back to it by a port
//
// Translated connections stay unchanged while the table changes.
func newTable(group uint32) *nftables.Table {
	return &nftables.Table{Name: fmt.Sprintf("kerb-oakestra-%08x", group), Family: nftables.TableFamilyINet}
}

// translate replaces the table by one for the services; without services it removes it.
func (n *network) translate(services []service) error {
	c, err := nftables.New()
	if err != nil {
		return explainNATError(err)
	}
	table := newTable(n.group)
	c.AddTable(table) // so that deleting it cannot fail
	c.DelTable(table)
	if len(services) > 0 {
		c.AddTable(table)
		n.addPorts(c, table, services, "ports", nftables.ChainHookPrerouting)
		n.addPorts(c, table, services, "own", nftables.ChainHookOutput)
		n.addMasquerading(c, table)
	}
	return explainNATError(c.Flush())
}

// explainNATError names the missing kernel option if the kernel does not understand a request.
func explainNATError(err error) error {
	for _, unknown := range []error{unix.EPROTONOSUPPORT, unix.EOPNOTSUPP, unix.EINVAL, unix.ENOENT, unix.EAFNOSUPPORT} {
		if errors.Is(err, unknown) {
			return fmt.Errorf("port mappings and masquerading need nf_tables in the kernel, with NAT: CONFIG_NF_TABLES_INET, "+
				"NFT_NAT, NFT_MASQ, NFT_FIB_INET, NFT_CT, "+
				"as modules nf_tables, nft_chain_nat, nft_masq, nft_fib_inet, nft_ct: %w", err)
		}
	}
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	return nil
}

func (n *network) addPorts(c *nftables.Conn, table *nftables.Table, services []service, name string,
	hook *nftables.ChainHook) {
	chain := c.AddChain(&nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeNAT, Hooknum: hook,
		Priority: nftables.ChainPriorityNATDest})
	taken := map[string]bool{}
	for _, s := range services {
		four, six := n.addresses(s.Number)
		for _, p := range s.Ports {
			if taken[p.String()] {
				continue // an earlier instance has the port
			}
			taken[p.String()] = true
			for _, to := range []netip.Addr{four.Addr(), six.Addr()} {
				c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: destinationNAT(p, to)})
			}
		}
	}
}

// Protocol numbers in the IP header.
var protocolNumbers = map[string]byte{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP}

func destinationNAT(p port, to netip.Addr) []expr.Any {
	return concat(
		isFamily(to),
		isNotToLoopback(to), // the kernel routes no packets with loopback addresses out of the node
		[]expr.Any{ // to an address of the node, not through it
			&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true},
			equal(binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)),
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equal([]byte{protocolNumbers[p.Protocol]}),
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}, equal(bigEndian(p.Node)),
			&expr.Immediate{Register: 1, Data: to.AsSlice()},
			&expr.Immediate{Register: 2, Data: bigEndian(p.Service)},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(family(to)), RegAddrMin: 1, RegProtoMin: 2},
		})
}

// addMasquerading translates packets from services to the node's address. Packets from one service to a node port of
// another must return through the node, too: on the bridge the reply would go directly to the client, with an address
// that it does not expect.
func (n *network) addMasquerading(c *nftables.Conn, table *nftables.Table) {
	chain := c.AddChain(&nftables.Chain{Name: "out", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	const statusDNAT = 1 << 5 // IPS_DST_NAT
	for _, subnet := range []netip.Prefix{n.subnet4, n.subnet6} {
		from := concat(isFamily(subnet.Addr()), isFrom(subnet))
		leaves := []expr.Any{outInterface(), &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: interfaceBytes(n.bridge)},
			&expr.Masq{}}
		returns := []expr.Any{outInterface(), equal(interfaceBytes(n.bridge)), &expr.Ct{Key: expr.CtKeySTATUS, Register: 1}}
		returns = append(returns, masked(1, binary.NativeEndian.AppendUint32(nil, statusDNAT))...)
		returns = append(returns, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)}, &expr.Masq{})
		for _, then := range [][]expr.Any{leaves, returns} {
			c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: concat(from, then)})
		}
	}
}

func family(a netip.Addr) byte {
	if a.Is4() {
		return unix.NFPROTO_IPV4
	}
	return unix.NFPROTO_IPV6
}

func isFamily(a netip.Addr) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, equal([]byte{family(a)})}
}

func isNotToLoopback(family netip.Addr) []expr.Any {
	at, loopback := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 1}, []byte{127}
	if family.Is6() {
		at.Offset, at.Len, loopback = 24, 16, netip.IPv6Loopback().AsSlice()
	}
	return []expr.Any{at, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: loopback}}
}

// isFrom matches the source address of the IP header.
func isFrom(subnet netip.Prefix) []expr.Any {
	offset, length := uint32(12), uint32(4)
	if subnet.Addr().Is6() {
		offset, length = 8, 16
	}
	mask := net.CIDRMask(subnet.Bits(), subnet.Addr().BitLen())
	return concat([]expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset,
		Len: length}},
		masked(1, mask), []expr.Any{equal(subnet.Addr().AsSlice())})
}

func masked(register uint32, mask []byte) []expr.Any {
	return []expr.Any{&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: uint32(len(mask)), Mask: mask,
		Xor: make([]byte, len(mask))}}
}

func equal(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }

func outInterface() expr.Any { return &expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1} }

// interfaceBytes returns a name as the kernel compares it (IFNAMSIZ).
func interfaceBytes(name string) []byte {
	return append([]byte(name), make([]byte, unix.IFNAMSIZ-len(name))...)
}

func bigEndian(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }

func concat(parts ...[]expr.Any) (all []expr.Any) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// deleteFlows deletes conntrack entries of flows to a service and to its ports. Otherwise flows that never pause would
// stay with a removed service, or would never reach a new one.
func (n *network) deleteFlows(s service) error {
	local, err := netdump.Complete(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("addresses of the node: %w", err)
	}
	f := flows{ports: s.Ports, node: map[netip.Addr]bool{}}
	for _, a := range local {
		f.node[addr(a.IP)] = true
	}
	four, six := n.addresses(s.Number)
	f.to = map[netip.Addr]bool{four.Addr(): true, six.Addr(): true}
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		_, e := netdump.Complete(func() (uint, error) {
			return netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, f)
		})
		err = errors.Join(err, e)
	}
	return err
}

func addr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// flows matches conntrack entries of flows to a service, and of flows to its node ports that are not translated.
type flows struct {
	to, node map[netip.Addr]bool
	ports    []port
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (f flows) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	asked, answers := addr(flow.Forward.DstIP), addr(flow.Reverse.SrcIP)
	return f.to[answers] || f.node[asked] && asked == answers && slices.ContainsFunc(f.ports, func(p port) bool {
		return p.Node == flow.Forward.DstPort && protocolNumbers[p.Protocol] == flow.Forward.Protocol
	})
}

// forward enables IP forwarding on all interfaces, which services need. A router ignores router advertisements with
// accept_ra 1, which may be the source of the node's default route, so it sets accept_ra 2 where it was 1.
func (n *network) forward(log *slog.Logger) error {
	const root = "/proc/sys/net/"
	var errs []error
	set := func(path, before, after string) bool {
		text, err := os.ReadFile(path)
		if err != nil || string(text) != before+"\n" {
			return false // without IPv6 there is no such file
		}
		if err = os.WriteFile(path, []byte(after), 0); err != nil {
			errs = append(errs, fmt.Errorf("packets of services are not forwarded: %w; set it to %s", err, after))
			return false
		}
		log.Info("the node forwards for its services", "setting", path[len(root):], "before", before, "now", after)
		return true
	}
	set(root+"ipv4/ip_forward", "0", "1")
	if text, err := os.ReadFile(root + "ipv6/conf/all/forwarding"); err == nil && string(text) == "0\n" {
		all, _ := filepath.Glob(root + "ipv6/conf/*/accept_ra")
		for _, path := range all {
			set(path, "1", "2")
		}
		set(root+"ipv6/conf/all/forwarding", "0", "1")
	}
	return errors.Join(errs...)
}

func hasTable(c *nftables.Conn, name string) (bool, error) {
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == name }), err
}

// lostTable reports whether another program has removed the table.
func (n *network) lostTable() bool {
	c, err := nftables.New()
	if err != nil {
		return false
	}
	there, err := hasTable(c, newTable(n.group).Name)
	return err == nil && !there
}

func purgeTable(group uint32) error {
	refused := acceptForwarded(group, "", false) // an error does not prevent the removal of the table
	c, err := nftables.New()
	if err != nil {
		return errors.Join(refused, err)
	}
	table := newTable(group)
	if there, err := hasTable(c, table.Name); err != nil || !there {
		return refused // a kernel without nf_tables has none
	}
	c.DelTable(table)
	return errors.Join(refused, c.Flush())
}
