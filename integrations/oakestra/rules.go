// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// allowList returns the config of Oakestra's stateless firewall: in each direction, only packets that match a rule
// pass.
func allowList() map[string]any {
	return map[string]any{
		"defaultPolicy": map[string]any{"ingress": "deny", "egress": "deny"},
		"state":         map[string]any{"enabled": false},
		"rules":         []any{},
	}
}

// rule is a rule in the format of Oakestra's clients. The misspelt field name is the documented one.
type rule struct {
	SrcIP   string  `json:"srcIp"`
	DstIP   string  `json:"dstIp"`
	Proto   string  `json:"proto"`
	ScrPort *uint16 `json:"scrPort"`
	SrcPort *uint16 `json:"srcPort"`
	DstPort *uint16 `json:"dstPort"`
}

// addRule appends a rule in Oakestra's format to the firewall's configuration. For any other module the request is
// forwarded to the module's own API.
func (l *Listener) addRule(w http.ResponseWriter, r *http.Request, m module) {
	if m.Name != "firewall" {
		l.forwardToModule(w, r, m)
		return
	}
	var in rule
	if !readJSON(w, r, &in) {
		return
	}
	out, err := in.translate()
	if err == nil {
		err = l.appendRule(r.Context(), resourceOf(m.ID), out)
	}
	if err != nil {
		fail(w, "rule", err)
	}
}

// appendRule adds a rule unless it exists.
func (l *Listener) appendRule(ctx context.Context, name string, rule map[string]any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	resource, err := l.agent.module(ctx, name)
	if err != nil {
		return err
	}
	rules, _ := resource.Spec.Config["rules"].([]any)
	if slices.ContainsFunc(rules, func(have any) bool { return reflect.DeepEqual(have, any(rule)) }) {
		return nil
	}
	config := maps.Clone(resource.Spec.Config)
	if config == nil {
		config = map[string]any{}
	}
	config["rules"] = append(rules, rule)
	resource.Spec.Config, resource.Status = config, nil
	return l.agent.call(ctx, http.MethodPost, "/v1/apply?ifUnchanged=true&owner="+owner, []v1.Module{resource}, nil)
}

// translate validates a rule and returns it in the format of Kerb's firewall. Numbers are float64, as decoded from
// JSON.
func (r rule) translate() (map[string]any, error) {
	src, err := ruleAddress("srcIp", r.SrcIP)
	if err != nil {
		return nil, err
	}
	dst, err := ruleAddress("dstIp", r.DstIP)
	if err != nil {
		return nil, err
	}
	if src.Is4() != dst.Is4() {
		return nil, &invalid{"dstIp", "srcIp and dstIp are of different IP versions"}
	}
	out := map[string]any{"action": "allow", "direction": "both", "src": src.String(), "dst": dst.String()}
	switch proto := strings.ToLower(r.Proto); proto {
	case "", "tcp": // Oakestra's default
		out["protocol"] = "tcp"
	case "udp":
		out["protocol"] = proto
	case "icmp":
		out["protocol"] = map[bool]string{true: "icmp", false: "icmpv6"}[src.Is4()]
		return out, r.checkNoPorts()
	default:
		return nil, &invalid{"proto", fmt.Sprintf("%q is not one of TCP, UDP and ICMP", r.Proto)}
	}
	return out, r.addPorts(out)
}

func ruleAddress(field, text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" || a.Is4In6() {
		return a, &invalid{field, fmt.Sprintf("%q is not an IP address", text)}
	}
	return a, nil
}

// source returns the source port under either name.
func (r rule) source() (*uint16, error) {
	if r.ScrPort == nil {
		return r.SrcPort, nil
	}
	if r.SrcPort != nil && *r.SrcPort != *r.ScrPort {
		return nil, &invalid{"srcPort", "it is not the same as scrPort"}
	}
	return r.ScrPort, nil
}

// addPorts requires both ports: a rule without one would permit more than Oakestra's firewall.
func (r rule) addPorts(out map[string]any) error {
	src, err := r.source()
	if err != nil {
		return err
	}
	for _, p := range []struct {
		field string
		value *uint16
	}{{"srcPort", src}, {"dstPort", r.DstPort}} {
		if p.value == nil {
			return &invalid{p.field, "missing; rules for TCP and UDP have both ports"}
		}
		out[p.field] = float64(*p.value)
	}
	return nil
}

// checkNoPorts accepts port 0, which clients that always send ports use for ICMP.
func (r rule) checkNoPorts() error {
	for _, port := range []*uint16{r.ScrPort, r.SrcPort, r.DstPort} {
		if port != nil && *port != 0 {
			return &invalid{"proto", "ICMP has no ports"}
		}
	}
	return nil
}
