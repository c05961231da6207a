// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

// config is the module's config as kerb.yaml describes it. Absent values have the defaults of parseConfig.
type config struct {
	Ranges    []netip.Prefix `json:"ranges"`
	ShortPath bool           `json:"shortPath"`
	Source    string         `json:"source"`
	Tables    tables         `json:"tables"`
	Timeouts  timeouts       `json:"timeouts"`
	Unknown   unknownConfig  `json:"unknown"`
	Health    healthConfig   `json:"passiveHealth"`
}

// tables are sizes of maps.
type tables struct {
	Sessions           uint32 `json:"sessions"`
	SessionsPerService uint32 `json:"sessionsPerService"` // 0: four times what is free
	Addresses          uint32 `json:"addresses"`
	Ports              uint32 `json:"ports"`
	Instances          uint32 `json:"instances"`
	Slots              uint32 `json:"slots"`
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

// unknownConfig is what happens to packets to addresses in ranges that no virtual service has.
type unknownConfig struct {
	HoldPackets    int      `json:"holdPackets"`
	HoldPerAddress int      `json:"holdPerAddress"`
	HoldTime       duration `json:"holdTime"`
	NegativeTTL    duration `json:"negativeTTL"`
}

// healthConfig says when an instance gets no new sessions because connections to it fail.
type healthConfig struct {
	Failures   int      `json:"failures"` // in a row; 0: never
	EjectFor   duration `json:"ejectFor"` // the first time; twice as long each further time, up to maxBackOff times
	MaxEjected int      `json:"maxEjected"`
}

type duration = sdk.Duration

// Values of config.Source.
const (
	sourceClient   = "client"
	sourceInstance = "instance"
)

// defaults returns what applies to fields that a configuration leaves out. The UDP timeouts separate one-way flows from
// those with replies.
func defaults() *config {
	return &config{
		ShortPath: true,
		Source:    sourceClient,
		Tables:    tables{Sessions: 65536, Addresses: 16384, Ports: 16384, Instances: 16384, Slots: 1 << 18},
		Timeouts: timeouts{TCPSyn: duration(30 * time.Second), TCPEstablished: duration(24 * time.Hour),
			TCPHalfClosed: duration(time.Hour), TCPClosing: duration(time.Minute),
			UDP: duration(time.Minute), UDPStream: duration(3 * time.Minute), ICMP: duration(30 * time.Second)},
		Unknown: unknownConfig{HoldPackets: 1024, HoldPerAddress: 16, HoldTime: duration(5 * time.Second),
			NegativeTTL: duration(10 * time.Second)},
		Health: healthConfig{Failures: 5, EjectFor: duration(30 * time.Second), MaxEjected: 50},
	}
}

// parseConfig reads a config over the defaults.
func parseConfig(raw json.RawMessage) (*config, error) {
	return sdk.DecodeConfig(raw, defaults(), (*config).check)
}

// minTimeout is above what the data plane rounds times of sessions to: PX_TICK jiffies, 2.6 s at 100 Hz.
const minTimeout = duration(3 * time.Second)

// check refuses what the schema in kerb.yaml cannot: ranges that overlap, times that are shorter than the data plane
// measures, and tables without entries. Errors are *sdk.ConfigError.
func (c *config) check() error {
	if len(c.Ranges) > maxRanges {
		return sdk.ConfigErrorf("ranges", "%d prefixes; at most %d are possible", len(c.Ranges), maxRanges)
	}
	for i, p := range c.Ranges {
		if err := checkRange(p); err != nil {
			return sdk.ConfigErrorf(fmt.Sprintf("ranges[%d]", i), "%v", err)
		}
		for j, other := range c.Ranges[:i] {
			if p.Overlaps(other) {
				field := fmt.Sprintf("ranges[%d]", i)
				return sdk.ConfigErrorf(field, "%s overlaps ranges[%d], %s; leave one out", p, j, other)
			}
		}
	}
	t, u := c.Timeouts, c.Unknown
	for _, d := range []struct {
		field string
		value duration
	}{
		{"unknown.holdTime", u.HoldTime}, {"unknown.negativeTTL", u.NegativeTTL},
		{"passiveHealth.ejectFor", c.Health.EjectFor},
	} {
		if d.value <= 0 {
			return sdk.ConfigErrorf(d.field, "must be longer than 0")
		}
	}
	for _, d := range []struct {
		field string
		value duration
	}{
		{"timeouts.tcpSyn", t.TCPSyn}, {"timeouts.tcpEstablished", t.TCPEstablished},
		{"timeouts.tcpHalfClosed", t.TCPHalfClosed},
		{"timeouts.tcpClosing", t.TCPClosing}, {"timeouts.udp", t.UDP}, {"timeouts.udpStream", t.UDPStream},
		{"timeouts.icmp", t.ICMP},
	} {
		if d.value < minTimeout {
			return &sdk.ConfigError{Field: d.field,
				Reason: fmt.Sprintf("%s is shorter than the %s to which the data plane knows the age of a session; "+
					"write 3s or more",
					time.Duration(d.value), time.Duration(minTimeout))}
		}
	}
	for _, n := range []struct {
		field string
		value uint32
	}{
		{"tables.sessions", c.Tables.Sessions}, {"tables.addresses", c.Tables.Addresses}, {"tables.ports", c.Tables.Ports},
		{"tables.instances", c.Tables.Instances}, {"tables.slots", c.Tables.Slots},
		{"unknown.holdPackets", uint32(max(0, u.HoldPackets))}, {"unknown.holdPerAddress", uint32(max(0, u.HoldPerAddress))},
	} {
		if n.value == 0 {
			return sdk.ConfigErrorf(n.field, "must be at least 1")
		}
	}
	return nil
}

// checkRange refuses prefixes with addresses that packets never have as destination from elsewhere, and those that were
// probably meant otherwise.
func checkRange(p netip.Prefix) error {
	switch {
	case !p.IsValid():
		return fmt.Errorf("is not a prefix; write for example 10.30.0.0/16")
	case p != p.Masked():
		return fmt.Errorf("%s has bits beyond its length; write %s", p, p.Masked())
	case p.Addr().Is4In6():
		return fmt.Errorf("%s is an IPv4 range written as IPv6; write it as IPv4", p)
	case p.Addr().IsMulticast() || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast() || p.Bits() == 0 ||
		p.Addr().IsUnspecified():
		return fmt.Errorf("%s can have no virtual addresses; write for example 10.30.0.0/16", p)
	}
	return nil
}
