// SPDX-License-Identifier: Apache-2.0

package classifier

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/model"
)

// config is the module's config as kerb.yaml describes it.
type config struct {
	Extractor string   `json:"extractor"`
	Direction string   `json:"direction"`
	Model     string   `json:"model"`
	Shadow    string   `json:"shadow"`
	Harmless  []string `json:"harmless"`
	RPL       struct {
		Frames    string   `json:"frames"`
		EtherType uint16   `json:"etherType"`
		Port      uint16   `json:"port"`
		Checksum  bool     `json:"checksum"`
		Secured   string   `json:"secured"`
		Repeats   duration `json:"repeats"`
	} `json:"rpl"`
	Flow struct {
		Source string `json:"source"`
	} `json:"flow"`
	Window   duration `json:"window"`
	Sliding  bool     `json:"sliding"`
	Evaluate struct {
		When  string `json:"when"`
		Every uint32 `json:"every"`
		Where string `json:"where"`
	} `json:"evaluate"`
	Hysteresis struct {
		Hits  uint8    `json:"hits"`
		Of    uint8    `json:"of"`
		Raise *float64 `json:"raise"`
		Clear *float64 `json:"clear"`
	} `json:"hysteresis"`
	Action struct {
		Do    string   `json:"do"`
		For   duration `json:"for"`
		Mark  uint32   `json:"mark"`
		Rate  uint32   `json:"rate"`
		Burst uint32   `json:"burst"`
	} `json:"action"`
	Mode  string   `json:"mode"`
	Allow []string `json:"allow"`
	Fuse  struct {
		Sources     uint32 `json:"sources"`
		SourceShare uint8  `json:"sourceShare"`
		Least       uint32 `json:"least"`
		PacketShare uint8  `json:"packetShare"`
	} `json:"fuse"`
	Events    string `json:"events"`
	Sources   uint32 `json:"sources"`
	Probation uint32 `json:"probation"`
}

func defaults() *config {
	c := &config{Extractor: "rpl", Direction: "both", Window: duration(5 * time.Second), Mode: "enforce",
		Events: "changes", Sources: 4096, Probation: 8}
	c.RPL.Frames, c.RPL.EtherType, c.RPL.Port, c.RPL.Secured, c.RPL.Repeats = "raw", 0x809a, 17754, "pass",
		duration(250*time.Millisecond)
	c.Flow.Source = "flow"
	c.Evaluate.When, c.Evaluate.Every, c.Evaluate.Where = "window", 16, "packet"
	c.Hysteresis.Hits, c.Hysteresis.Of = 1, 3
	c.Action.Do, c.Action.For, c.Action.Mark, c.Action.Rate, c.Action.Burst = "event", duration(time.Minute), 1, 10, 10
	c.Fuse.Sources, c.Fuse.SourceShare, c.Fuse.Least, c.Fuse.PacketShare = 64, 50, 2, 100
	return c
}

// duration is one such as 500ms, or untilUnblocked.
type duration time.Duration

const untilUnblocked duration = -1

// UnmarshalJSON implements json.Unmarshaler.
func (d *duration) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	if text == "untilUnblocked" || text == "untilTold" { // the name in 0.1
		*d = untilUnblocked
		return nil
	}
	parsed, err := time.ParseDuration(text)
	*d = duration(parsed)
	return err
}

var wrong = sdk.ConfigErrorf

func parseConfig(raw json.RawMessage) (*config, error) {
	return sdk.DecodeConfig(raw, defaults(), (*config).check)
}

// check finds what the schema cannot.
func (c *config) check() error {
	const shortest, longest = duration(100 * time.Millisecond), duration(time.Hour)
	whole := c.Extractor == "flow" && c.Window == 0
	switch {
	case whole && c.Evaluate.When == "window":
		return wrong("window", "0s means no window: evaluate.when must be packet or packets")
	case !whole && (c.Window < shortest || c.Window > longest):
		return wrong("window", "has to be from 100ms to 1h; with flow also 0s, for all of the flow")
	case whole && c.Sliding:
		return wrong("sliding", "0s means no window, which cannot slide")
	case c.RPL.Repeats < 0 || c.RPL.Repeats > duration(time.Minute):
		return wrong("rpl.repeats", "has to be at most 1m")
	case c.Hysteresis.Hits > c.Hysteresis.Of:
		return wrong("hysteresis.hits", "%d of the last %d evaluations are not possible", c.Hysteresis.Hits, c.Hysteresis.Of)
	case c.Action.For <= 0 && c.Action.For != untilUnblocked:
		return wrong("action.for", "has to be longer, or untilUnblocked")
	case c.Shadow != "" && c.Shadow == c.Model:
		return wrong("shadow", "is the model itself: name another one to compare it with")
	}
	if r, k := c.Hysteresis.Raise, c.Hysteresis.Clear; r != nil && k != nil && *k > *r {
		return wrong("hysteresis.clear", "%v is above raise (%v): a source would never stay suspicious", *k, *r)
	}
	for i, text := range c.Allow {
		if _, err := parsePrefix(text); err != nil {
			return wrong(fmt.Sprintf("allow[%d]", i), "%v", err)
		}
	}
	return nil
}

// inUser reports whether models run in the control plane.
func (c *config) inUser() bool { return c.Evaluate.Where == "user" }

// index is the place of a word in a list of an enum's names, by value.
func index(names []string, word string) int { return max(0, slices.Index(names, word)) }

// constants are those of settings.h: what changes only with a new program.
func (c *config) constants() map[string]any {
	return map[string]any{
		"extractor":       index(extractors, c.Extractor),
		"frames":          index([]string{"raw", "ethernet", "zep"}, c.RPL.Frames),
		"frames_eth_type": c.RPL.EtherType,
		"zep_port":        c.RPL.Port,
		"fcs_len":         map[bool]int{true: 2}[c.RPL.Checksum],
		"secured":         index([]string{"pass", "count", "drop"}, c.RPL.Secured),
		"repeat_ns":       int64(c.RPL.Repeats),
		"by_peer":         c.Flow.Source == "peer",
		"window_ns":       int64(c.Window),
		"sliding":         c.Sliding,
		"lapse_ns":        c.lapse(),
		"every":           c.Evaluate.Every,
		"when":            index([]string{"window", "packet", "packets"}, c.Evaluate.When),
		"deferred":        index([]string{"packet", "laterPacket", "timer", "user"}, c.Evaluate.Where),
		"capacity":        c.Sources,
		"packet_fuse":     c.Fuse.PacketShare < 100,
	}
}

// tunables are the members of struct cls_tunables.
func (c *config) tunables() map[string]any {
	cost := uint64(time.Second) / uint64(c.Action.Rate)
	return map[string]any{
		"raise":             c.raise(),
		"clear":             c.clear(),
		"action":            index(actions, c.Action.Do),
		"action_ns":         max(0, int64(c.Action.For)), // 0: until unblocked
		"mark":              c.Action.Mark,
		"rate_cost":         cost,
		"rate_burst":        cost * uint64(c.Action.Burst),
		"watch":             c.Mode == "watch",
		"hits_needed":       c.Hysteresis.Hits,
		"hits_of":           c.Hysteresis.Of,
		"events":            index([]string{"changes", "positives", "all"}, c.Events),
		"probation_packets": c.Probation,
		"fuse_sources":      c.Fuse.Sources,
		"fuse_share":        c.Fuse.SourceShare,
		"fuse_least":        c.Fuse.Least,
		"fuse_packets":      c.Fuse.PacketShare,
	}
}

// lapse is how often windows are looked for whose sources send no more: how late they may be evaluated.
func (c *config) lapse() int64 {
	if c.Evaluate.When != "window" {
		return 0
	}
	return int64(max(100*time.Millisecond, min(time.Duration(c.Window)/10, time.Second)))
}

// raise and clear are scores in Q15; values that are not set exclude nothing.
func (c *config) raise() int32 { return score(c.Hysteresis.Raise, math.MinInt32) }
func (c *config) clear() int32 { return score(c.Hysteresis.Clear, math.MaxInt32) }

func score(share *float64, otherwise int32) int32 {
	if share == nil {
		return otherwise
	}
	return int32(math.Round(*share * model.ScoreOne))
}

// harmless has a bit for each of a model's classes that does not count against a source.
func (c *config) harmless(classes []string) (bits uint64, err error) {
	if len(c.Harmless) == 0 {
		return 1, nil
	}
	for _, name := range c.Harmless {
		i := slices.Index(classes, name)
		if i < 0 {
			return 0, fmt.Errorf("harmless names the class %q, which it does not have; it has %q", name, classes)
		}
		bits |= 1 << i
	}
	return bits, nil
}

// parsePrefix reads an address or prefix of sources, or the EUI-64 of a node. Those of IPv4 are mapped into IPv6.
func parsePrefix(text string) (netip.Prefix, error) {
	if mac, err := net.ParseMAC(text); err == nil && len(mac) == 8 {
		addr := [16]byte{0: 0xfe, 1: 0x80}
		copy(addr[8:], mac)
		addr[8] ^= 2 // RFC 4291: the interface identifier has the universal bit inverted
		return netip.PrefixFrom(netip.AddrFrom16(addr), 128), nil
	}
	p, err := sdk.ParsePrefix(text)
	if err != nil {
		return p, fmt.Errorf("%q is not an address such as 192.0.2.1, a prefix such as fe80::/64 or an EUI-64 such as "+
			"00:12:4b:00:06:0d:9b:00", text)
	}
	return sdk.MappedPrefix(p).Masked(), nil
}
