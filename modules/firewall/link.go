// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/kerb-edge/kerb/sdk"
)

const (
	etherTypeARP  = 0x0806
	minEtherType  = 0x600 // below it is the length of an IEEE 802.3 frame
	maxEtherTypes = 8     // mirrored in link.h: ether_types0, ether_types1
)

// parsed are the EtherTypes that the parser looks into: no matter of nonIP.
var parsed = map[uint16]string{0x0800: "IPv4", 0x86dd: "IPv6", 0x8100: "a VLAN tag", 0x88a8: "a VLAN tag",
	0x9100: "a VLAN tag", 0x9200: "a VLAN tag"}

// nonIP says which frames pass that are neither IPv4 nor IPv6.
type nonIP struct {
	all   bool
	types []uint16
}

// UnmarshalJSON reads arp, allow, deny or a list of EtherTypes.
func (n *nonIP) UnmarshalJSON(text []byte) error {
	*n = nonIP{}
	switch string(text) {
	case `"allow"`:
		n.all = true
		return nil
	case `"deny"`:
		return nil
	case `"arp"`:
		n.types = []uint16{etherTypeARP}
		return nil
	}
	var list []json.RawMessage
	if err := json.Unmarshal(text, &list); err != nil {
		return fmt.Errorf("nonIP: %s is neither arp, allow, deny nor a list of EtherTypes", text)
	}
	if len(list) > maxEtherTypes {
		return fmt.Errorf("nonIP: %d EtherTypes; at most %d are possible", len(list), maxEtherTypes)
	}
	for i, raw := range list {
		t, err := parseEtherType(strings.Trim(string(raw), `"`))
		if err != nil {
			return fmt.Errorf("nonIP[%d]: %w", i, err)
		}
		n.types = append(n.types, t)
	}
	return nil
}

// parseEtherType accepts "arp" or a number from 0x0600; lower values are lengths (IEEE 802.3). Types that the parser
// understands are refused: rules decide on these.
func parseEtherType(text string) (uint16, error) {
	if text == "arp" {
		return etherTypeARP, nil
	}
	n, err := strconv.ParseUint(text, 0, 16)
	if err != nil || n < minEtherType {
		return 0, fmt.Errorf("%s is neither arp nor an EtherType from 0x0600 to 0xffff", text)
	}
	if what, ok := parsed[uint16(n)]; ok {
		return 0, fmt.Errorf("%s is %s, which the rules decide on", text, what)
	}
	return uint16(n), nil
}

// words are the EtherTypes as the data plane has them.
func (n nonIP) words() (out [2]uint64) {
	for i, t := range n.types {
		out[i/4] |= uint64(t) << (16 * (i % 4))
	}
	return
}

// antiSpoof reports whether services may send from their own addresses only.
func (c *config) antiSpoof() bool {
	if c.AntiSpoof != nil {
		return *c.AntiSpoof
	}
	return !bool(c.DefaultPolicy.Egress)
}

func (c *config) parseAddresses() error {
	for i, text := range c.Addresses {
		p, err := parsePrefix(text)
		if err == nil && text == "" {
			err = fmt.Errorf("an address or a prefix is missing")
		}
		if err != nil {
			return &sdk.ConfigError{Field: fmt.Sprintf("addresses[%d]", i), Reason: err.Error()}
		}
		c.addresses = append(c.addresses, p)
	}
	return nil
}
