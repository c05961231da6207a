// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/sdk"
)

func ipXfrm(t *testing.T, node *netlab.Namespace, args string) {
	t.Helper()
	out, err := node.Command(context.Background(), "ip",
		append([]string{"xfrm", "policy"}, strings.Fields(args)...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip xfrm policy %s: %v: %s", args, err, out)
	}
}

// Policies that are there before the watcher starts, that come and that go: all are seen, and what is not for plain
// packets is left out.
func TestWatchIPsecPolicies(t *testing.T) {
	lab := newLab(t)
	x := func() (x xfrm) {
		within(t, lab.Node(), func() error { x = openXfrm(); return nil })
		return
	}()
	defer x.close()
	if errors.Is(x.err, unix.EPROTONOSUPPORT) {
		t.Skip("this kernel has no XFRM")
	}
	const first = "src 192.0.2.1/32 dst 192.0.2.0/24 proto udp dport 7187 dir out priority 5 tmpl proto esp mode " +
		"transport level required"
	ipXfrm(t, lab.Node(), "add "+first)
	w := watch(t, lab.Node())
	var calls atomic.Int32
	w.OnChange(func() { calls.Add(1) })
	seen := func() []sdk.IPsecPolicy {
		if s := w.HostInterfaces()[lab.Bridge()].IPsec; s != nil && s.Error == "" {
			return s.Policies
		}
		return nil
	}
	described := func() (out []string) {
		for _, p := range seen() {
			out = append(out, p.Direction+" "+p.Action+" "+p.Source.String())
		}
		return
	}
	hasPolicies := func(want ...string) {
		t.Helper()
		wait.Until(t, fmt.Sprintf("the policies are %q", want), func() bool { return slices.Equal(described(), want) },
			func() any { return described() })
	}
	hasPolicies("out protect 192.0.2.1/32")
	p := seen()[0]
	want := sdk.IPsecPolicy{Direction: sdk.IPsecOut, Action: sdk.IPsecProtect, Index: p.Index, Priority: 5,
		Protocol: unix.IPPROTO_UDP,
		Source:   netip.MustParsePrefix("192.0.2.1/32"), Destination: netip.MustParsePrefix("192.0.2.0/24"),
		DestinationPort: sdk.PortMask{Port: 7187, Mask: 0xffff}}
	if p != want || p.Index == 0 {
		t.Errorf("%+v, want %+v", p, want)
	}
	before := calls.Load()
	for _, more := range []string{
		"src 2001:db8::/64 dst ::/0 dir in priority 1 action allow",
		"src 0.0.0.0/0 dst 0.0.0.0/0 dir fwd priority 9 action block",
		"src 192.0.2.7/32 dst 0.0.0.0/0 dir out priority 1 mark 1 mask 0xff tmpl proto esp mode transport",
		"src 192.0.2.7/32 dst 0.0.0.0/0 dir out priority 1 if_id 7 tmpl proto esp mode transport",
	} {
		ipXfrm(t, lab.Node(), "add "+more)
	}
	hasPolicies("in allow 2001:db8::/64", "out protect 192.0.2.1/32", "fwd block 0.0.0.0/0")
	wait.Until(t, "the change is announced", func() bool { return calls.Load() > before })
	ipXfrm(t, lab.Node(), "deleteall")
	hasPolicies()
	if out, err := lab.Node().Command(context.Background(), "ip", "xfrm", "policy", "setdefault", "out",
		"block").CombinedOutput(); err != nil {
		t.Skipf("this kernel has no default policies: %s", out)
	}
	hasPolicies("out block invalid Prefix")
}
