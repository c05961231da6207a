// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/sdk"
)

// MaxAllElements is the maximum number of elements of all sets of a node: the kernel has room for twice as many, so
// that all can be replaced.
const MaxAllElements = 1 << 18

// MaxSets is the maximum number of sets of a node: the kernel has room for 1,023 sets and selectors of services
// together.
const MaxSets = 900

// Quotas of an owner, so that no owner takes the room of others.
const (
	maxOwnedElements = MaxAllElements / 2
	maxOwnedSets     = MaxSets / 2
)

// Set is the kind of sets of addresses, prefixes or ports.
var Set = &Definition[v1alpha1.Set]{
	Name:     v1alpha1.KindSet,
	Short:    "Sets of addresses, prefixes or ports that rules refer to",
	ListNote: "without their elements",
	Complete: func(s *v1alpha1.Set, _ map[string]any) error {
		elements, err := NormalElements(s.Spec.Type, s.Spec.Elements, "spec.elements")
		if err == nil && len(elements) > v1alpha1.MaxSetElements {
			err = tooManyElements(s.Metadata.Name, len(elements))
		}
		s.Spec.Elements = elements
		return err
	},
	CheckAll: func(next State, _, changed []v1alpha1.Set) ([]string, error) {
		if len(changed) == 0 {
			return nil, nil
		}
		return nil, CheckElements(next, changed[0].Metadata.Name)
	},
	Summarize: func(s *v1alpha1.Set) any {
		sum := sha256.Sum256([]byte(strings.Join(s.Spec.Elements, "\n")))
		return map[string]any{"type": s.Spec.Type, "elements": len(s.Spec.Elements),
			"digest": "sha256:" + hex.EncodeToString(sum[:])}
	},
	Shorten: func(s *v1alpha1.Set) { s.Spec.Elements = nil },
	Columns: []Column[v1alpha1.Set]{
		{Header: "TYPE", Cell: func(s *v1alpha1.Set) any { return s.Spec.Type }},
		{Header: "ELEMENTS", Cell: func(s *v1alpha1.Set) any { return Status(s.Status).Elements }},
		{Header: "READY", Cell: func(s *v1alpha1.Set) any { return Ready(Status(s.Status).Conditions) }},
		{Header: "MODULES", Cell: func(s *v1alpha1.Set) any { return strings.Join(Status(s.Status).Modules, ",") }},
	},
}

func tooManyElements(name string, n int) error {
	return &apierrors.Invalid{Resource: v1alpha1.KindSet + " " + name, Field: "spec.elements", Reason: fmt.Sprintf(
		"%d elements, and a set can have %d; summarize them as prefixes, or divide them into several sets", n,
		v1alpha1.MaxSetElements)}
}

// CheckElements checks the limits of a set, of its owner, and of all sets together. Errors are *apierrors.Invalid.
func CheckElements(next State, name string) error {
	owner, sets, elements, total := OwnerOf(next[v1alpha1.KindSet][name]), 0, 0, 0
	for other, s := range all[v1alpha1.Set](next, v1alpha1.KindSet) {
		n := len(s.Spec.Elements)
		if total += n; other == name && n > v1alpha1.MaxSetElements {
			return tooManyElements(name, n)
		}
		if OwnerOf(&s) == owner {
			sets, elements = sets+1, elements+n
		}
	}
	const remedy = "; delete some with kerb set delete or kerb set remove"
	for _, l := range []struct {
		who   string
		n     int
		what  string
		limit int
	}{
		{"the node", len(next[v1alpha1.KindSet]), "sets", MaxSets},
		{"all sets of the node", total, "elements together", MaxAllElements},
		{"owner " + owner, sets, "sets", maxOwnedSets},
		{"the sets of owner " + owner, elements, "elements together", maxOwnedElements},
	} {
		if l.n > l.limit {
			return &apierrors.Invalid{Resource: v1alpha1.KindSet + " " + name, Field: "spec.elements", Reason: fmt.Sprintf(
				"%s would have %d %s, and can have %d%s", l.who, l.n, l.what, l.limit, remedy)}
		}
	}
	return nil
}

// NormalElements returns elements in the form of the store: normalized, sorted, without duplicates. Errors are
// *apierrors.Invalid, for at most ten elements.
func NormalElements(kind string, elements []string, field string) ([]string, error) {
	var wrong []error
	out := make([]string, 0, len(elements))
	for i, text := range elements {
		p, err := ParseElement(kind, text)
		if err != nil {
			if wrong = append(wrong, &apierrors.Invalid{Field: fmt.Sprintf("%s[%d]", field, i),
				Reason: err.Error()}); len(wrong) == 10 {
				break
			}
			continue
		}
		out = append(out, elementText(kind, p))
	}
	if err := errors.Join(wrong...); err != nil {
		return nil, err
	}
	slices.Sort(out)
	return slices.Clip(slices.Compact(out)), nil
}

// ParseElement reads an element: an address or port as a prefix of its full length (see sdk.PortAddr).
func ParseElement(kind, text string) (netip.Prefix, error) {
	if kind == sdk.SetPorts {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return netip.Prefix{}, fmt.Errorf("%q is not a port from 0 to 65535", text)
		}
		return netip.PrefixFrom(sdk.PortAddr(uint16(port)), 32), nil
	}
	a, err := netip.ParseAddr(text)
	if err == nil && a.Zone() == "" && !a.Is4In6() {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	if kind == sdk.SetAddresses {
		return netip.Prefix{}, fmt.Errorf("%q is not an IPv4 or IPv6 address; a set of type prefixes can have prefixes", text)
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%q is neither an IP address nor a prefix such as 192.0.2.0/24 or 2001:db8::/32",
			text)
	}
	if p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("%q has bits set beyond its length; did you mean %s?", text, p.Masked())
	}
	return p, nil
}

func elementText(kind string, p netip.Prefix) string {
	switch kind {
	case sdk.SetPorts:
		four := p.Addr().As4()
		return strconv.Itoa(int(four[2])<<8 | int(four[3]))
	case sdk.SetAddresses:
		return p.Addr().String()
	}
	return p.String()
}

// ChangeElements returns the sorted elements with those of add and without those of remove, and the resulting additions
// and removals.
func ChangeElements(elements, add, remove []string) (next, added, removed []string) {
	has := func(e string) bool { _, found := slices.BinarySearch(elements, e); return found }
	gone := map[string]bool{}
	for _, e := range remove {
		if has(e) && !gone[e] {
			gone[e] = true
		}
	}
	for _, e := range add {
		if delete(gone, e); !has(e) {
			added = append(added, e)
		}
	}
	slices.Sort(added)
	added, removed = slices.Compact(added), slices.Sorted(maps.Keys(gone))
	next = make([]string, 0, len(elements)+len(added))
	changes := slices.Concat(added, removed)
	slices.Sort(changes)
	for _, e := range changes { // elements between two changes are copied at once
		at, found := slices.BinarySearch(elements, e)
		next, elements = append(next, elements[:at]...), elements[at:]
		if found {
			elements = elements[1:]
		} else {
			next = append(next, e)
		}
	}
	return append(next, elements...), added, removed
}
