// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
)

// Maps of kerb/set.h, which the modules of a node share.
const (
	SetsMap        = "kerb_sets"
	SetElementsMap = "kerb_elements"
	SetTableMap    = "kerb_table"
	SetPrefixesMap = "kerb_prefixes"
)

// SetMaps are these maps.
var SetMaps = []string{SetsMap, SetElementsMap, SetTableMap, SetPrefixesMap}

// Types of sets.
const (
	SetAddresses = "addresses"
	SetPrefixes  = "prefixes"
	SetPorts     = "ports"
)

// SetReference is a reference of a config to a set: a set that was applied, or the addresses of selected services.
type SetReference struct {
	Field    string   `json:"field"`              // of the config, for example rules[3].src
	Set      string   `json:"set,omitempty"`      // name
	Services string   `json:"services,omitempty"` // label selector, as in spec.attach.services
	Types    []string `json:"types,omitempty"`    // that the field can have
}

// ID is the key of the set in kerb_sets.
func (r SetReference) ID() uint64 {
	text := "set/" + r.Set
	if r.Services != "" {
		text = "services/" + r.Services
	}
	sum := sha256.Sum256([]byte(text))
	return binary.NativeEndian.Uint64(sum[:]) | 1 // 0 is none
}

// Set mirrors struct kerb_set; Kind and Version are its state.
type Set struct {
	ID       uint64 // SetReference.ID; 0: free
	Revision uint64 // used by the agent only
	Kind     SetKind
	Version  uint32 // elements of other versions are ignored
}

// SetKind mirrors enum kerb_set_kind: which maps hold the elements.
type SetKind uint32

// The kinds.
const (
	SetKindPrefixes SetKind = iota + 1 // SetPrefixesMap
	SetKindTable                       // SetTableMap, and SetElementsMap for elements that do not fit
)

// SetElement mirrors struct kerb_set_element.
type SetElement struct {
	Set  uint32   // version << 1, plus 1 for an IPv6 address
	Word [16]byte // network byte order; an IPv4 address or a port is in the first bytes
}

// SetPrefix mirrors struct kerb_set_prefix.
type SetPrefix struct {
	Bits    uint32 // significant bits of Element, including those of Set
	Element SetElement
}

// ElementOf returns the element for an address in a version of a set.
func ElementOf(version uint32, a netip.Addr) (e SetElement) {
	e.Set = version << 1
	if a.Is4() {
		four := a.As4()
		copy(e.Word[:], four[:])
		return e
	}
	e.Set, e.Word = e.Set|1, a.As16()
	return e
}

// PrefixOf returns the element for a prefix in a version of a set.
func PrefixOf(version uint32, p netip.Prefix) SetPrefix {
	return SetPrefix{uint32(32 + p.Bits()), ElementOf(version, p.Addr())}
}

// PortAddr returns a port as an element.
func PortAddr(port uint16) netip.Addr {
	return netip.AddrFrom4([4]byte{0, 0, byte(port >> 8), byte(port)})
}

// SetContains reports whether a set currently has an address or port, as packets see it. A set that does not exist is
// empty.
func (m Maps) SetContains(id uint64, a netip.Addr) (bool, error) {
	sets, err := m.Get(SetsMap)
	if err != nil {
		return false, err
	}
	var set Set
	if err := sets.Lookup(id, &set); err != nil {
		return found(SetsMap, err)
	}
	if bucket, entry, ok := set.Bucket(a); ok {
		table, err := m.Get(SetTableMap)
		if err != nil {
			return false, err
		}
		var b SetBucket
		if there, err := found(SetTableMap, table.Lookup(bucket, &b)); err != nil {
			return false, err
		} else if has, full := b.Find(entry); there && (has || !full) {
			return has, nil
		}
	}
	name, key := SetElementsMap, any(ElementOf(set.Version, a))
	if set.Kind == SetKindPrefixes {
		name, key = SetPrefixesMap, any(PrefixOf(set.Version, netip.PrefixFrom(a, a.BitLen())))
	}
	elements, err := m.Get(name)
	if err != nil {
		return false, err
	}
	var value uint32
	return found(name, elements.Lookup(key, &value))
}

func found(name string, err error) (bool, error) {
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, fmt.Errorf("read map %s: %w", name, err)
	}
	return err == nil, nil
}
