// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

// defaultLog is the limit of reports of a rule with log: true, for each interface.
var defaultLog = Limit{Interval: time.Second / 10, Burst: defaultBurst}

// parseLog reads the log of a rule: true, false, or a limit.
func parseLog(raw json.RawMessage, fail failure) (Limit, error) {
	switch string(raw) {
	case "", "null", "false":
		return Limit{}, nil
	case "true":
		return defaultLog, nil
	}
	var c limitConfig
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return Limit{}, fail("log", "%s is neither true, false nor {rate: 10/s, burst: 5}", raw)
	}
	return c.parse("log", fail)
}

// logEvent mirrors struct fw_report.
type logEvent struct {
	Time, Suppressed             uint64
	Word                         [11]uint32
	Slot, Decision, Ifindex, Len uint32
	Dir, Family, TCP, Rejected   uint8
}

// Logged is a packet that a rule with log matched. Fields that a trace has, too, have the same names.
type Logged struct {
	Time        time.Time `json:"time"`
	Rule        string    `json:"rule,omitempty"` // its name or #index; empty: it is gone
	Verdict     string    `json:"verdict"`        // pass, drop, reject, would drop
	Reason      string    `json:"reason,omitempty"`
	Service     string    `json:"service,omitempty"`
	Interface   string    `json:"interface"`
	Direction   string    `json:"direction"`
	Length      uint32    `json:"length"` // bytes of the frame
	Protocol    string    `json:"protocol"`
	Source      string    `json:"source"`
	Destination string    `json:"destination"`
	TCPFlags    string    `json:"tcpFlags,omitempty"`
	ICMPType    *uint32   `json:"icmpType,omitempty"`
	ICMPCode    *uint32   `json:"icmpCode,omitempty"`
	Suppressed  uint64    `json:"suppressed,omitempty"` // packets of this rule and interface before it, not reported
}

// describe turns a report of the data plane into what clients read.
func (g *running) describe(r *logEvent, at sdk.Attachment) Logged {
	out := Logged{Time: time.Now().Add(time.Duration(int64(r.Time - sdk.Monotonic()))).UTC(), Service: at.Service,
		Interface: at.Interface, Direction: "egress", Length: r.Len, Protocol: protocolName(int(r.Word[8])),
		Suppressed: r.Suppressed, Reason: dropReasons[r.Decision>>16]}
	out.Verdict = g.verdict(r)
	if out.Interface == "" {
		out.Interface = strconv.Itoa(int(r.Ifindex))
	}
	if r.Dir != 0 {
		out.Direction = "ingress"
	}
	if i := slices.Index(g.slots, r.Slot); i >= 0 {
		out.Rule = ruleName(RuleReport{Index: i, Name: g.rules[i].Name})
	}
	source, destination := r.addresses()
	out.Source, out.Destination = source.String(), destination.String()
	switch r.Word[8] {
	case protoTCP, protoUDP:
		out.Source = netip.AddrPortFrom(source, uint16(r.Word[9])).String()
		out.Destination = netip.AddrPortFrom(destination, uint16(r.Word[10])).String()
	case protoICMP, protoICMPv6:
		out.ICMPType, out.ICMPCode = &r.Word[9], &r.Word[10]
	}
	if r.Word[8] == protoTCP {
		out.TCPFlags = tcpFlags(r.TCP)
	}
	return out
}

func (g *running) verdict(r *logEvent) string {
	switch {
	case r.Decision>>16 == 0:
		return "pass"
	case g.config.Mode == modeAudit:
		return "would drop"
	case r.Rejected != 0:
		return actionReject
	}
	return "drop"
}

// addresses returns both addresses. The data plane copies them as words in host order, source first; IPv4 takes one
// word each.
func (r *logEvent) addresses() (source, destination netip.Addr) {
	var text []byte
	for _, word := range r.Word[:8] {
		text = binary.BigEndian.AppendUint32(text, word)
	}
	size := 16
	if r.Family == 4 {
		size = 4
	}
	source, _ = netip.AddrFromSlice(text[:size])
	destination, _ = netip.AddrFromSlice(text[size : 2*size])
	return source, destination
}

// tcpFlags are letters as tcpdump prints them.
func tcpFlags(flags uint8) string {
	var s strings.Builder
	for _, f := range []struct {
		bit    int
		letter byte
	}{{1, 'S'}, {0, 'F'}, {2, 'R'}, {3, 'P'}, {5, 'U'}, {4, '.'}} {
		if flags>>f.bit&1 != 0 {
			s.WriteByte(f.letter)
		}
	}
	return s.String()
}

// Of the journal: how many packets of an interface, and of how many interfaces.
const (
	journalLength     = 32
	journalInterfaces = 64
)

// journal has the last packets of each interface, so that one that is flooded does not hide the others'.
type journal struct {
	stream sdk.Stream[Logged]

	mu   sync.Mutex
	last map[uint32][]Logged // by ifindex
}

// add keeps the last journalLength entries per interface and passes the entry to clients that follow the log. The
// interface without news for the longest time is forgotten when there are too many.
func (j *journal) add(ifindex uint32, l Logged) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.last == nil {
		j.last = map[uint32][]Logged{}
	}
	of := j.last[ifindex]
	j.last[ifindex] = append(of[max(0, len(of)-journalLength+1):], l)
	if len(j.last) > journalInterfaces {
		j.forgetOldest()
	}
	j.stream.Send(l)
}

// forgetOldest forgets the interface that was quiet longest.
func (j *journal) forgetOldest() {
	var oldest uint32
	var since time.Time
	for ifindex, all := range j.last {
		if t := all[len(all)-1].Time; since.IsZero() || t.Before(since) {
			oldest, since = ifindex, t
		}
	}
	delete(j.last, oldest)
}

// serveLog writes the last packets, oldest first, then those to come until the client or the configuration ends.
func (g *running) serveLog(w http.ResponseWriter, r *http.Request) {
	if !g.logs() {
		sdk.Answer(w)(nil, sdk.NotFound("no rule of the module has a log; set log: true for those whose packets to report"))
		return
	}
	j := &g.log
	j.mu.Lock()
	var before []Logged
	for _, all := range j.last {
		before = append(before, all...)
	}
	c := j.stream.Open()
	j.mu.Unlock()
	defer c.Close()
	sort.Slice(before, func(i, j int) bool { return before[i].Time.Before(before[j].Time) })
	c.Serve(w, r, before)
}

// follow takes reports from the data plane until ctx ends.
func (g *running) follow(ctx context.Context) {
	if err := g.read(ctx); err != nil {
		slog.Warn("firewall: packets are not logged", "module", g.live.Module, "error", err)
	}
}

// read receives the data plane's log events until ctx ends. Interfaces are looked up again only after attachments have
// changed.
func (g *running) read(ctx context.Context) error {
	ring, err := g.live.Maps.Get(mapReports)
	if err != nil {
		return err
	}
	var at map[uint32]sdk.Attachment
	for raw, err := range sdk.PromptEvents(ctx, ring) {
		if err != nil {
			return err
		}
		var r logEvent
		if _, err := binary.Decode(raw, binary.NativeEndian, &r); err != nil {
			return fmt.Errorf("report of %d bytes: %w", len(raw), err)
		}
		if g.moved.Swap(false) || at == nil {
			at = g.live.ByIfindex()
		}
		g.log.add(r.Ifindex, g.describe(&r, at[r.Ifindex]))
	}
	return nil
}

// logs reports whether a rule has a log.
func (f *Firewall) logs() bool {
	return slices.ContainsFunc(f.limited, func(i int) bool { return f.rules[i].Log.isSet() })
}
