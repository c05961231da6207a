// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"github.com/kerb-edge/kerb/sdk"
)

// maxSetRules is how many rules with sets a direction has at most in a family. Mirrored in set.h.
const maxSetRules = 64

const rootSets = 1 << 30 // of a root: the rest is the address of the first rule with sets

// Fields that may refer to sets, in the order of enum fw_set_field.
const (
	setSrc = iota
	setDst
	setSrcPort
	setDstPort
	setFields
)

var setFieldNames = [setFields]string{"src", "dst", "srcPort", "dstPort"}

// setRef is the set of a field: a named one, or the addresses of services. The zero value is none.
type setRef struct {
	Set      string `json:"set"`
	Services string `json:"services"`
}

func (r setRef) id() uint64 {
	if r == (setRef{}) {
		return 0
	}
	return sdk.SetReference{Set: r.Set, Services: r.Services}.ID()
}

func (r setRef) String() string {
	if r.Services != "" {
		return fmt.Sprintf("services %q", r.Services)
	}
	return "set " + r.Set
}

// parseSet reads the value of a field that is an object. ok is false for any other.
func parseSet(raw json.RawMessage, field int) (r setRef, ok bool, err error) {
	if len(raw) == 0 || raw[0] != '{' {
		return r, false, nil
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, true, err
	}
	if r.Services != "" && field >= setSrcPort {
		return r, true, errors.New("services have addresses: use src or dst")
	}
	if (r.Set == "") == (r.Services == "") {
		return r, true, errors.New("needs exactly one of set and services")
	}
	return r, true, nil
}

// parseAddress reads src or dst.
func parseAddress(raw json.RawMessage, out *Rule, field int) (netip.Prefix, error) {
	ref, isSet, err := parseSet(raw, field)
	if isSet || err != nil || len(raw) == 0 || string(raw) == "null" {
		out.Sets[field] = ref
		return netip.Prefix{}, err
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return netip.Prefix{}, fmt.Errorf("%s is neither an address, a prefix, {set: NAME} nor {services: SELECTOR}", raw)
	}
	return parsePrefix(text)
}

// parsePortSet reads srcPort or dstPort.
func parsePortSet(raw json.RawMessage, out *Rule, field int) (Ports, error) {
	ref, isSet, err := parseSet(raw, field)
	if isSet || err != nil {
		out.Sets[field] = ref
		return anyPort, err
	}
	return parsePorts(raw)
}

// hasSets reports whether the rule refers to sets.
func (r *Rule) hasSets() bool { return r.Sets != [setFields]setRef{} }

// setReferences lists the sets that rules refer to.
func setReferences(rules []Rule) (out []sdk.SetReference) {
	for i := range rules {
		for field, ref := range rules[i].Sets {
			if ref == (setRef{}) {
				continue
			}
			types := []string{sdk.SetAddresses, sdk.SetPrefixes}
			if field >= setSrcPort {
				types = []string{sdk.SetPorts}
			}
			out = append(out, sdk.SetReference{Field: fmt.Sprintf("rules[%d].%s", i, setFieldNames[field]), Set: ref.Set,
				Services: ref.Services, Types: types})
		}
	}
	return out
}

// checkSetRules limits how many rules with sets a packet is compared with.
func checkSetRules(rules []Rule) error {
	var counts [2][2]int // by direction and family
	for i := range rules {
		r := &rules[i]
		if !r.hasSets() {
			continue
		}
		for d, in := range []bool{r.Egress, r.Ingress} {
			for v, is := range []bool{r.family4(), r.family6()} {
				if in && is {
					counts[d][v]++
				}
				if counts[d][v] > maxSetRules {
					return &sdk.ConfigError{Field: fmt.Sprintf("rules[%d]", i), Reason: fmt.Sprintf("more than %d rules with sets "+
						"in a direction; put the elements of several sets with the same action into one", maxSetRules)}
				}
			}
		}
	}
	return nil
}

// addSets lays out the rules with sets of a list, by number, followed by the search at the root rest. It returns the
// root.
func (t *tree) addSets(list []int32, rules func(id int32) *Rule, rest uint32) uint32 {
	root := rest
	for i := len(list) - 1; i >= 0; i-- {
		next := uint32(0)
		if i < len(list)-1 {
			next = root &^ rootSets
		}
		at := t.room(&t.rowPage, blockWords)
		words := t.chunks[at/chunkSize][at%chunkSize:]
		for field, ref := range rules(list[i]).Sets {
			words[field] = ref.id()
		}
		words[setFields] = uint64(next)<<32 | uint64(list[i])
		words[setFields+1] = uint64(rest)
		root = at | rootSets
	}
	return root
}

// members reports whether a set has an address or port.
type members func(setRef, netip.Addr) bool

// has reports whether the packet is in the sets of the rule.
func (m members) has(r *Rule, p *Packet) bool {
	elements := [setFields]netip.Addr{p.Src, p.Dst, sdk.PortAddr(p.SrcPort), sdk.PortAddr(p.DstPort)}
	for field, ref := range r.Sets {
		if ref != (setRef{}) && !m(ref, elements[field]) {
			return false
		}
	}
	return true
}

// membersOf reads sets from the maps that packets see.
func membersOf(maps sdk.Maps) members {
	return func(ref setRef, a netip.Addr) bool {
		has, err := maps.SetContains(ref.id(), a)
		return err == nil && has
	}
}
