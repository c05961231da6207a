// SPDX-License-Identifier: Apache-2.0

package sets

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/service"
)

func linkOf(ifindex int, addresses ...string) service.Link {
	l := service.Link{Ifindex: ifindex}
	for _, a := range addresses {
		l.PeerAddresses = append(l.PeerAddresses, netip.MustParsePrefix(a))
	}
	return l
}

func TestOwnAddresses(t *testing.T) {
	var many []string
	for i := range maxOwnAddresses + 2 {
		many = append(many, fmt.Sprintf("198.51.100.%d/24", i+1))
	}
	left := linkOf(1, "10.0.0.2/24")
	left.Left = true
	own, leftOut := ownAddresses(map[string]service.State{
		"gone":   {Links: []service.Link{left}, Addresses: left.PeerAddresses},
		"old":    {Links: []service.Link{linkOf(3, "10.0.0.2/24", "fd00::2/64")}},
		"young":  {Links: []service.Link{linkOf(9, "::ffff:10.0.0.2/120", "10.0.0.3/24")}},
		"shared": {Links: []service.Link{linkOf(9, "10.0.0.3/24")}},
		"many":   {Links: []service.Link{linkOf(4, many[:20]...), linkOf(5, many[10:]...)}},
		"dummy":  {Addresses: []netip.Prefix{netip.MustParsePrefix("203.0.113.1/32")}},
	})
	for name, want := range map[string]string{"gone": "[]", "old": "[10.0.0.2/32 fd00::2/128]",
		"young": "[10.0.0.3/32]", "shared": "[10.0.0.3/32]", "dummy": "[]"} {
		if got := fmt.Sprint(own[name]); got != want {
			t.Errorf("%s has %s, want %s", name, got, want)
		}
	}
	if len(own["many"]) != 32 || len(own["many"]) != len(slices.Compact(own["many"])) {
		t.Errorf("%d addresses of one service: %v", len(own["many"]), own["many"])
	}
	if len(leftOut) != 2 || !strings.Contains(leftOut[0], "many: has 2 addresses more than the 32 that count") ||
		!strings.Contains(leftOut[1], "young: 10.0.0.2 is an address of service old") {
		t.Errorf("left out: %q", leftOut)
	}
}
