// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

// Handler serves:
//
//	GET  rules          the rules in order with their hits, and what was decided without a rule
//	GET  connections    tracked connections; ?limit=n, 1000 by default
//	POST explain        which rule decides on a packet
//	GET  log            packets of rules with log: the last ones, then those to come, a JSON object a line
func (g *running) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /rules", func(w http.ResponseWriter, _ *http.Request) {
		sdk.Answer(w)(g.listRules())
	})
	mux.HandleFunc("GET /connections", func(w http.ResponseWriter, r *http.Request) {
		limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
		if err != nil || limit < 1 {
			limit = defaultLimit
		}
		sdk.Answer(w)(g.listConnections(min(limit, maxLimit)))
	})
	mux.HandleFunc("GET /log", g.serveLog)
	mux.HandleFunc("POST /explain", func(w http.ResponseWriter, r *http.Request) {
		var q ExplainRequest
		dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&q); err != nil {
			sdk.Answer(w)(nil, &sdk.ConfigError{Field: "packet", Reason: err.Error()})
			return
		}
		sdk.Answer(w)(g.Explain(&q))
	})
	return mux
}

const (
	defaultLimit = 1000
	maxLimit     = 100000
)

// RuleReport is a rule with its counter.
type RuleReport struct {
	Index     int    `json:"index"`
	Name      string `json:"name,omitempty"`
	Rule      string `json:"rule"`
	Action    string `json:"action"`
	Direction string `json:"direction"`
	Slot      uint32 `json:"slot"`
	Hits
	Limited    *uint64 `json:"limited,omitempty"`    // packets over the limit, with one
	Suppressed *uint64 `json:"suppressed,omitempty"` // packets that were not reported, with log
}

// RulesReport is the answer of GET rules. Hits count packets that the rules were asked about; those of connections that
// are tracked already are in Other.
type RulesReport struct {
	Mode          string            `json:"mode"`
	DefaultPolicy map[string]string `json:"defaultPolicy"`
	Rules         []RuleReport      `json:"rules"`
	Other         map[string]Hits   `json:"other"`
	WouldDrop     map[string]Hits   `json:"wouldDrop,omitempty"` // by reason: what audit mode has let pass
}

// otherSlots names what decides alongside rules.
var otherSlots = map[uint32]string{
	slotEgress: "default_egress", slotIngress: "default_ingress", slotTracked: "tracked", slotRelated: "related",
	slotLink: "link_control", slotNonIP: "non_ip", slotMalformed: "malformed", slotExtension: "extension_header",
	slotFragment: "fragment_dropped", slotFragmentNext: "fragment_passed", slotFull: "table_full", slotRevoked: "revoked",
	slotSpoofed: "spoofed", slotOffload: "bad_offload", slotLinkDenied: "link_control_denied",
	slotInvalid: "invalid_tcp",
}

// NoteName implements sdk.NoteNamer: of a slot, what listRules and otherHits say of it.
func (g *running) NoteName(_ string, slot uint64) string {
	i := slices.Index(g.slots, uint32(slot))
	if i < 0 {
		return otherSlots[uint32(slot)]
	}
	return cmp.Or(g.rules[i].Name, fmt.Sprintf("rules[%d]", i))
}

// listRules returns the rules in the order of the configuration with their hits. Limited and Suppressed are set only
// for rules with a limit or a log.
func (g *running) listRules() (*RulesReport, error) {
	hits, err := readHits(g.live.Maps, mapHits, g.slots)
	if err != nil {
		return nil, err
	}
	other, err := otherHits(g.live.Maps)
	if err != nil {
		return nil, err
	}
	would, err := wouldDrop(g.live.Maps)
	if err != nil {
		return nil, err
	}
	out := &RulesReport{Mode: g.config.Mode, Rules: make([]RuleReport, len(g.rules)), Other: other, WouldDrop: would}
	out.DefaultPolicy = map[string]string{"ingress": g.config.DefaultPolicy.Ingress.String(),
		"egress": g.config.DefaultPolicy.Egress.String()}
	for i := range g.rules {
		r := &g.rules[i]
		out.Rules[i] = RuleReport{i, r.Name, r.String(), r.action(), r.direction(), g.slots[i], hits[g.slots[i]], nil, nil}
		if !r.Limit.isSet() && !r.Log.isSet() {
			continue
		}
		b, err := readBucket(g.live.Maps, g.slots[i])
		if err != nil {
			return nil, err
		}
		if r.Limit.isSet() {
			out.Rules[i].Limited = &b.Limited
		}
		if r.Log.isSet() {
			out.Rules[i].Suppressed = &b.Suppressed
		}
	}
	return out, nil
}

// otherHits returns the hits of decisions without a rule, such as default policies, by their names.
func otherHits(maps sdk.Maps) (map[string]Hits, error) {
	var slots []uint32
	for slot := range otherSlots {
		slots = append(slots, slot)
	}
	hits, err := readHits(maps, mapHits, slots)
	if err != nil {
		return nil, err
	}
	out := map[string]Hits{}
	for slot, name := range otherSlots {
		out[name] = hits[slot]
	}
	return out, nil
}

// ConnectionsReport is the answer of GET connections.
type ConnectionsReport struct {
	Established uint64       `json:"established"`
	Capacity    uint32       `json:"capacity"`
	Full        uint64       `json:"full"`    // times that a connection found no room
	Opening     uint64       `json:"opening"` // new, answered and closed ones with a place of their own
	Share       uint32       `json:"share"`   // of the capacity that is kept for each interface
	Connections []Connection `json:"connections"`
	Truncated   bool         `json:"truncated,omitempty"`
}

// listConnections returns at most limit connections, established before opening before pending, IPv4 first. Entries
// past their timeout are left out, although the sweep has not deleted them yet.
func (g *running) listConnections(limit int) (*ConnectionsReport, error) {
	stats, err := readStats(g.live.Maps)
	if err != nil {
		return nil, err
	}
	out := &ConnectionsReport{Established: stats.Established, Capacity: g.config.State.MaxConnections, Full: stats.Full,
		Opening: stats.Opening, Share: stats.Share, Connections: []Connection{}}
	where := g.live.ByIfindex()
	now := int64(sdk.Monotonic())
	add := func(id connID, c *conn) bool {
		if out.Truncated = len(out.Connections) >= limit; out.Truncated {
			return false
		}
		if idle := time.Duration(now - int64(c.Seen)); idle <= c.timeout(id.Proto, id.Kind, &g.config.State.Timeouts) {
			out.Connections = append(out.Connections, describe(id, c, where[id.Ifindex], max(0, idle)))
		}
		return true
	}
	for _, name := range []string{mapEstablished4, mapOpening4, mapPending4} {
		if err := addConns[key4](g.live.Maps, name, add); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{mapEstablished6, mapOpening6, mapPending6} {
		if err := addConns[key6](g.live.Maps, name, add); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func addConns[K interface{ id() connID }](maps sdk.Maps, name string, add func(connID, *conn) bool) error {
	return sdk.EachElement(maps, name, connBatch, func(k K, c *conn) bool { return add(k.id(), c) })
}

// describe returns a connection as the service sees it: egress if the service opened it. A connection of an interface
// without an attachment shows the interface's index.
func describe(id connID, c *conn, at sdk.Attachment, idle time.Duration) Connection {
	out := Connection{Service: at.Service, Interface: at.Interface, Direction: "egress",
		Protocol: protocolName(int(id.Proto)),
		Local:    id.Local.String(), Remote: id.Remote.String(), Idle: idle.Round(time.Second).String()}
	if at.Interface == "" {
		out.Interface = strconv.Itoa(int(id.Ifindex))
	}
	if c.From != 0 {
		out.Direction = "ingress"
	}
	if int(c.State) < len(stateNames) {
		out.State = stateNames[c.State]
	}
	return out
}

func protocolName(n int) string {
	if name, ok := protoNames[n]; ok {
		return name
	}
	return strconv.Itoa(n)
}

// ExplainRequest describes a packet. Addresses are IPv4 or IPv6.
type ExplainRequest struct {
	Direction string          `json:"direction"` // ingress or egress
	Protocol  json.RawMessage `json:"protocol"`  // tcp, udp, icmp, icmpv6 or a number
	Src       netip.Addr      `json:"src"`
	Dst       netip.Addr      `json:"dst"`
	SrcPort   uint16          `json:"srcPort,omitempty"`
	DstPort   uint16          `json:"dstPort,omitempty"`
	ICMPType  uint8           `json:"icmpType,omitempty"`
}

// Explanation is the verdict of the rules on a packet that does not belong to a tracked connection.
type Explanation struct {
	Action string `json:"action"`
	Index  *int   `json:"index,omitempty"` // of the rule; absent if the default policy decides
	Name   string `json:"name,omitempty"`
	Rule   string `json:"rule"`
	Note   string `json:"note,omitempty"`
}

// Explain answers a question. Errors are *sdk.ConfigError.
func (g *running) Explain(q *ExplainRequest) (*Explanation, error) {
	p, err := q.packet()
	if err != nil {
		return nil, err
	}
	d := g.byRules(p, membersOf(g.live.Maps))
	out := &Explanation{Action: action(d.Allow).String(), Rule: "default policy for " + q.Direction}
	if d.Rule >= 0 {
		r := &g.rules[d.Rule]
		out.Action, out.Index, out.Name, out.Rule = r.action(), &d.Rule, r.Name, r.String()
	}
	if g.config.State.Enabled && !d.Allow {
		out.Note = "answers to packets that were allowed in the other direction pass all the same"
	}
	return out, nil
}

// packet checks an explain request and returns the packet that the rules are evaluated for. The protocol must be
// definite.
func (q *ExplainRequest) packet() (*Packet, error) {
	p := &Packet{Ingress: q.Direction == "ingress", Src: q.Src, Dst: q.Dst, SrcPort: q.SrcPort, DstPort: q.DstPort,
		ICMPType: q.ICMPType}
	if q.Direction != "ingress" && q.Direction != "egress" {
		return nil, &sdk.ConfigError{Field: "direction", Reason: "must be ingress or egress, as the service sees it"}
	}
	if !q.Src.IsValid() || !q.Dst.IsValid() || q.Src.Is4() != q.Dst.Is4() {
		return nil, &sdk.ConfigError{Field: "src", Reason: "src and dst must be addresses of the same IP version"}
	}
	var err error
	if p.Proto, err = parseProto(q.Protocol); err != nil || p.Proto == protoAny {
		return nil, &sdk.ConfigError{Field: "protocol", Reason: "must be tcp, udp, icmp, icmpv6 or a number from 0 to 255"}
	}
	return p, nil
}

// Collect implements sdk.Collector.
func (g *running) Collect() ([]sdk.Sample, error) {
	report, err := g.listRules()
	if err != nil {
		return nil, err
	}
	stats, err := readStats(g.live.Maps)
	if err != nil {
		return nil, err
	}
	out := []sdk.Sample{
		{Name: "connections", Help: "Established connections.", Value: float64(stats.Established)},
		{Name: "connections_capacity", Help: "Maximum number of established connections.",
			Value: float64(g.config.State.MaxConnections)},
		{Name: "connections_opening", Help: "New, answered and closed connections, kept in a separate table.",
			Value: float64(stats.Opening)},
		{Name: "connections_share", Help: "Maximum number of established connections per interface.",
			Value: float64(stats.Share)},
		{Name: "connections_full_total", Help: "Times that the table of established connections was full.", Counter: true,
			Value: float64(stats.Full)},
	}
	packets := map[string]uint64{actionAllow: 0, actionDeny: 0, actionReject: 0}
	for _, r := range report.Rules {
		out = append(out, sdk.Sample{Name: "rule_packets_total", Help: "Packets decided by the rule.", Counter: true,
			Labels: map[string]string{"rule": ruleName(r), "action": r.Action}, Value: float64(r.Packets)})
		if r.Limited != nil {
			out = append(out, sdk.Sample{Name: "rule_limited_packets_total", Counter: true,
				Help:   "Packets over the limit of the rule.",
				Labels: map[string]string{"rule": ruleName(r)}, Value: float64(*r.Limited)})
		}
		if r.Suppressed != nil {
			out = append(out, sdk.Sample{Name: "rule_suppressed_packets_total", Counter: true,
				Help:   "Packets that the log of the rule suppressed.",
				Labels: map[string]string{"rule": ruleName(r)}, Value: float64(*r.Suppressed)})
		}
		packets[r.Action] += r.Packets
	}
	for action, n := range packets {
		report.Other["rule_"+action] = Hits{Packets: n}
	}
	for name, hits := range report.Other {
		out = append(out, sdk.Sample{Name: "packets_total", Help: "Packets by deciding stage.", Counter: true,
			Labels: map[string]string{"decision": name}, Value: float64(hits.Packets)})
	}
	for reason, hits := range report.WouldDrop {
		out = append(out, sdk.Sample{Name: "would_drop_total", Help: "Packets that passed because mode is audit.",
			Counter: true, Labels: map[string]string{"reason": reason}, Value: float64(hits.Packets)})
	}
	return out, nil
}

func ruleName(r RuleReport) string {
	if r.Name != "" {
		return r.Name
	}
	return "#" + strconv.Itoa(r.Index)
}
