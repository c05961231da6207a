// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

// MaxRules is how many rules a configuration may have.
const MaxRules = 10000

// config is the module's config as kerb.yaml describes it. Absent values have the defaults of parseConfig.
type config struct {
	DefaultPolicy struct {
		Ingress action `json:"ingress"`
		Egress  action `json:"egress"`
	} `json:"defaultPolicy"`
	Mode             string       `json:"mode"`
	Rules            []ruleConfig `json:"rules"`
	State            stateConfig  `json:"state"`
	Fragments        string       `json:"fragments"`
	ExtensionHeaders action       `json:"extensionHeaders"`
	Malformed        action       `json:"malformed"`
	NonIP            nonIP        `json:"nonIP"`
	LinkControl      string       `json:"linkControl"`
	AntiSpoof        *bool        `json:"antiSpoof"`
	Addresses        []string     `json:"addresses"`

	addresses []netip.Prefix
}

type ruleConfig struct {
	Name      string          `json:"name"`
	Action    string          `json:"action"`
	Direction string          `json:"direction"`
	Protocol  json.RawMessage `json:"protocol"`
	Src       json.RawMessage `json:"src"`
	Dst       json.RawMessage `json:"dst"`
	SrcPort   json.RawMessage `json:"srcPort"`
	DstPort   json.RawMessage `json:"dstPort"`
	ICMPType  *int            `json:"icmpType"`
	Limit     *limitConfig    `json:"limit"`
	Log       json.RawMessage `json:"log"`
}

type stateConfig struct {
	Enabled        bool     `json:"enabled"`
	MaxConnections uint32   `json:"maxConnections"`
	WhenFull       string   `json:"whenFull"`
	Pickup         duration `json:"pickup"`
	Timeouts       timeouts `json:"timeouts"`

	assured duration // how long an answered flow must last to be established; differs in tests only
}

type timeouts struct {
	TCPSyn         duration `json:"tcpSyn"`
	TCPEstablished duration `json:"tcpEstablished"`
	TCPHalfClosed  duration `json:"tcpHalfClosed"`
	TCPClosing     duration `json:"tcpClosing"`
	UDP            duration `json:"udp"`
	UDPStream      duration `json:"udpStream"`
	ICMP           duration `json:"icmp"`
}

// action is allow (true) or deny.
type action bool

func (a *action) UnmarshalJSON(text []byte) error {
	switch string(text) {
	case `"allow"`:
		*a = true
	case `"deny"`:
		*a = false
	default:
		return fmt.Errorf("%s is neither allow nor deny", text)
	}
	return nil
}

func (a action) String() string {
	if a {
		return "allow"
	}
	return "deny"
}

// Actions of rules.
const (
	actionAllow  = "allow"
	actionDeny   = "deny"
	actionReject = "reject"
)

type duration = sdk.Duration

// parseConfig reads a config over the defaults.
func parseConfig(raw json.RawMessage) (*config, error) {
	c := &config{Mode: modeEnforce, Fragments: "track", ExtensionHeaders: true, LinkControl: "allow",
		NonIP: nonIP{types: []uint16{etherTypeARP}}}
	c.DefaultPolicy.Egress = true
	c.State = stateConfig{Enabled: true, MaxConnections: 65536, WhenFull: "stateless", Pickup: duration(5 * time.Minute),
		assured: duration(assuredFrom)}
	c.State.Timeouts = timeouts{
		TCPSyn: duration(time.Minute), TCPEstablished: duration(24 * time.Hour), TCPHalfClosed: duration(time.Hour),
		TCPClosing: duration(time.Minute),
		UDP:        duration(30 * time.Second), UDPStream: duration(3 * time.Minute), ICMP: duration(30 * time.Second)}
	return sdk.DecodeConfig(raw, c, (*config).check)
}

const minTimeout = duration(3 * time.Second)

// check checks what the JSON schema cannot express. Timeouts have a lower bound because the data plane updates a
// connection's time of use only once a second.
func (c *config) check() error {
	if err := c.parseAddresses(); err != nil {
		return err
	}
	if len(c.Rules) > MaxRules {
		return &sdk.ConfigError{Field: "rules", Reason: fmt.Sprintf("%d rules; at most %d are possible", len(c.Rules),
			MaxRules)}
	}
	for _, t := range []struct {
		field string
		value duration
	}{
		{"tcpSyn", c.State.Timeouts.TCPSyn}, {"tcpEstablished", c.State.Timeouts.TCPEstablished},
		{"tcpHalfClosed", c.State.Timeouts.TCPHalfClosed}, {"tcpClosing", c.State.Timeouts.TCPClosing},
		{"udp", c.State.Timeouts.UDP},
		{"udpStream", c.State.Timeouts.UDPStream}, {"icmp", c.State.Timeouts.ICMP},
	} {
		if t.value < minTimeout {
			return &sdk.ConfigError{Field: "state.timeouts." + t.field,
				Reason: fmt.Sprintf("%v is too short: the data plane notes once a second "+
					"that a connection is in use, and would drop packets of busy ones; set at least %v", time.Duration(t.value),
					time.Duration(minTimeout))}
		}
	}
	if c.State.Pickup < 0 {
		return &sdk.ConfigError{Field: "state.pickup", Reason: "must not be negative; 0s picks up nothing from outside"}
	}
	if c.State.MaxConnections == 0 {
		return &sdk.ConfigError{Field: "state.maxConnections", Reason: "must be at least 1; to track nothing set " +
			"state.enabled to false"}
	}
	return nil
}

// IANA numbers of the protocols with names.
const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
	protoAny    = -1
)

var protoNames = map[int]string{protoICMP: "icmp", protoTCP: "tcp", protoUDP: "udp", protoICMPv6: "icmpv6",
	protoAny: "any"}

// Ports is an inclusive range in host byte order.
type Ports struct{ Lo, Hi uint16 }

var anyPort = Ports{0, 65535}

func (p Ports) String() string {
	if p.Lo == p.Hi {
		return strconv.Itoa(int(p.Lo))
	}
	return fmt.Sprintf("%d-%d", p.Lo, p.Hi)
}

// Rule is a rule in normal form.
type Rule struct {
	Name            string
	Allow           bool
	Reject          bool // else denied packets are dropped silently
	Egress, Ingress bool
	Proto           int          // IANA number, -1: any
	Src, Dst        netip.Prefix // masked; invalid: any
	SrcPort         Ports
	DstPort         Ports
	ICMPType        int               // -1: any
	Sets            [setFields]setRef // in addition
	Limit           Limit
	Log             Limit // of reports; unset: none
}

// family4 and family6 report which packets the rule can match.
func (r *Rule) family4() bool { return r.Proto != protoICMPv6 && !isIP6(r.Src) && !isIP6(r.Dst) }
func (r *Rule) family6() bool { return r.Proto != protoICMP && !isIP4(r.Src) && !isIP4(r.Dst) }

func isIP4(p netip.Prefix) bool { return p.IsValid() && p.Addr().Is4() }
func isIP6(p netip.Prefix) bool { return p.IsValid() && p.Addr().Is6() }

func (r *Rule) action() string {
	switch {
	case r.Allow:
		return actionAllow
	case r.Reject:
		return actionReject
	}
	return actionDeny
}

func (r *Rule) direction() string {
	switch {
	case r.Egress && r.Ingress:
		return "both"
	case r.Egress:
		return "egress"
	}
	return "ingress"
}

func (r *Rule) protocol() string {
	if name, ok := protoNames[r.Proto]; ok {
		return name
	}
	return strconv.Itoa(r.Proto)
}

// String is the rule in words; the name is not part of it.
func (r *Rule) String() string {
	if r.Log.isSet() {
		return fmt.Sprintf("%s log %v", r.text(), r.Log)
	}
	return r.text()
}

// text is what the rule does to packets in words, equal for rules that do the same.
func (r *Rule) text() string {
	s := r.action() + " " + r.direction() + " " + r.protocol()
	if r.Src.IsValid() {
		s += " from " + r.Src.String()
	}
	if r.SrcPort != anyPort {
		s += " port " + r.SrcPort.String()
	}
	if r.Dst.IsValid() {
		s += " to " + r.Dst.String()
	}
	if r.DstPort != anyPort {
		s += " port " + r.DstPort.String()
	}
	if r.ICMPType >= 0 {
		s += " type " + strconv.Itoa(r.ICMPType)
	}
	for field, ref := range r.Sets {
		if ref != (setRef{}) {
			s += fmt.Sprintf(" with %s in %s", setFieldNames[field], ref)
		}
	}
	if r.Limit.isSet() {
		s += fmt.Sprintf(" limit %v", r.Limit)
	}
	return s
}

// parseRules turns the rules of a config into normal form. Errors name the rule and the field.
func parseRules(in []ruleConfig) ([]Rule, error) {
	out := make([]Rule, len(in))
	names := map[string]int{}
	for i := range in {
		fail := func(field, format string, args ...any) error {
			return &sdk.ConfigError{Field: fmt.Sprintf("rules[%d].%s", i, field), Reason: ruleLabel(&in[i]) +
				fmt.Sprintf(format, args...)}
		}
		if err := parseRule(&in[i], &out[i], fail); err != nil {
			return nil, err
		}
		if name := in[i].Name; name != "" {
			if first, taken := names[name]; taken {
				return nil, fail("name", "rules[%d] has this name too; names are unique", first)
			}
			names[name] = i
		}
	}
	return out, checkSetRules(out)
}

func ruleLabel(r *ruleConfig) string {
	if r.Name == "" {
		return ""
	}
	return fmt.Sprintf("rule %q: ", r.Name)
}

// failure makes the error of a field of the rule that is being read.
type failure func(field, format string, args ...any) error

// parseRule reads one rule. Of a field that refers to a set, out.Sets has the set, and the field itself matches
// everything.
func parseRule(in *ruleConfig, out *Rule, fail failure) error {
	*out = Rule{Name: in.Name, Allow: in.Action == actionAllow, Reject: in.Action == actionReject, SrcPort: anyPort,
		DstPort: anyPort, ICMPType: -1}
	if !out.Allow && !out.Reject && in.Action != actionDeny {
		return fail("action", "%q is not one of allow, deny, reject", in.Action)
	}
	switch in.Direction {
	case "", "both":
		out.Egress, out.Ingress = true, true
	case "egress":
		out.Egress = true
	case "ingress":
		out.Ingress = true
	default:
		return fail("direction", "%q is not one of ingress, egress, both", in.Direction)
	}
	var err error
	if out.Proto, err = parseProto(in.Protocol); err != nil {
		return fail("protocol", "%v", err)
	}
	if out.Src, err = parseAddress(in.Src, out, setSrc); err != nil {
		return fail("src", "%v", err)
	}
	if out.Dst, err = parseAddress(in.Dst, out, setDst); err != nil {
		return fail("dst", "%v", err)
	}
	if out.SrcPort, err = parsePortSet(in.SrcPort, out, setSrcPort); err != nil {
		return fail("srcPort", "%v", err)
	}
	if out.DstPort, err = parsePortSet(in.DstPort, out, setDstPort); err != nil {
		return fail("dstPort", "%v", err)
	}
	if in.ICMPType != nil {
		out.ICMPType = *in.ICMPType
	}
	if in.Limit != nil {
		if out.Limit, err = in.Limit.parse("limit", fail); err != nil {
			return err
		}
	}
	if out.Log, err = parseLog(in.Log, fail); err != nil {
		return err
	}
	return checkRule(out, fail)
}

// checkRule refuses rules that can never match or do not mean what they seem to.
func checkRule(r *Rule, fail failure) error {
	if r.Src.IsValid() && r.Dst.IsValid() && r.Src.Addr().Is4() != r.Dst.Addr().Is4() {
		return fail("dst", "%s and src %s are of different IP versions", r.Dst, r.Src)
	}
	for _, a := range []struct {
		field  string
		prefix netip.Prefix
	}{{"src", r.Src}, {"dst", r.Dst}} {
		if r.Proto == protoICMP && isIP6(a.prefix) {
			return fail(a.field, "%s is IPv6, protocol icmp is IPv4; use icmpv6", a.prefix)
		}
		if r.Proto == protoICMPv6 && isIP4(a.prefix) {
			return fail(a.field, "%s is IPv4, protocol icmpv6 is IPv6; use icmp", a.prefix)
		}
	}
	ports := r.Proto == protoTCP || r.Proto == protoUDP
	if (r.SrcPort != anyPort || r.Sets[setSrcPort] != setRef{}) && !ports {
		return fail("srcPort", "protocol %s has no ports; use tcp or udp", r.protocol())
	}
	if (r.DstPort != anyPort || r.Sets[setDstPort] != setRef{}) && !ports {
		return fail("dstPort", "protocol %s has no ports; use tcp or udp", r.protocol())
	}
	if r.ICMPType < -1 || r.ICMPType > 255 {
		return fail("icmpType", "%d is not between 0 and 255", r.ICMPType)
	}
	if r.Limit.isSet() && !r.Allow && !r.Reject {
		return fail("limit", "action deny has no limit, as packets over a limit are dropped; use allow or reject")
	}
	if r.ICMPType >= 0 && r.Proto != protoICMP && r.Proto != protoICMPv6 {
		return fail("icmpType", "protocol %s has no ICMP types; use icmp or icmpv6", r.protocol())
	}
	return nil
}

// parseProto returns the IP protocol number, or protoAny if the field is missing, null or "any".
func parseProto(raw json.RawMessage) (int, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return protoAny, nil
	}
	text := strings.Trim(string(raw), `"`)
	for number, name := range protoNames {
		if text == name {
			return number, nil
		}
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > 255 {
		return 0, fmt.Errorf("%s is neither tcp, udp, icmp, icmpv6, any nor a number from 0 to 255", raw)
	}
	return n, nil
}

// parsePrefix accepts an address or a prefix; an empty text gives the invalid prefix, which matches all. Host bits and
// IPv4-mapped IPv6 are refused, because they usually are typing errors.
func parsePrefix(text string) (netip.Prefix, error) {
	if text == "" {
		return netip.Prefix{}, nil
	}
	p, err := sdk.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is neither an IP address nor a prefix such as 10.0.0.0/8 or 2001:db8::/32",
			text)
	}
	if p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%q is an IPv4 address in IPv6 form; write it as IPv4", text)
	}
	if p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("%q has bits set beyond its length; did you mean %s?", text, p.Masked())
	}
	return p, nil
}

// parsePorts accepts a port or an inclusive range, as number or text; a missing field matches all ports.
func parsePorts(raw json.RawMessage) (Ports, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return anyPort, nil
	}
	text := strings.Trim(string(raw), `"`)
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	lo, err1 := strconv.ParseUint(first, 10, 16)
	hi, err2 := strconv.ParseUint(last, 10, 16)
	if err1 != nil || err2 != nil {
		return Ports{}, fmt.Errorf("%q is neither a port from 0 to 65535 nor a range such as 1000-2000", text)
	}
	if lo > hi {
		return Ports{}, fmt.Errorf("%q starts after its end; did you mean %d-%d?", text, hi, lo)
	}
	return Ports{uint16(lo), uint16(hi)}, nil
}
