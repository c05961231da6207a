// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sort"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/sdk"
)

// maxOwn is how many addresses of one interface count as its own: a service that gives itself more cannot fill the
// table of all.
const maxOwn = 32

// ownKey mirrors struct fw_own_key.
type ownKey struct {
	Ifindex uint32
	MAC     [6]byte
	Family  uint16 // 4, 6, 0
	Addr    [16]byte
}

// AttachmentChanged implements sdk.AttachmentWatcher.
func (g *running) AttachmentChanged(sdk.Attachment, bool) {
	g.moved.Store(true)
	g.followAddresses()
}

// followAddresses writes which addresses the interfaces have now.
func (g *running) followAddresses() {
	if !g.config.antiSpoof() {
		return
	}
	g.owning.Lock()
	defer g.owning.Unlock()
	if err := g.writeOwn(g.live.Maps, g.live.Attachments()); err != nil {
		slog.Warn("firewall: addresses of services", "module", g.live.Module, "error", err)
	}
}

// writeOwn makes the table of own addresses that of the interfaces.
func (f *Firewall) writeOwn(maps sdk.Maps, all []sdk.Attachment) error {
	m, err := maps.Get(mapOwn)
	if err != nil {
		return err
	}
	want := ownKeys(all, f.config.addresses)
	var errs []error
	var key ownKey
	var value uint32
	var over []ownKey
	for entries := m.Iterate(); entries.Next(&key, &value); {
		if !want[key] {
			over = append(over, key)
		}
	}
	for _, key := range over {
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("delete from map %s: %w", mapOwn, err))
		}
	}
	for key := range want {
		if err := m.Put(key, uint32(1)); err != nil {
			errs = append(errs, fmt.Errorf("write map %s: %w", mapOwn, err))
		}
	}
	return errors.Join(errs...)
}

// ownKeys are the keys of all interfaces. Where two services have the same address or MAC, it is that of the one whose
// interface is older: a service may configure its interface as it likes, and must not get what is another's.
func ownKeys(all []sdk.Attachment, within []netip.Prefix) map[ownKey]bool {
	out := map[ownKey]bool{}
	macs, holders := map[[6]byte]string{}, map[netip.Addr]string{}
	all = slices.Clone(all)
	sort.Slice(all, func(i, j int) bool { return all[i].Ifindex < all[j].Ifindex })
	for _, i := range all {
		if i.Service == "" {
			out[ownKey{Ifindex: i.Ifindex}] = true // traffic of the node, which forwards for others
			continue
		}
		parsed, err := net.ParseMAC(i.MAC)
		if err != nil || len(parsed) != 6 {
			continue
		}
		mac := [6]byte(parsed)
		if holder, taken := macs[mac]; taken && holder != i.Service {
			slog.Warn("firewall: two services have the same MAC", "mac", i.MAC, "holder", holder, "denied", i.Service)
			continue
		}
		macs[mac] = i.Service
		for _, a := range ownAddresses(i, within) {
			if holder, taken := holders[a]; taken && holder != i.Service {
				slog.Warn("firewall: two services have the same address", "address", a, "holder", holder, "denied", i.Service)
				continue
			}
			holders[a] = i.Service
			out[addressKey(i.Ifindex, mac, a)] = true
		}
		for _, a := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified(), linkLocal(mac)} {
			out[addressKey(i.Ifindex, mac, a)] = true
		}
		out[ownKey{Ifindex: i.Ifindex, MAC: mac}] = true
	}
	return out
}

// ownAddresses are those of an interface that count.
func ownAddresses(i sdk.Attachment, within []netip.Prefix) (out []netip.Addr) {
	for _, text := range slices.Concat(i.Addresses, i.LinkLocal) {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			continue
		}
		a := p.Addr().Unmap()
		inside := slices.ContainsFunc(within, func(w netip.Prefix) bool { return w.Contains(a) })
		if len(within) > 0 && !inside && !a.IsLinkLocalUnicast() {
			continue
		}
		if len(out) == maxOwn {
			slog.Warn("firewall: too many addresses", "service", i.Service, "interface", i.Interface, "counted", maxOwn)
			break
		}
		out = append(out, a)
	}
	return out
}

func addressKey(ifindex uint32, mac [6]byte, a netip.Addr) ownKey {
	k := ownKey{Ifindex: ifindex, MAC: mac, Family: 6}
	if a.Is4() {
		k.Family = 4
	}
	copy(k.Addr[:], a.AsSlice())
	return k
}

// linkLocal is the IPv6 address that an interface makes of its MAC (RFC 4291, appendix A).
func linkLocal(m [6]byte) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]})
}
