// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/classbench"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

// setName is the set of addresses that may send to the service.
const setName = "allowed"

// setStride is the distance between the addresses of a set.
const setStride = 1021

// withSet is a Firewall whose single rule allows a set of sources.
type withSet interface {
	Firewall
	// change adds an address to the set, or deletes it.
	change(a netip.Addr, add bool) error
}

// setRules returns the elements of a set as rules.
func setRules(n int, client netip.Addr) []Rule {
	rules := make([]Rule, n)
	for i := range rules {
		a := binary.BigEndian.AppendUint32(nil, uint32(firstBlock+i*setStride))
		rules[i] = Rule{Allow: true, Src: netip.PrefixFrom(netip.AddrFrom4([4]byte(a)), 32), Protocol: classbench.Any,
			SrcPort: classbench.AnyPort, DstPort: classbench.AnyPort}
	}
	rules[n-1].Src = netip.PrefixFrom(client, 32)
	return rules
}

// isSet reports whether all rules only allow a source address.
func isSet(rules []Rule) bool {
	for _, r := range rules {
		src := r.Src
		r.Src = netip.Prefix{}
		if !src.IsSingleIP() ||
			r != (Rule{Allow: true, Protocol: classbench.Any, SrcPort: classbench.AnyPort, DstPort: classbench.AnyPort}) {
			return false
		}
	}
	return true
}

func addresses(rules []Rule) []string {
	out := make([]string, len(rules))
	for i := range rules {
		out[i] = rules[i].Src.Addr().String()
	}
	return out
}

// nftSet returns a set of nftables and its rule. With a size, the kernel uses its fastest hash.
func nftSet(rules []Rule) (set, chain string) {
	return fmt.Sprintf("\tset %s {\n\t\ttype ipv4_addr\n\t\tsize %d\n\t\telements = { %s }\n\t}\n", setName, 1<<18,
		strings.Join(addresses(rules), ", ")), fmt.Sprintf("\t\tip saddr @%s accept\n", setName)
}

func (n *nftables) change(a netip.Addr, add bool) error {
	verb := "delete"
	if add {
		verb = "add"
	}
	return n.load(fmt.Sprintf("%s element %s bench %s { %s }\n", verb, n.family, setName, a))
}

// kerbSet is Kerb's firewall with the addresses in a Set resource.
type kerbSet struct{ *kerb }

func openKerbSet(lab *netlab.Lab, service *netlab.Host, rules []Rule) (Firewall, error) {
	n, err := node.Start(lab.Node())
	if err != nil {
		return nil, err
	}
	k := kerbSet{&kerb{n}}
	config := firewallConfig(nil)
	config["rules"] = []any{map[string]any{"action": "allow", "direction": "ingress",
		"src": map[string]any{"set": setName}}}
	if err := errors.Join(n.Apply(node.Service(service)), k.Replace(rules),
		n.Apply(node.Module("firewall", "firewall", "*", config))); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

// Replace implements Firewall.
func (k kerbSet) Replace(rules []Rule) error {
	return k.Put("/v1/sets/"+setName, v1.Set{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindSet},
		Metadata: v1.ObjectMeta{Name: setName}, Spec: v1.SetSpec{Type: "addresses", Elements: addresses(rules)}})
}

func (k kerbSet) change(a netip.Addr, add bool) error {
	change := v1.SetChange{Delete: []string{a.String()}}
	if add {
		change.Add, change.Delete = change.Delete, nil
	}
	return k.Call(http.MethodPatch, "/v1/sets/"+setName+"/elements", change, nil)
}

// command changes an element with the command line.
func (k kerbSet) command(a netip.Addr, add bool) error {
	verb := "remove"
	if add {
		verb = "add"
	}
	if out, err := k.Command(context.Background(), "set", verb, setName, a.String()).CombinedOutput(); err != nil {
		return fmt.Errorf("kerb set %s: %w: %s", verb, err, out)
	}
	return nil
}

// elementChanges is the number of elements that a round deletes and adds again.
const elementChanges = 10

// measureElements measures changes of one element, for sets only. Each change with nft starts a process; command_time
// is that of kerb set add.
func measureElements(g *topology) (samples []bench.Sample, err error) {
	set, ok := g.firewall.(withSet)
	if !ok || !isSet(g.rules) {
		return nil, nil
	}
	measure := func(metric string, change func(netip.Addr, bool) error) {
		var times []float64
		for i := range elementChanges {
			a := g.rules[i].Src.Addr()
			for _, add := range []bool{false, true} {
				start := time.Now()
				err = errors.Join(err, change(a, add))
				times = append(times, milliseconds(time.Since(start)))
			}
		}
		samples = append(samples, bench.P50(metric, "ms", bench.Median(times)))
	}
	measure("element_time", set.change)
	if k, ok := g.firewall.(kerbSet); ok {
		measure("command_time", k.command)
	} else {
		measure("command_time", set.change)
	}
	return samples, err
}
