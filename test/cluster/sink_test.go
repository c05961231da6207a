// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"os/exec"
	"strings"

	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// Ports of the sink: for floods, and for pods that number their packets, to which the number of the node is appended.
const floodPort, flowPort = "9999", "999"

// rules makes the host behind the bridge count packets of floods by source and protocol, before anything can drop them.
const rules = `table inet sink {
	set seen { type ipv4_addr . inet_proto; size 65536; flags dynamic; counter; }
	chain in {
		type filter hook prerouting priority raw;
		meta nfproto ipv4 meta l4proto { tcp, udp } th dport 9999 update @seen { ip saddr . meta l4proto counter } drop
	}
}`

func (c cluster) nft(namespace, input string, args ...string) []byte {
	c.Helper()
	cmd := exec.Command("ip", append([]string{"netns", "exec", namespace, "nft"}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.Fatalf("nft: %v: %s", err, out)
	}
	return out
}

func (c cluster) count() { c.nft("kerb-sink", rules, "-f", "-") }

// reset clears the counts, because addresses of earlier pods are reused.
func (c cluster) reset() { c.nft("kerb-sink", "", "flush", "set", "inet", "sink", "seen") }

// arrived returns the packets of each address by protocol.
func (c cluster) arrived() map[string]map[string]int {
	c.Helper()
	var answer struct {
		Nftables []struct {
			Set struct {
				Elem []struct {
					Elem struct {
						Val     struct{ Concat []string }
						Counter struct{ Packets int }
					}
				}
			}
		}
	}
	if err := json.Unmarshal(c.nft("kerb-sink", "", "-j", "list", "set", "inet", "sink", "seen"), &answer); err != nil {
		c.Fatal(err)
	}
	all := map[string]map[string]int{}
	for _, part := range answer.Nftables {
		for _, e := range part.Set.Elem {
			address := e.Elem.Val.Concat[0]
			if all[address] == nil {
				all[address] = map[string]int{}
			}
			all[address][e.Elem.Val.Concat[1]] += e.Elem.Counter.Packets
		}
	}
	return all
}

// awaitPackets waits until more datagrams and SYNs from an address arrive.
func (c cluster) awaitPackets(address string) {
	c.Helper()
	before := c.arrived()[address]
	wait.Until(c, "packets of "+address+" arrive", func() bool {
		now := c.arrived()[address]
		return now["udp"] > before["udp"] && now["tcp"] > before["tcp"]
	}, func() any { return c.arrived() })
}

// onlyOpen waits until all pods have sent more, and fails if a packet of a denied pod has arrived; packets of the open
// pod have to arrive.
func (c cluster) onlyOpen(all []pod, container int) {
	c.Helper()
	before := map[string]int{}
	for _, p := range all {
		before[p.name] = c.flood(p, container).syns
	}
	for _, p := range all {
		wait.Until(c, p.name+" sends", func() bool { return c.flood(p, container).syns > before[p.name] })
	}
	open, sent, passed := map[string]bool{}, 0, 0
	for _, p := range all {
		f := c.flood(p, container)
		if p.denied {
			sent += f.datagrams + f.syns
		} else {
			c.awaitPackets(f.address)
			for i := range container + 1 { // it had another address before
				open[c.flood(p, i).address] = true
			}
		}
	}
	for address, packets := range c.arrived() {
		for protocol, n := range packets {
			if !open[address] {
				c.Errorf("%d %s packets of %s have passed", n, protocol, address)
				passed += n
			}
		}
	}
	c.Logf("%d pods that are denied sent %d packets, %d passed", denied(all), sent, passed)
}
