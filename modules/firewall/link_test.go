// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/sdk"
)

// The firewall's drop reasons: enum fw_drop.
const (
	dropSpoofed     = 32
	dropBadOffload  = 33
	dropLinkControl = 34
)

const (
	egress  = false
	ingress = true
)

// raw returns a frame with an EtherType that is not parsed.
func raw(etherType uint16) []byte {
	out := make([]byte, 64)
	copy(out, net.HardwareAddr{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2})
	binary.BigEndian.PutUint16(out[12:], etherType)
	return out
}

// Frames that are neither IPv4 nor IPv6 follow nonIP; VLAN tags are skipped.
func TestNonIP(t *testing.T) {
	notEmulated(t)
	for config, passes := range map[string][]uint16{
		`{}`:                              {0x0806},
		`{"nonIP": "arp"}`:                {0x0806},
		`{"nonIP": "deny"}`:               {},
		`{"nonIP": "allow"}`:              {0x0806, 0x88cc, 0x8847, 0x88b5, 0x0040, 0x0600},
		`{"nonIP": []}`:                   {},
		`{"nonIP": ["0x88cc", 34887]}`:    {0x88cc, 0x8847},
		`{"nonIP": ["arp", "0x0600"]}`:    {0x0806, 0x0600},
		`{"nonIP": [35020, "arp", 1536]}`: {0x88cc, 0x0806, 0x0600},
	} {
		k := loadFirewall(t, config)
		for _, etherType := range []uint16{0x0806, 0x88cc, 0x8847, 0x88b5, 0x0040, 0x0600, 0x0000} {
			want := false
			for _, p := range passes {
				want = want || p == etherType
			}
			plain := raw(etherType)
			tagged := append(append(raw(0x9100)[:14:14], 0, 5), plain[12:]...)
			for _, direction := range []bool{egress, ingress} {
				if k.pass(plain, direction) != want && etherType != 0 {
					t.Errorf("%s: EtherType %#04x passes %t", config, etherType, !want)
				}
				if k.pass(tagged, direction) != want && etherType != 0 {
					t.Errorf("%s: EtherType %#04x in a tag passes %t", config, etherType, !want)
				}
			}
		}
	}
}

func TestNonIPErrors(t *testing.T) {
	for config, reason := range map[string]string{
		`{"nonIP": "lldp"}`:      "neither arp, allow, deny",
		`{"nonIP": ["0x0800"]}`:  "0x0800 is IPv4, which the rules decide on",
		`{"nonIP": [34984]}`:     "34984 is a VLAN tag",
		`{"nonIP": [64]}`:        "neither arp nor an EtherType from 0x0600",
		`{"nonIP": ["0x88cg"]}`:  "neither arp nor an EtherType",
		`{"addresses": ["web"]}`: "neither an IP address",
		`{"addresses": [""]}`:    "missing",
		`{"nonIP": [1537,1538,1539,1540,1541,1542,1543,1544,1545]}`: "at most 8",
	} {
		_, err := Control().Compile([]byte(config))
		if err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v, want %q", config, err, reason)
		}
	}
}

// Frames to the bridge group addresses never pass, except with an EtherType in the config.
func TestReservedGroups(t *testing.T) {
	notEmulated(t)
	bpdu := append(raw(38)[:14:14], 0x42, 0x42, 3)
	frames := map[string][]byte{"spanning tree": append(bpdu, make([]byte, 40)...), "LLDP": raw(0x88cc),
		"IP": frame{Packet: udp(svc4, 1, far4, 2)}.bytes()}
	for config, passes := range map[string]string{
		`{"nonIP": "allow", "defaultPolicy": {"ingress": "allow"}}`:                  "",
		`{"nonIP": ["arp", "0x88cc"], "defaultPolicy": {"ingress": "allow"}}`:        "LLDP",
		`{"nonIP": "allow", "linkControl": "rules", "rules": [{"action": "allow"}]}`: "",
	} {
		k := loadFirewall(t, config)
		for name, f := range frames {
			for last := byte(0); last < 16; last++ {
				for _, direction := range []bool{egress, ingress} {
					if k.pass(macs(f, net.HardwareAddr{1, 0x80, 0xc2, 0, 0, last}, f[6:12]), direction) != (name == passes) {
						t.Errorf("%s: %s to group %x passes %t", config, name, last, name != passes)
					}
				}
			}
		}
		if passes == "" && k.drops(dropLinkControl) != 3*16*2 {
			t.Errorf("%s: %d drops by link control", config, k.drops(dropLinkControl))
		}
		if !k.pass(macs(frames["IP"], net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 16}, nil), egress) {
			t.Error("a group beyond the reserved ones does not pass")
		}
	}
}

// discovery returns a message of neighbour or multicast listener discovery.
func discovery(kind, hops uint8, ext ...int) frame {
	p := icmp("fe80::1", "ff02::1", kind, 0)
	p.HopLimit = hops
	return frame{Packet: p, payload: 16, ext: ext}
}

// Services act as hosts in neighbour discovery, independent of default policy and rules. Messages behind other headers
// do not pass.
func TestLinkControlByDirection(t *testing.T) {
	notEmulated(t)
	for _, policy := range []string{"deny", "allow"} {
		k := loadFirewall(t, `{"antiSpoof": false, "defaultPolicy": {"ingress": "`+policy+`", "egress": "`+policy+`"},
			"rules": [{"action": "`+policy+`", "protocol": "icmpv6"}]}`)
		other := policy == "allow" // decided by the rules
		for _, s := range []struct {
			what        string
			frame       frame
			out, inward bool
		}{
			{"router solicitation", discovery(133, 255), true, true},
			{"router advertisement", discovery(134, 255), false, true},
			{"neighbour solicitation", discovery(135, 255), true, true},
			{"neighbour advertisement", discovery(136, 255), true, true},
			{"redirect", discovery(137, 255), false, true},
			{"solicitation from beyond", discovery(135, 254), other, other},
			{"advertisement behind destination options", discovery(136, 255, 60), false, false},
			{"router advertisement behind destination options", discovery(134, 255, 60), false, false},
			{"router advertisement behind an atomic fragment header", discovery(134, 255, 44), false, false},
			{"solicitation behind an atomic fragment header", discovery(135, 255, 44), false, false},
			{"listener query", discovery(130, 1), false, true},
			{"listener query behind a router alert", discovery(130, 1, 0), false, true},
			{"listener report", discovery(131, 1), true, true},
			{"listener done", discovery(132, 1), true, true},
			{"listener report, version 2", discovery(143, 1, 0), true, true},
			{"listener report behind destination options", discovery(143, 1, 60), other, other},
			{"listener report from beyond", discovery(143, 64), other, other},
			{"echo request", discovery(128, 255), other, other},
		} {
			for _, direction := range []bool{egress, ingress} {
				want := s.out
				if direction == ingress {
					want = s.inward
				}
				if got := k.pass(s.frame.bytes(), direction); got != want {
					t.Errorf("default %s: %s, to the service %t: passes %t, want %t", policy, s.what, direction, got, want)
				}
			}
		}
		first := discovery(135, 255, 44)
		first.more, first.fragID = true, 5
		if k.pass(first.bytes(), egress) || k.pass(first.bytes(), ingress) {
			t.Errorf("default %s: a solicitation in fragments passes", policy)
		}
	}
	k := loadFirewall(t, `{"antiSpoof": false, "linkControl": "rules", "defaultPolicy": {"egress": "deny"},
		"rules": [{"action": "allow", "protocol": "icmpv6", "icmpType": 134}]}`)
	k.steps(step{"left to the rules: advertisement", discovery(134, 255), egress, true},
		step{"left to the rules: solicitation", discovery(135, 255), egress, false})
}

func igmpMessage(kind, ttl uint8, dst string) []byte {
	f := frame{Packet: Packet{Src: addr(svc4), Dst: addr(dst), Proto: 2}, options: 4, payload: 16}.bytes()
	f[22], f[38] = ttl, kind
	return f
}

// Group membership of IPv4, as of IPv6: with default deny, queries to the service and reports from it pass; services
// cannot query.
func TestGroupMembership(t *testing.T) {
	notEmulated(t)
	for _, policy := range []string{"deny", "allow"} {
		k := loadFirewall(t, `{"antiSpoof": false, "defaultPolicy": {"ingress": "`+policy+`", "egress": "`+policy+`"}}`)
		other := policy == "allow"
		for _, s := range []struct {
			what        string
			frame       []byte
			out, inward bool
		}{
			{"general query", igmpMessage(0x11, 1, "224.0.0.1"), false, true},
			{"query of a group", igmpMessage(0x11, 1, "239.1.2.3"), false, true},
			{"report", igmpMessage(0x22, 1, "224.0.0.22"), true, true},
			{"report, version 2", igmpMessage(0x16, 1, "239.1.2.3"), true, true},
			{"report, version 1", igmpMessage(0x12, 1, "239.1.2.3"), true, true},
			{"leave", igmpMessage(0x17, 1, "224.0.0.2"), true, true},
			{"report from beyond", igmpMessage(0x22, 2, "224.0.0.22"), other, other},
			{"report to a host", igmpMessage(0x22, 1, far4), other, other},
			{"multicast router advertisement", igmpMessage(0x30, 1, "224.0.0.106"), other, other},
		} {
			if got := k.pass(s.frame, egress); got != s.out {
				t.Errorf("default %s: %s from the service passes %t", policy, s.what, got)
			}
			if got := k.pass(s.frame, ingress); got != s.inward {
				t.Errorf("default %s: %s to the service passes %t", policy, s.what, got)
			}
		}
	}
}

// A DHCP server can answer an interface whose request the rules have allowed, to any address; nothing else passes.
func TestDHCP(t *testing.T) {
	notEmulated(t)
	for _, d := range []struct{ request, offer, stranger frame }{
		{frame{Packet: udp("0.0.0.0", 68, "255.255.255.255", 67), payload: 240},
			frame{Packet: udp("10.0.0.1", 67, "255.255.255.255", 68), payload: 240},
			frame{Packet: udp("10.0.0.1", 1067, "255.255.255.255", 68), payload: 240}},
		{frame{Packet: udp("fe80::2", 546, "ff02::1:2", 547), payload: 60}, frame{Packet: udp("fe80::1", 547, "fe80::2", 546),
			payload: 60},
			frame{Packet: udp("fe80::1", 1547, "fe80::2", 546), payload: 60}},
	} {
		k := loadFirewall(t, `{}`)
		k.steps(
			step{"unsolicited offer", d.offer, ingress, false},
			step{"request", d.request, egress, true},
			step{"offer", d.offer, ingress, true},
			step{"from another port", d.stranger, ingress, false},
			step{"offer of a service", d.offer, egress, false},
		)
		loadFirewall(t, `{"antiSpoof": false, "defaultPolicy": {"egress": "deny"}}`).steps(
			step{"egress deny: request", d.request, egress, false}, step{"egress deny: offer", d.offer, ingress, false})
		loadFirewall(t, `{"linkControl": "rules"}`).steps(step{"linkControl rules: offer of a service", d.offer,
			egress, true})
		loadFirewall(t, `{"state": {"enabled": false}}`).steps(
			step{"stateless: request", d.request, egress, true}, step{"stateless: offer", d.offer, ingress, false})
	}
}

const tenantMAC = "02:00:00:00:00:02" // the source in frames of frame_test.go

// on makes interface 1, that of test runs, the interface of a service.
func (k *kernel) on(all ...sdk.Attachment) {
	k.open(sdk.Live{Module: "fw", Maps: k.maps, Attachments: func() []sdk.Attachment { return all }}).AttachmentChanged(
		sdk.Attachment{}, true)
}

func TestAntiSpoof(t *testing.T) {
	notEmulated(t)
	service := sdk.Attachment{Service: "web", Ifindex: 1, MAC: tenantMAC, Addresses: []string{svc4 + "/24", svc6 + "/64"},
		LinkLocal: []string{"fe80::77/64"}}
	own4, own6 := frame{Packet: udp(svc4, 1, far4, 2)}, frame{Packet: udp(svc6, 1, far6, 2)}
	strange4, strange6 := frame{Packet: udp("10.0.0.3", 1, far4, 2)}, frame{Packet: udp("2001:db8::3", 1, far6, 2)}
	local, eui64 := frame{Packet: udp("fe80::77", 1, far6, 2)}, frame{Packet: udp("fe80::ff:fe00:2", 1, far6, 2)}
	const open = `{"antiSpoof": true, "rules": [{"action": "allow"}]}`
	k := loadFirewall(t, open)
	k.steps(step{"before the addresses are known", own4, egress, false})
	k.on(service)
	k.steps(step{"own address", own4, egress, true}, step{"own IPv6 address", own6, egress, true},
		step{"own link-local address", local, egress, true}, step{"link-local address of the MAC", eui64, egress, true},
		step{"another address", strange4, egress, false}, step{"another IPv6 address", strange6, egress, false},
		step{"the other way", frame{Packet: udp(far4, 1, svc4, 2)}, ingress, true})
	stolen := own4.bytes()
	stolen[11] = 3
	if k.pass(stolen, egress) {
		t.Error("another source MAC passes")
	}
	if n := k.drops(dropSpoofed); n != 4 {
		t.Errorf("%d drops as spoofed, want 4", n)
	}
	service.Addresses = []string{"10.0.0.3/24"}
	k.on(service)
	k.steps(step{"the old address", own4, egress, false}, step{"the new address", strange4, egress, true})
	k.on()
	k.steps(step{"an interface that is gone", strange4, egress, false})
	k.on(sdk.Attachment{Interface: "eth0", Ifindex: 1, MAC: "02:00:00:00:00:09", Addresses: []string{"192.0.2.1/24"}})
	k.steps(step{"an interface of the node forwards for others", own4, egress, true})

	k = loadFirewall(t, `{"rules": [{"action": "allow"}]}`)
	k.on(service)
	k.steps(step{"off with egress allow", own4, egress, true})
	k = loadFirewall(t, `{"defaultPolicy": {"egress": "deny"}, "rules": [{"action": "allow"}]}`)
	k.on(service)
	k.steps(step{"on with egress deny", own4, egress, false})
}

// An address belongs to its first service, and prefixes limit the addresses that a service can use.
func TestOwnAddresses(t *testing.T) {
	mac := func(n byte) string { return net.HardwareAddr{2, 0, 0, 0, 0, n}.String() }
	web := sdk.Attachment{Service: "web", Ifindex: 4, MAC: mac(1), Addresses: []string{"10.0.0.2/24", "192.0.2.9/24"}}
	thief := sdk.Attachment{Service: "thief", Ifindex: 5, MAC: mac(2), Addresses: []string{"10.0.0.2/24", "10.0.0.3/24"}}
	twin := sdk.Attachment{Service: "twin", Ifindex: 6, MAC: mac(1), Addresses: []string{"10.0.0.4/24"}}
	key := func(i sdk.Attachment, a string) ownKey {
		hw, _ := net.ParseMAC(i.MAC)
		return addressKey(i.Ifindex, [6]byte(hw), addr(a))
	}
	keys := ownKeys([]sdk.Attachment{twin, thief, web}, nil)
	for what, c := range map[string]struct {
		key  ownKey
		want bool
	}{
		"own":                     {key(web, "10.0.0.2"), true},
		"another's":               {key(thief, "10.0.0.2"), false},
		"own alongside another's": {key(thief, "10.0.0.3"), true},
		"with another's MAC":      {key(twin, "10.0.0.4"), false},
		"outside of the prefixes": {key(web, "192.0.2.9"), true},
	} {
		if keys[c.key] != c.want {
			t.Errorf("%s: own %t", what, keys[c.key])
		}
	}
	if keys := ownKeys([]sdk.Attachment{web}, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}); keys[key(web,
		"192.0.2.9")] || !keys[key(web, "10.0.0.2")] {
		t.Error("prefixes do not bound the addresses")
	}
	for i := range 100 {
		thief.Addresses = append(thief.Addresses, fmt.Sprintf("10.9.0.%d/16", i))
	}
	if n := len(ownKeys([]sdk.Attachment{thief}, nil)); n > maxOwn+4 {
		t.Errorf("%d keys for one interface", n)
	}
}
