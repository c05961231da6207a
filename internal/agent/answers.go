// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/pkgs"
)

// A firewall and a proxy on one client meet packets in the same order in both directions. The firewall tracks a connection to
// the virtual address, and the answer of an instance that this node's proxy does not run on arrives with the instance's own
// address: the firewall knows no such connection. Until chains are mirrored, the operator is warned.

// firewallPolicy is what of a firewall's config decides about packets without a connection.
type firewallPolicy struct {
	State struct {
		Enabled *bool `json:"enabled"`
	} `json:"state"`
	DefaultPolicy struct{ Ingress string }
	Rules         []struct {
		Action, Direction, Src, Dst string
		Protocol                    any
		SrcPort, DstPort            json.RawMessage
	}
}

// admits reports whether a rule lets everything in from an address.
func (p firewallPolicy) admits(a netip.Addr) bool {
	if p.DefaultPolicy.Ingress == "allow" {
		return true
	}
	for _, r := range p.Rules {
		src, err := netip.ParsePrefix(r.Src)
		if one, bad := netip.ParseAddr(r.Src); bad == nil {
			src, err = netip.PrefixFrom(one, one.BitLen()), nil
		}
		plain := r.Action == "allow" && r.Direction != "egress" && (r.Protocol == nil || r.Protocol == "any") && r.Dst == "" && len(r.SrcPort)+len(r.DstPort) == 0
		if plain && (r.Src == "" || err == nil && src.Contains(a)) {
			return true
		}
	}
	return false
}

// lostAnswers explains, by module, which answers a firewall drops before the proxy of the same service gives them their
// virtual address.
func (a *Agent) lostAnswers() map[string]string {
	out := map[string]string{}
	for _, p := range sortedPoints(a.points) {
		place := a.points[p]
		if place.Service == "" || place.Chain.Direction != chain.Ingress {
			continue
		}
		firewall, proxy := a.memberOf(place.Chain, "firewall"), a.memberOf(place.Chain, "proxy")
		if firewall == nil || proxy == nil {
			continue
		}
		instance, addr := a.unadmitted(firewall, proxy.Dataplane.Name)
		if instance == "" {
			continue
		}
		text := fmt.Sprintf("on service %s, module %s drops the answers of instance %s (%s), which has no module %s on this node, to virtual addresses: "+
			"set state: {enabled: false} in %s and add a rule {action: allow, direction: ingress, src: %s}, or remove one of the two modules from the service",
			place.Service, firewall.Dataplane.Name, instance, addr, proxy.Dataplane.Name, firewall.Dataplane.Name, addr)
		out[firewall.Dataplane.Name], out[proxy.Dataplane.Name] = text, text
	}
	return out
}

// memberOf is the first module of a chain that is of a built-in package.
func (a *Agent) memberOf(chain chain.Spec, pkg string) *deploy.Module {
	for _, m := range chain.Members {
		if d := a.modules[m.Name]; d != nil && d.Err == nil && d.Pkg.Name == pkg && d.Pkg.Source == pkgs.SourceBuiltin {
			return d
		}
	}
	return nil
}

// unadmitted finds an instance of a virtual service that the proxy does not run on, and that the firewall does not admit.
func (a *Agent) unadmitted(firewall *deploy.Module, proxy string) (instance string, addr netip.Addr) {
	var policy firewallPolicy
	if json.Unmarshal(firewall.Config, &policy) != nil {
		return "", addr
	}
	local := map[string]bool{}
	for _, place := range a.points {
		if slices.ContainsFunc(place.Chain.Members, func(m chain.Member) bool { return m.Name == proxy }) {
			local[place.Service] = true
		}
	}
	for _, name := range a.virtual.Names() {
		view, _ := a.virtual.View(name)
		if view.Status == nil {
			continue
		}
		for _, i := range view.Status.Instances {
			for _, text := range i.Addresses {
				if at, err := netip.ParseAddr(text); err == nil && !local[i.Service] && (policy.tracks() || !policy.admits(at)) {
					return name + "/" + i.Name, at
				}
			}
		}
	}
	return "", addr
}

// tracks reports whether the firewall follows connections: then an answer from another address than the one that was asked belongs
// to none, and a rule does not admit it.
func (p firewallPolicy) tracks() bool { return p.State.Enabled == nil || *p.State.Enabled }

func (a *Agent) answerWarnings() (out []string) {
	lost := a.lostAnswers()
	said := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(lost)) {
		if text := lost[name]; !said[text] {
			said[text] = true
			out = append(out, text)
		}
	}
	return out
}

// answerConditions are there only for modules that make a service miss answers.
func (a *Agent) answerConditions(name string) []v1.Condition {
	text, lost := a.lostAnswers()[name]
	if !lost {
		return nil
	}
	return []v1.Condition{{Type: "RemoteInstances", Status: "False", Reason: "RepliesDropped", Message: text}}
}
