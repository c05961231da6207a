// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kerb-edge/kerb/modules/responder/app"
	"github.com/kerb-edge/kerb/sdk"
)

const (
	maxListeners         = 31
	maxAddresses         = 64
	maxEntries           = 256 // addresses and ports of all listeners, by family
	maxPayload           = 1472
	defaultReply         = 1232 // fits every IPv6 link
	defaultSource        = 50
	defaultAmplification = 3 // as QUIC's (RFC 9000, section 8.1)
)

// config is the module's config as kerb.yaml describes it.
type config struct {
	Listeners        []json.RawMessage `json:"listeners"`
	PartialChecksums string            `json:"partialChecksums"`
}

// common are the properties that every listener has.
type common struct {
	App           string   `json:"app"`
	Name          string   `json:"name"`
	Port          uint16   `json:"port"`
	Addresses     []string `json:"addresses"`
	MaxReply      uint16   `json:"maxReply"`
	SourceRate    uint32   `json:"sourceRate"`
	TotalRate     uint32   `json:"totalRate"`
	WhenOver      string   `json:"whenOver"`
	Amplification uint32   `json:"amplification"`
}

// listener is one of them, compiled.
type listener struct {
	common
	number    uint8        // of its application
	addresses []netip.Addr // none: those of the interface
	service   app.Service
}

// parseConfig parses all listeners; each must differ from those before it in name and in what it answers.
func parseConfig(raw json.RawMessage) (*config, []*listener, error) {
	c, err := sdk.DecodeConfig(raw, &config{PartialChecksums: "virtual"})
	if err != nil {
		return nil, nil, err
	}
	if len(c.Listeners) > maxListeners {
		return nil, nil, &sdk.ConfigError{Field: "listeners", Reason: fmt.Sprintf("%d listeners; at most %d are possible",
			len(c.Listeners), maxListeners)}
	}
	var all []*listener
	for i, raw := range c.Listeners {
		l, err := parseListener(raw)
		if err == nil {
			err = l.distinct(all)
		}
		if err != nil {
			return nil, nil, sdk.PrefixField(fmt.Sprintf("listeners[%d]", i), err)
		}
		all = append(all, l)
	}
	return c, all, checkEntries(all)
}

// parseListener reads a listener in two steps: which application it names decides what else it may say.
func parseListener(raw json.RawMessage) (*listener, error) {
	l := &listener{common: common{MaxReply: defaultReply, SourceRate: defaultSource, WhenOver: "drop",
		Amplification: defaultAmplification}}
	if err := json.Unmarshal(raw, &l.common); err != nil {
		return nil, &sdk.ConfigError{Field: "config", Reason: err.Error()}
	}
	a, err := l.application()
	if err != nil {
		return nil, err
	}
	if l.Name == "" {
		l.Name = fmt.Sprintf("%s-%d", l.App, l.Port)
	}
	if l.Port == 0 || l.MaxReply == 0 || l.MaxReply > maxPayload {
		return nil, &sdk.ConfigError{Field: "port", Reason: fmt.Sprintf("port has to be 1 to 65535, maxReply 1 to %d",
			maxPayload)}
	}
	if l.addresses, err = parseAddresses(l.Addresses); err != nil {
		return nil, err
	}
	rest, err := ownProperties(raw)
	if err != nil {
		return nil, err
	}
	l.service, err = a.Compile(app.Listener{Name: l.Name, Port: l.Port, MaxReply: l.MaxReply, Config: rest})
	return l, err
}

func (l *listener) application() (app.App, error) {
	var names []string
	for i, a := range apps {
		if a.name == l.App {
			l.number = uint8(i)
			return a.App, nil
		}
		names = append(names, a.name)
	}
	return nil, &sdk.ConfigError{Field: "app", Reason: fmt.Sprintf("%q is not one of %v", l.App, names)}
}

// ownProperties is the listener's config without the properties that all have.
func ownProperties(raw json.RawMessage) (json.RawMessage, error) {
	properties := map[string]json.RawMessage{}
	if err := json.Unmarshal(raw, &properties); err != nil {
		return nil, &sdk.ConfigError{Field: "config", Reason: err.Error()}
	}
	for _, name := range []string{"app", "name", "port", "addresses", "maxReply", "sourceRate", "totalRate", "whenOver",
		"amplification"} {
		delete(properties, name)
	}
	return json.Marshal(properties)
}

// parseAddresses accepts unicast addresses only: a reply takes the request's destination as its source, and must not
// come from a multicast, broadcast or loopback address.
func parseAddresses(texts []string) ([]netip.Addr, error) {
	var out []netip.Addr
	for _, text := range texts {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.Is4In6() {
			return nil, &sdk.ConfigError{Field: "addresses",
				Reason: fmt.Sprintf("%q is not an IP address such as 192.0.2.1 or 2001:db8::1", text)}
		}
		if a.IsMulticast() || a.IsUnspecified() || a.IsLoopback() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
			return nil, &sdk.ConfigError{Field: "addresses", Reason: text + " is not a unicast address that packets come to " +
				"from outside"}
		}
		if slices.Contains(out, a) {
			return nil, &sdk.ConfigError{Field: "addresses", Reason: text + " is there twice"}
		}
		out = append(out, a)
	}
	return out, nil
}

// distinct refuses a listener whose name, or whose port on the same address, another one has.
func (l *listener) distinct(others []*listener) error {
	for _, o := range others {
		if o.Name == l.Name {
			return &sdk.ConfigError{Field: "name", Reason: fmt.Sprintf("%q is used by another listener too; set unique names",
				l.Name)}
		}
		if o.Port != l.Port {
			continue
		}
		if len(o.addresses) == 0 && len(l.addresses) == 0 {
			return &sdk.ConfigError{Field: "port", Reason: fmt.Sprintf("%d is %s's too, on the same addresses", l.Port, o.Name)}
		}
		for _, a := range l.addresses {
			if slices.Contains(o.addresses, a) {
				return &sdk.ConfigError{Field: "port", Reason: fmt.Sprintf("%d is %s's too, on %s", l.Port, o.Name, a)}
			}
		}
	}
	return nil
}

func checkEntries(all []*listener) error {
	n := 0
	for _, l := range all {
		n += max(1, len(l.addresses))
	}
	if n > maxEntries {
		return &sdk.ConfigError{Field: "listeners",
			Reason: fmt.Sprintf("%d pairs of address and port; at most %d are possible", n, maxEntries)}
	}
	return nil
}
