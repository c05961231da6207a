// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kerb-edge/kerb/sdk"
)

// config is the module's config as kerb.yaml describes it.
type config struct {
	Mode  string `json:"mode"`
	Ports struct {
		Only   []portRange `json:"only"`
		Except []portRange `json:"except"`
	} `json:"ports"`
	Programs struct {
		Allow []string `json:"allow"`
		Deny  []string `json:"deny"`
	} `json:"programs"`
	Visible []struct {
		Ports    []portRange `json:"ports"`
		Networks []network   `json:"networks"`
	} `json:"visible"`
	Past       []string   `json:"past"`
	Quota      uint32     `json:"quota"` // connections
	Thresholds thresholds `json:"thresholds"`
}

type thresholds struct {
	Turns         uint32 `json:"turns"`
	PassMessages  uint32 `json:"passMessages"`
	PassBytes     uint32 `json:"passBytes"`
	LeaveMessages uint32 `json:"leaveMessages"`
	LeaveBytes    uint32 `json:"leaveBytes"`
	Backlog       uint32 `json:"backlog"`
	MinTurns      uint32 `json:"minTurns"`
	Retry         uint32 `json:"retry"`
	Idle          uint32 `json:"idle"` // s
}

// parseConfig reads a config over the defaults.
func parseConfig(raw json.RawMessage) (*config, error) {
	c := &config{Mode: "adaptive", Past: []string{"proxy", "tunnel"}, Quota: 16384}
	c.Thresholds = thresholds{Turns: 2, PassMessages: 8, LeaveMessages: 64, LeaveBytes: 8 << 20, Backlog: 256 << 10,
		MinTurns: 4, Retry: 64, Idle: 300}
	return sdk.DecodeConfig(raw, c, (*config).check)
}

var modes = map[string]uint32{"off": modeOff, "adaptive": modeAdaptive, "redirect-all": modeAll}

// check refuses thresholds that contradict each other, by which a connection would be passed and left at once, and what
// the data plane has no room for.
func (c *config) check() error {
	t := &c.Thresholds
	switch _, known := modes[c.Mode]; {
	case !known:
		return &sdk.ConfigError{Field: "mode", Reason: fmt.Sprintf("%q is not one of adaptive, redirect-all, off", c.Mode)}
	case t.PassMessages > t.LeaveMessages:
		return &sdk.ConfigError{Field: "thresholds.leaveMessages",
			Reason: fmt.Sprintf("must be at least passMessages, which is %d", t.PassMessages)}
	case t.PassBytes > t.LeaveBytes:
		return &sdk.ConfigError{Field: "thresholds.leaveBytes", Reason: fmt.Sprintf("must be at least passBytes, which is %d",
			t.PassBytes)}
	case t.Retry == 0 || t.Retry&(t.Retry-1) != 0:
		return &sdk.ConfigError{Field: "thresholds.retry", Reason: "must be a power of two"}
	case t.Idle > maxIdle:
		return &sdk.ConfigError{Field: "thresholds.idle", Reason: fmt.Sprintf("must be at most %d, which is a day", maxIdle)}
	case t.MinTurns >= 1<<28: // the data plane has it times 16
		return &sdk.ConfigError{Field: "thresholds.minTurns", Reason: "is too large"}
	}
	if err := c.ranges(); err != nil {
		return err
	}
	if n := len(c.visibles()); n > maxVisibles {
		return &sdk.ConfigError{Field: "visible",
			Reason: fmt.Sprintf("%d combinations of ports and networks; at most %d are possible: merge ranges", n, maxVisibles)}
	}
	for _, list := range []struct {
		field string
		names []string
	}{{"programs.allow", c.Programs.Allow}, {"programs.deny", c.Programs.Deny}} {
		for i, name := range list.names {
			if strings.Contains(name, "/") && !strings.HasPrefix(name, "/") {
				return &sdk.ConfigError{Field: fmt.Sprintf("%s[%d]", list.field, i), Reason: "must be a path from the root, or a " +
					"name without /"}
			}
		}
	}
	return nil
}

// ranges finds the first port or network that cannot be read.
func (c *config) ranges() error {
	if err := wrongPorts("ports.only", c.Ports.Only); err != nil {
		return err
	}
	if err := wrongPorts("ports.except", c.Ports.Except); err != nil {
		return err
	}
	for i, v := range c.Visible {
		if err := wrongPorts(fmt.Sprintf("visible[%d].ports", i), v.Ports); err != nil {
			return err
		}
		for j, n := range v.Networks {
			if n.wrong != "" {
				return &sdk.ConfigError{Field: fmt.Sprintf("visible[%d].networks[%d]", i, j), Reason: n.wrong}
			}
		}
	}
	return nil
}

func wrongPorts(field string, ranges []portRange) error {
	for i, r := range ranges {
		if r.wrong != "" {
			return &sdk.ConfigError{Field: fmt.Sprintf("%s[%d]", field, i), Reason: r.wrong}
		}
	}
	return nil
}

// entry is what the data plane goes by.
func (c *config) entry(k sdk.Kernel) configEntry {
	t := c.Thresholds
	if t.PassBytes == 0 {
		t.PassBytes = min(paying(k.RoundTrips), t.LeaveBytes)
	}
	return configEntry{Mode: modes[c.Mode], Visibles: uint32(len(c.visibles())), Warm: t.Turns,
		PassMessages: t.PassMessages, PassBytes: t.PassBytes,
		LeaveMessages: t.LeaveMessages, LeaveBytes: t.LeaveBytes, Backlog: t.Backlog, MinTurns: 16 * t.MinTurns,
		Retry: t.Retry,
		Quota: c.Quota, Idle: uint32(uint64(t.Idle) * 1e9 >> 20)}
}

// maxIdle is in s; the data plane's times have 32 bits.
const maxIdle = 86400

// Messages up to leastPaying gain wherever redirection works at all; usualPaying is where nothing was measured.
const (
	leastPaying = 64 << 10
	usualPaying = 1 << 20
)

// paying is the size of messages up to which redirection saves at least a tenth of a turn.
func paying(turns []sdk.RoundTrip) uint32 {
	if len(turns) == 0 {
		return usualPaying
	}
	size := uint32(leastPaying)
	for _, t := range turns {
		if t.Redirected*10 > t.Plain*9 {
			break
		}
		size = max(size, t.Bytes)
	}
	return size
}

// ports is a bit for each port that may take part.
func (c *config) ports() (bits [portWords]uint64) {
	only := c.Ports.Only
	if len(only) == 0 {
		only = []portRange{allPorts}
	}
	for port := range 1 << 16 {
		contains := func(r portRange) bool { return r.contains(uint16(port)) }
		if slices.ContainsFunc(only, contains) && !slices.ContainsFunc(c.Ports.Except, contains) {
			bits[port/64] |= 1 << (port % 64)
		}
	}
	return bits
}

// visibles are all combinations of ports and networks.
func (c *config) visibles() (out []visibleEntry) {
	for _, v := range c.Visible {
		ports, networks := v.Ports, v.Networks
		if len(ports) == 0 {
			ports = []portRange{allPorts}
		}
		if len(networks) == 0 {
			networks = []network{{}}
		}
		for _, p := range ports {
			for _, n := range networks {
				out = append(out, visibleEntry{Address: n.address, Mask: n.mask, First: p.first, Last: p.last})
			}
		}
	}
	return out
}

// allows reports whether a program may take part by what the config says of it.
func (c *config) allows(path string) bool { return listed(c.Programs.Allow, path) }

func (c *config) denies(path string) bool { return listed(c.Programs.Deny, path) }

// listed: a program is meant by its path or its file's name; what its processes call themselves says nothing of the
// file.
func listed(names []string, path string) bool {
	return slices.Contains(names, path) || slices.Contains(names, filepath.Base(path))
}

// portRange includes its ends.
type portRange struct {
	first, last uint16
	wrong       string // why it could not be read
}

var allPorts = portRange{last: 65535}

func (r portRange) contains(port uint16) bool { return r.first <= port && port <= r.last }

// UnmarshalJSON reads 80, "80" or "8000-8010". It keeps what is wrong for check, which knows the field.
func (r *portRange) UnmarshalJSON(text []byte) error {
	first, last, isRange := strings.Cut(strings.Trim(string(text), `"`), "-")
	from, err := strconv.ParseUint(first, 10, 16)
	to := from
	if err == nil && isRange {
		to, err = strconv.ParseUint(last, 10, 16)
	}
	if err != nil || from == 0 || from > to {
		r.wrong = fmt.Sprintf(`%s is neither a port nor a range such as "8000-8010"`, text)
	}
	r.first, r.last = uint16(from), uint16(to)
	return nil
}

// network is in network byte order, IPv4 as ::ffff:a.b.c.d. The zero value is all of both.
type network struct {
	address, mask [16]byte
	wrong         string // why it could not be read
}

// UnmarshalJSON reads an address or a network. It keeps what is wrong for check, which knows the field.
func (n *network) UnmarshalJSON(text []byte) error {
	s := strings.Trim(string(text), `"`)
	prefix, err := sdk.ParsePrefix(s)
	if err != nil {
		n.wrong = fmt.Sprintf("%s is neither an address nor a network such as 192.0.2.0/24", text)
		return nil
	}
	if prefix != prefix.Masked() {
		n.wrong = fmt.Sprintf("%s has bits beyond the length of its prefix: %s?", text, prefix.Masked())
		return nil
	}
	n.address, n.mask = prefix.Addr().As16(), sdk.PrefixMask(sdk.MappedPrefix(prefix).Bits())
	return nil
}
