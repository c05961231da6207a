// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/sdk"
)

// Node is a node as GET nodes reports it.
type Node struct {
	Address   string         `json:"address"`
	Subnets   []netip.Prefix `json:"subnets,omitempty"`   // of the configuration
	Instances []netip.Addr   `json:"instances,omitempty"` // of virtual services
	Interface string         `json:"interface,omitempty"` // by which it is reached; absent if it is not
	Source    string         `json:"source,omitempty"`    // this node's address towards it
	MTU       int            `json:"mtu,omitempty"`       // of inner packets
	// of outer packets, if routers have reported a smaller one than the interface's
	PathMTU int    `json:"pathMTU,omitempty"`
	Refused string `json:"refused,omitempty"` // why no packets are sent to it or taken from it: an IPsec policy
	Keys    []int  `json:"keys,omitempty"`    // ids of its own keys
	Local   bool   `json:"local,omitempty"`   // it is this node
	Stats
}

// Report is the answer of GET nodes.
type Report struct {
	Mode      string `json:"mode"`
	Port      uint16 `json:"port"`
	Network   uint16 `json:"network"`
	Keys      []int  `json:"keys,omitempty"` // ids; the first is sent with
	Addresses int    `json:"addresses"`      // of services of this node
	Nodes     []Node `json:"nodes"`
	// Held counts packets whose source was to be looked up by result, in mode oakestra.
	Held *heldCounts `json:"held,omitempty"`
}

// report describes the mode, the keys by ID only, and all nodes that have an entry in the data plane.
func (t *tunnel) report() (*Report, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.config
	out := &Report{Mode: c.Mode, Port: c.Port, Network: c.Network, Nodes: []Node{}}
	for _, k := range c.Keys {
		out.Keys = append(out.Keys, k.ID)
	}
	if c.Mode == modeOakestra {
		counts := t.held.counts
		out.Held = &counts
	}
	hosts := map[address]end{}
	for _, i := range t.live.Attachments() {
		addServices(hosts, i, always)
	}
	out.Addresses = len(hosts)
	places, err := readPlaces(t.live.Maps)
	if err != nil {
		return nil, err
	}
	locals := c.locals(t.links())
	for at, n := range places.nodes {
		if n.Addr == (address{}) {
			continue
		}
		described, err := t.describe(uint32(at), n, places)
		if err != nil {
			return nil, err
		}
		described.Local = locals[n.Addr.addr()]
		out.Nodes = append(out.Nodes, described)
	}
	return out, nil
}

// describe returns a node's configuration, virtual instances, link, path MTU and counters summed over all CPUs. MTU is
// what is left for inner packets. The caller holds mu.
func (t *tunnel) describe(at uint32, n node, places *places) (Node, error) {
	addr := n.Addr.addr()
	out := Node{Address: addr.String(), PathMTU: t.pathTo(addr), Refused: t.refused[addr]}
	for _, p := range t.config.peers {
		if p.addr != addr {
			continue
		}
		out.Subnets = p.subnets
		for _, k := range p.keys {
			out.Keys = append(out.Keys, k.id)
		}
	}
	for _, list := range t.virtual {
		for _, r := range list {
			if r.node == addr {
				out.Instances = append(out.Instances, r.addr)
			}
		}
	}
	slices.SortFunc(out.Instances, netip.Addr.Compare)
	for _, i := range t.live.Attachments() {
		if i.Ifindex == n.Ifindex {
			out.Interface, out.MTU = i.Interface, int(n.MTU)-t.config.overhead(addr)
		}
	}
	if n.Local != (address{}) {
		out.Source = n.Local.addr().String()
	}
	var perCPU []Stats
	if err := places.stats.Lookup(at, &perCPU); err != nil {
		return out, err
	}
	for _, s := range perCPU {
		out.Stats = out.Stats.plus(s)
	}
	return out, nil
}

// answerAddresses answers for one address, or for all of them.
func (t *tunnel) answerAddresses(query url.Values) ([]netip.Addr, error) {
	if !query.Has("address") {
		return t.addresses()
	}
	addr, err := netip.ParseAddr(query.Get("address"))
	if err != nil {
		return nil, &sdk.ConfigError{Field: "address", Reason: err.Error()}
	}
	return t.ifDelivered(addr)
}

// ifDelivered lists the address if the data plane delivers packets to it. It reads no other entry.
func (t *tunnel) ifDelivered(addr netip.Addr) ([]netip.Addr, error) {
	var e end
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.live.Maps.Lookup(mapHosts, address(addr.As16()), &e)
	if errors.Is(err, ebpf.ErrKeyNotExist) || err == nil && !e.isHere() {
		return []netip.Addr{}, nil
	}
	if err != nil {
		return nil, err
	}
	return []netip.Addr{addr.Unmap()}, nil
}

// isHere reports whether a service of this node has the address.
func (e end) isHere() bool { return e.Node == 0 && e.Ifindex != 0 }

// addresses lists the addresses of this node's services that the data plane delivers packets to.
func (t *tunnel) addresses() ([]netip.Addr, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	hosts, err := sdk.ReadTable[address, end](t.live.Maps, mapHosts)
	if err != nil {
		return nil, err
	}
	out := []netip.Addr{}
	for a, e := range hosts {
		if e.isHere() {
			out = append(out, a.addr())
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out, nil
}

// Handler serves GET nodes and GET addresses.
func (t *tunnel) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /nodes", func(w http.ResponseWriter, _ *http.Request) { sdk.Answer(w)(t.report()) })
	mux.HandleFunc("GET /addresses", func(w http.ResponseWriter, r *http.Request) {
		sdk.Answer(w)(t.answerAddresses(r.URL.Query()))
	})
	return mux
}

// Collect implements sdk.Collector.
func (t *tunnel) Collect() ([]sdk.Sample, error) {
	report, err := t.report()
	if err != nil {
		return nil, err
	}
	out := []sdk.Sample{
		{Name: "nodes", Help: "Known nodes.", Value: float64(len(report.Nodes))},
		{Name: "local_addresses", Help: "Addresses of services of this node.", Value: float64(report.Addresses)},
	}
	if h := report.Held; h != nil {
		for result, n := range map[string]uint64{"passed": h.Passed, "denied": h.Denied, "overdue": h.Overdue,
			"dropped": h.Dropped, "long": h.Long} {
			out = append(out, sdk.Sample{Name: "held_packets_total", Help: "Packets whose source was to be looked up, by " +
				"result. Those that are long do not wait.", Counter: true, Value: float64(n),
				Labels: map[string]string{"result": result}})
		}
	}
	refused := 0
	for _, n := range report.Nodes {
		if n.Refused != "" {
			refused++
		}
		for _, s := range []struct {
			name, help, direction string
			value                 uint64
		}{
			{"packets_total", "Packets to and from a node.", "sent", n.SentPackets},
			{"packets_total", "Packets to and from a node.", "received", n.ReceivedPackets},
			{"bytes_total", "Bytes of inner packets to and from a node.", "sent", n.SentBytes},
			{"bytes_total", "Bytes of inner packets to and from a node.", "received", n.ReceivedBytes},
		} {
			out = append(out, sdk.Sample{Name: s.name, Help: s.help, Counter: true, Value: float64(s.value),
				Labels: map[string]string{"node": n.Address, "direction": s.direction}})
		}
		for _, s := range []struct {
			name, help string
			value      uint64
		}{
			{"too_big_total", "Packets to a node that were too big.", n.TooBig},
			{"errors_total", "Packets from a node that were dropped.", n.Errors},
			{"fragmented_total", "Packets that were sent to a node as fragments.", n.Fragmented},
		} {
			out = append(out, sdk.Sample{Name: s.name, Help: s.help, Counter: true, Value: float64(s.value),
				Labels: map[string]string{"node": n.Address}})
		}
		if n.Interface != "" {
			out = append(out, sdk.Sample{Name: "mtu_bytes", Help: "Largest inner packet to a node.", Value: float64(n.MTU),
				Labels: map[string]string{"node": n.Address}})
		}
	}
	out = append(out, sdk.Sample{Name: "refused_nodes", Help: "Nodes whose packets are dropped because an IPsec policy " +
		"covers them.", Value: float64(refused)})
	return out, nil
}
