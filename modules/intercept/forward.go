// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kerb-edge/kerb/sdk"
)

// forward says where packets of a class are sent on to.
type forward struct {
	To        target `json:"to"`
	Interface string `json:"interface"` // of the node, which the module is attached to
}

// target is an address, with or without a port; without one packets keep theirs.
type target struct{ netip.AddrPort }

// UnmarshalJSON accepts 192.0.2.7, 192.0.2.7:7001, 2001:db8::7 and [2001:db8::7]:7001.
func (t *target) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	if a, err := netip.ParseAddr(s); err == nil {
		t.AddrPort = netip.AddrPortFrom(a, 0)
		return nil
	}
	p, err := netip.ParseAddrPort(s)
	if err != nil || p.Port() == 0 {
		return fmt.Errorf("forward.to: %q is neither an address nor one with a port such as 192.0.2.7:7001", s)
	}
	t.AddrPort = p
	return nil
}

// isRoutable reports whether routers send packets to an address on, as the data plane judges it.
func isRoutable(a netip.Addr) bool {
	b := a.As16()
	switch {
	case a.Zone() != "" || a.Is4In6():
		return false
	case a.Is4():
		return b[12] != 0 && b[12] != 127 && b[12] < 224
	}
	return binary.BigEndian.Uint64(b[:]) != 0 && !a.IsMulticast() && !a.IsLinkLocalUnicast()
}

// checkForward compares forward with what else the class says. The class is of the target's family only.
func (c *class) checkForward() error {
	wrong, m := sdk.ConfigErrorf, &c.Match
	if (c.Action == "forward") != (c.Forward != nil) {
		return wrong("forward", "required with action forward, and only there: it names the host (to), the interface, "+
			"or both")
	}
	if c.Forward == nil {
		return nil
	}
	to := c.Forward.To.Addr()
	if !to.IsValid() && c.Forward.Interface == "" {
		return wrong("forward", "needs to, such as 192.0.2.7:7001, or interface, or both")
	}
	if c.Direction != "ingress" {
		return wrong("direction", "has to be ingress with action forward: packets from a service have met no firewall yet")
	}
	if c.Ring != "" {
		return wrong("ring", "has to be absent with action forward: a program could have other packets sent to the target")
	}
	if !to.IsValid() {
		return nil
	}
	if !isRoutable(to) {
		return wrong("forward.to", "%s is no address of another host: loopback, link-local addresses and groups are not", to)
	}
	if !m.Protocol.set || m.Protocol.number != 17 {
		return wrong("match.protocol", "has to be udp with forward.to: of other protocols use forward.interface, "+
			"and for connections the package proxy or nat")
	}
	family := 6
	if to.Is4() {
		family = 4
	}
	if m.Family == 0 {
		m.Family = family
	}
	if m.Family != family {
		return wrong("forward.to", "%s is not an IPv%d address like those of match: use one class per IP version", to,
			m.Family)
	}
	return nil
}

func (f *forward) entry() (e targetEntry) {
	if to := f.To.Addr(); to.IsValid() {
		if e.Family = 6; to.Is4() {
			e.Family = 4
		}
		copy(e.Addr[:], to.AsSlice())
		binary.BigEndian.PutUint16(e.Port[:], f.To.Port())
	}
	if f.Interface != "" {
		e.Named = 1
	}
	return e
}

// unforwardedReasons are those of enum icpt_unforwarded.
var unforwardedReasons = [...]string{"unsupported", "noRoute", "noNeighbour", "tooBig", "expired", "arrived",
	"noMemory"}

// unforwarded are the packets that were to be forwarded and were not, by reason.
func (n *countsEntry) unforwarded() map[string]uint64 {
	out := map[string]uint64{}
	for i, reason := range unforwardedReasons {
		if n.Unforwarded[i] > 0 {
			out[reason] = n.Unforwarded[i]
		}
	}
	return out
}

// exits are the interfaces of the node that the module is attached to, by name, as far as a configuration has seen
// them: those that classes may forward to.
type exits struct {
	mu    sync.Mutex // of known
	known map[string]uint32
}

// resolve gives classes the indices of their interfaces. It reports whether one has changed.
func (e *exits) resolve(classes []*class) (changed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range classes {
		if !c.namesInterface() {
			continue
		}
		now := e.known[c.Forward.Interface]
		changed = atomic.SwapUint32(&c.ifindex, now) != now || changed
	}
	return changed
}

// namesInterface reports whether packets of the class are forwarded to a certain interface.
func (c *class) namesInterface() bool { return c.Forward != nil && c.Forward.Interface != "" }

// refreshExits has the data plane forward to interfaces as they are now.
func (f *running) refreshExits() error {
	if !slices.ContainsFunc(f.Classes, (*class).namesInterface) {
		return nil
	}
	known := map[string]uint32{}
	for _, at := range f.live.Attachments() {
		if at.Service == "" {
			known[at.Interface] = at.Ifindex
		}
	}
	f.exits.mu.Lock()
	f.exits.known = known
	f.exits.mu.Unlock()
	if !f.exits.resolve(f.Classes) {
		return nil
	}
	return f.resetTable(slices.DeleteFunc(slices.Clone(f.Classes), func(c *class) bool { return !c.namesInterface() })...)
}

// Conditions implements sdk.Conditioner: whether the interfaces that classes forward to are there.
func (f *running) Conditions() ([]sdk.Condition, error) {
	var missing []string
	named := false
	for _, c := range f.Classes {
		if !c.namesInterface() {
			continue
		}
		named = true
		if atomic.LoadUint32(&c.ifindex) == 0 {
			missing = append(missing, fmt.Sprintf("class %s: %s", c.Name, c.Forward.Interface))
		}
	}
	switch {
	case !named:
		return nil, nil
	case len(missing) == 0:
		return []sdk.Condition{{Type: "Forwarding", Status: "True", Reason: "InterfacesAttached"}}, nil
	}
	return []sdk.Condition{{Type: "Forwarding", Status: "False", Reason: "InterfaceNotAttached",
		Message: "packets pass, as the module is not attached to the interface: add it to spec.attach.interfaces. " +
			strings.Join(missing, ", ")}}, nil
}
