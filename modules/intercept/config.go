// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

// config is the module's config as kerb.yaml describes it.
type config struct {
	Classes []*class `json:"classes"`
}

// class is an entry of it, and after check what is passed to the data plane.
type class struct {
	Name      string          `json:"name"`
	Direction string          `json:"direction"`
	Match     match           `json:"match"`
	Action    string          `json:"action"`
	Priority  uint32          `json:"priority"`
	MaxBytes  uint32          `json:"maxBytes"`
	Ring      string          `json:"ring"`
	Deadline  duration        `json:"deadline"`
	Watchdog  duration        `json:"watchdog"`
	Delivery  string          `json:"delivery"`
	Answer    json.RawMessage `json:"answer"`
	Fallback  json.RawMessage `json:"fallback"`
	Forward   *forward        `json:"forward"`

	slot     int // of its ring, or noRing
	ringSize uint32
	ifindex  uint32 // that forward.interface has, 0: none; atomic
}

type match struct {
	Family       int         `json:"family"` // 4, 6, or 0
	Protocol     protocol    `json:"protocol"`
	Ports        []portRange `json:"ports"`
	SourcePorts  []portRange `json:"sourcePorts"`
	Destinations []prefix    `json:"destinations"`
	Sources      []prefix    `json:"sources"`
	Payload      []condition `json:"payload"`
	Label        uint16      `json:"label"` // of a module before; 0: any or none
}

// condition is on bytes of the payload.
type condition struct {
	Offset uint16 `json:"offset"`
	Bytes  hexed  `json:"bytes"`
	Mask   hexed  `json:"mask"`
}

const (
	defaultRing = 1 << 20
	minRing     = 64 << 10 // holds three of the largest records
	maxRing     = 64 << 20
)

// parseConfig assigns a ring to each class that delivers packets, in the order of the classes. Names must be unique,
// and at most maxRings classes can have a ring.
func parseConfig(raw json.RawMessage) (*config, error) {
	c, err := sdk.DecodeConfig(raw, &config{})
	if err != nil {
		return nil, err
	}
	if len(c.Classes) > maxClasses {
		return nil, &sdk.ConfigError{Field: "classes", Reason: fmt.Sprintf("%d classes; at most %d are possible",
			len(c.Classes), maxClasses)}
	}
	names := map[string]bool{}
	rings := 0
	for i, one := range c.Classes {
		if names[one.Name] {
			return nil, within(i, &sdk.ConfigError{Field: "name", Reason: fmt.Sprintf("%q is another class's too", one.Name)})
		}
		names[one.Name] = true
		if err := one.check(); err != nil {
			return nil, within(i, err)
		}
		if one.slot = noRing; one.delivers() {
			one.slot = rings
			rings++
		}
		if rings > maxRings {
			return nil, within(i,
				&sdk.ConfigError{Field: "action",
					Reason: fmt.Sprintf("more than %d classes can be opened by programs: set action pass, drop, mark or answer "+
						"without a ring on one of them", maxRings)})
		}
	}
	return c, nil
}

// within puts the place of a class before the field of an error.
func within(i int, err error) error { return sdk.PrefixField(fmt.Sprintf("classes[%d]", i), err) }

// UnmarshalJSON reads a class over its defaults.
func (c *class) UnmarshalJSON(text []byte) error {
	type plain class
	p, err := sdk.DecodeConfig(text, &plain{Direction: "ingress", Action: "copy", MaxBytes: maxFrame,
		Watchdog: duration(100 * time.Millisecond), Delivery: "auto"})
	if err == nil {
		*c = class(*p)
	}
	return err
}

// delivers reports whether programs can open the class: it is delivered, or could be at the word of a control message.
func (c *class) delivers() bool { return c.Action == "copy" || c.Action == "steal" || c.Ring != "" }

// check compares the fields of a class with each other, which its schema cannot do.
func (c *class) check() error {
	wrong := sdk.ConfigErrorf
	if !slices.Contains(actions[:], c.Action) {
		return wrong("action", "%q is not one of %s", c.Action, strings.Join(actions[:], ", "))
	}
	if c.MaxBytes < 64 || c.MaxBytes > maxFrame {
		return wrong("maxBytes", "has to be 64 to %d", maxFrame)
	}
	if c.Watchdog < duration(time.Millisecond) {
		return wrong("watchdog", "has to be 1ms or more: a program cannot read faster in every case")
	}
	if (c.Action == "answer") != (c.Answer != nil) {
		return wrong("answer", "required with action answer, and only there: it names the application")
	}
	if c.Fallback != nil && (c.Action != "steal" || c.Deadline < duration(time.Microsecond)) {
		return wrong("fallback", "requires action steal and a deadline of 1us or more: it answers when the program does not "+
			"read in time")
	}
	if c.Fallback != nil && c.Delivery == "afxdp" {
		return wrong("delivery", "has to be auto or ringbuf with fallback: the kernel does not see what a program reads "+
			"from AF_XDP sockets")
	}
	var err error
	if c.ringSize, err = ringBytes(c.Ring); err != nil {
		return wrong("ring", "%v", err)
	}
	if err := c.Match.check(); err != nil {
		return err
	}
	return c.checkForward()
}

// ringBytes reads a size such as 1Mi.
func ringBytes(text string) (uint32, error) {
	if text == "" {
		return defaultRing, nil
	}
	number, shift := text, 0
	if n, ok := strings.CutSuffix(text, "Ki"); ok {
		number, shift = n, 10
	} else if n, ok := strings.CutSuffix(text, "Mi"); ok {
		number, shift = n, 20
	}
	n, err := strconv.ParseUint(number, 10, 32)
	if n <<= shift; err != nil || n < minRing || n > maxRing || bits.OnesCount64(n) != 1 {
		return 0, fmt.Errorf("%q is not a power of two from 64Ki to 64Mi", text)
	}
	return uint32(n), nil
}

// check refuses what no packet can match, such as ports of a protocol without ports, and more conditions than the data
// plane has room for: such a class would look as if nothing arrived.
func (m *match) check() error {
	for field, n := range map[string]int{"ports": len(m.Ports), "sourcePorts": len(m.SourcePorts),
		"destinations": len(m.Destinations), "sources": len(m.Sources)} {
		if n > listLength {
			return &sdk.ConfigError{Field: "match." + field,
				Reason: fmt.Sprintf("%d entries; at most %d are possible: make another class", n, listLength)}
		}
	}
	if len(m.Ports)+len(m.SourcePorts) > 0 && !m.Protocol.hasPorts() {
		return &sdk.ConfigError{Field: "match.protocol", Reason: "must be udp or tcp when ports are set"}
	}
	if m.Family != 0 && m.Family != 4 && m.Family != 6 {
		return &sdk.ConfigError{Field: "match.family", Reason: "has to be 4 or 6, or absent"}
	}
	if err := m.checkFamily(); err != nil {
		return err
	}
	words := 0
	for i, c := range m.Payload {
		if len(c.Bytes) == 0 || c.Mask != nil && len(c.Mask) != len(c.Bytes) {
			return &sdk.ConfigError{Field: fmt.Sprintf("match.payload[%d]", i), Reason: "bytes are hexadecimal digits, and " +
				"mask has as many"}
		}
		if int(c.Offset)+len(c.Bytes) > maxFrame {
			return &sdk.ConfigError{Field: fmt.Sprintf("match.payload[%d].offset", i),
				Reason: fmt.Sprintf("is beyond the %d bytes that are examined", maxFrame)}
		}
		words += (len(c.Bytes) + wordBytes - 1) / wordBytes
	}
	if words > conditions {
		return &sdk.ConfigError{Field: "match.payload",
			Reason: fmt.Sprintf("takes %d pieces of %d bytes; at most %d are possible", words, wordBytes, conditions)}
	}
	return nil
}

// checkFamily checks that all addresses are of one family: use two classes for both.
func (m *match) checkFamily() error {
	for _, p := range slices.Concat(m.Destinations, m.Sources) {
		family := 6
		if p.Addr().Is4() {
			family = 4
		}
		if m.Family == 0 {
			m.Family = family
		}
		if m.Family != family {
			return &sdk.ConfigError{Field: "match",
				Reason: fmt.Sprintf("%s is not an IPv%d address like the others: use one class per IP version", p, m.Family)}
		}
	}
	return nil
}

// duration is written as 100us.
type duration time.Duration

func (d *duration) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	v, err := time.ParseDuration(s)
	if err != nil || v < 0 || v > time.Hour {
		return fmt.Errorf("%q is not a duration up to 1h; write for example 100us", s)
	}
	*d = duration(v)
	return nil
}

// protocol is any, or one by name or number.
type protocol struct {
	set    bool
	number uint8
}

var protocols = map[string]uint8{"icmp": 1, "tcp": 6, "udp": 17, "icmpv6": 58, "sctp": 132}

// UnmarshalJSON accepts an IP protocol number or one of the names; "any" is the same as no protocol.
func (p *protocol) UnmarshalJSON(text []byte) error {
	var n uint8
	if json.Unmarshal(text, &n) == nil {
		*p = protocol{true, n}
		return nil
	}
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("protocol %s is neither a number nor a name", text)
	}
	if s == "any" {
		*p = protocol{}
		return nil
	}
	n, ok := protocols[s]
	if !ok {
		return fmt.Errorf("protocol %q is neither a number nor any, udp, tcp, icmp, icmpv6 or sctp", s)
	}
	*p = protocol{true, n}
	return nil
}

func (p protocol) hasPorts() bool { return p.set && (p.number == 6 || p.number == 17) }

// portRange is 80 or "80-90".
type portRange rangeEntry

// UnmarshalJSON accepts one port or an inclusive range such as "8000-8010", with or without quotes.
func (r *portRange) UnmarshalJSON(text []byte) error {
	first, last, isRange := strings.Cut(strings.Trim(string(text), `"`), "-")
	if !isRange {
		last = first
	}
	a, err1 := strconv.ParseUint(first, 10, 16)
	b, err2 := strconv.ParseUint(last, 10, 16)
	if err1 != nil || err2 != nil || a > b {
		return fmt.Errorf("%s is neither a port nor a range such as \"8000-8010\"", text)
	}
	*r = portRange{uint16(a), uint16(b)}
	return nil
}

// prefix is an address or a network.
type prefix struct{ netip.Prefix }

func (p *prefix) UnmarshalJSON(text []byte) error {
	s := strings.Trim(string(text), `"`)
	n, err := sdk.ParsePrefix(s)
	if err != nil || n.Addr().Is4In6() {
		return fmt.Errorf("%s is neither an address nor a network such as 192.0.2.0/24", text)
	}
	p.Prefix = n.Masked()
	return nil
}

// hexed are bytes as hexadecimal digits.
type hexed []byte

func (h *hexed) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	b, err := hex.DecodeString(s)
	if err != nil {
		return fmt.Errorf("%q are no hexadecimal digits such as 4c4f47", s)
	}
	*h = b
	return nil
}
