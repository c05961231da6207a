// SPDX-License-Identifier: Apache-2.0

package ambient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// Packet marks of in-pod mode: of ztunnel's packets, and of connections to servers, which it opens from the client's
// address.
const (
	tunnelMark     = 0x539
	connectionMark = 0x111
	markMask       = 0xfff
	markedTable    = 100
)

// capture adds the rules of Istio's CNI agent (ztunnel's scripts/ztunnel-redirect-inpod.sh has them for iptables):
// packets of the pod's programs go to ztunnel's sockets in its namespace, and so do arriving packets, except HBONE.
// Replies to a client's address that ztunnel uses are delivered to it.
func capture(pod *netlab.Host) error {
	rules := fmt.Sprintf(`table ip ztunnel {
	chain marked {
		type filter hook prerouting priority mangle;
		meta mark & %[1]d == %[2]d ct mark set %[3]d
	}
	chain answers {
		type route hook output priority mangle;
		ct mark & %[1]d == %[3]d meta mark set ct mark
	}
	chain leaving {
		type nat hook output priority -100;
		meta mark & %[1]d == %[3]d return
		oif lo return
		ip daddr 127.0.0.1 return
		meta mark & %[1]d != %[2]d meta l4proto tcp redirect to :%[4]d
	}
	chain arriving {
		type nat hook prerouting priority dstnat;
		ip daddr 127.0.0.1 return
		meta mark & %[1]d != %[2]d tcp dport != %[6]d redirect to :%[5]d
	}
}
`, markMask, tunnelMark, connectionMark, outboundPort, inboundPort, HBONEPort)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	nft := pod.Command(ctx, "nft", "-f", "-")
	nft.Stdin = strings.NewReader(rules)
	if out, err := nft.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %.300s", err, out)
	}
	return pod.Do(deliverMarked)
}

// deliverMarked delivers packets with connectionMark locally, regardless of their destination.
func deliverMarked() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	mask := uint32(markMask)
	rule := netlink.NewRule()
	rule.Family, rule.Table, rule.Priority = unix.AF_INET, markedTable, 32764
	rule.Mark, rule.Mask = connectionMark, &mask
	everywhere := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	return errors.Join(netlink.RuleAdd(rule), netlink.RouteReplace(&netlink.Route{LinkIndex: lo.Attrs().Index,
		Dst: everywhere, Table: markedTable, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST}))
}
