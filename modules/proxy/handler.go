// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"sort"
	"strconv"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

// Handler serves:
//
//	GET services     virtual services with their addresses; ?name=
//	GET instances    instances with their sessions and connect times; ?service=
//	GET sessions     open sessions; ?service=, ?instance=, ?client= (address), ?protocol=, ?limit=n, 1000 by default
//	GET held         packets that wait for their destination to be known, and unknown addresses
//	GET stats        how full the tables are, and what happened so far
func (w *running) Handler() http.Handler {
	mux := http.NewServeMux()
	serve := func(path string, do func(url.Values) (any, error)) {
		mux.HandleFunc("GET /"+path, func(to http.ResponseWriter, r *http.Request) { sdk.Answer(to)(do(r.URL.Query())) })
	}
	serve("services", func(q url.Values) (any, error) { return w.listServices(q.Get("name")), nil })
	serve("instances", func(q url.Values) (any, error) { return w.listInstances(q.Get("service")), nil })
	serve("sessions", func(q url.Values) (any, error) { return w.listSessions(q) })
	serve("held", func(url.Values) (any, error) { return w.listHeld(time.Now()), nil })
	serve("stats", func(url.Values) (any, error) { return w.stats() })
	return mux
}

func compareText(a, b string) int { return cmp.Compare(a, b) }

// ServiceReport is a virtual service.
type ServiceReport struct {
	Name      string          `json:"name"`
	Dynamic   bool            `json:"dynamic,omitempty"`
	Addresses []AddressReport `json:"addresses"`
	Instances []string        `json:"instances"`
	Problem   string          `json:"problem,omitempty"` // why not all of it works
}

// AddressReport is a virtual address.
type AddressReport struct {
	Address  string `json:"address"`
	Policy   string `json:"policy,omitempty"`
	Instance string `json:"instance,omitempty"` // the one that it stands for
	// length of the run that instances are chosen from; 0: none takes new sessions
	Slots uint32 `json:"slots"`
	// time-out of the affinity
	Affinity string `json:"affinity,omitempty"`
	// slots of the ports that not all instances serve, such as "tcp 80"
	Ports map[string]uint32 `json:"ports,omitempty"`
	ID    uint32            `json:"id"`
}

// listServices returns the services sorted by name; an empty name selects all. Address policies are empty where an
// address belongs to one instance.
func (w *running) listServices(name string) []ServiceReport {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := []ServiceReport{}
	for _, s := range w.services {
		if name != "" && s.name != name {
			continue
		}
		r := ServiceReport{Name: s.name, Dynamic: s.dynamic, Addresses: []AddressReport{}, Instances: []string{}}
		if s.trouble != nil {
			r.Problem = s.trouble.Error()
		}
		for _, v := range s.virtuals {
			a := AddressReport{Address: v.addr.String(), Policy: string(v.policy), Instance: v.only, Slots: v.value.Count,
				ID: v.value.ID}
			if v.only != "" {
				a.Policy = ""
			}
			if v.affinity > 0 {
				a.Affinity = v.affinity.String()
			}
			for id, of := range v.split {
				if a.Ports == nil {
					a.Ports = map[string]uint32{}
				}
				a.Ports[fmt.Sprint(protocolName(id.proto), " ", id.port.number())] = of.value.Count
			}
			r.Addresses = append(r.Addresses, a)
		}
		for _, t := range s.targets {
			r.Instances = append(r.Instances, t.name)
		}
		out = append(out, r)
	}
	sort.Slice(out, func(i, j int) bool { return compareText(out[i].Name, out[j].Name) < 0 })
	return out
}

// InstanceReport is an instance.
type InstanceReport struct {
	Service    string   `json:"service,omitempty"` // absent: it is gone, and its last sessions with it soon
	Name       string   `json:"name,omitempty"`
	Index      uint32   `json:"index"`
	Generation uint32   `json:"generation"` // one more with each redeployment
	Addresses  []string `json:"addresses"`
	State      string   `json:"state"` // ready, draining, ejected, gone
	Interface  string   `json:"interface,omitempty"`
	// peer: straight into its namespace; interface: through its chain; ordinary: by the bridge or the stack
	Path     string `json:"path"`
	Node     string `json:"node,omitempty"`
	Weight   uint32 `json:"weight,omitempty"`
	Distance uint32 `json:"distance,omitempty"`
	Sessions int64  `json:"sessions"`
	Opened   uint64 `json:"opened"`            // ever
	Connect  string `json:"connect,omitempty"` // time from SYN to SYN/ACK, moving average
	Failures uint64 `json:"failures"`          // connects refused or not answered, ever
	Ejected  string `json:"ejected,omitempty"` // why it gets no new sessions, and for how long
}

// listInstances returns instances sorted by service, name and index; an empty service selects all, including instances
// that were removed and still have sessions.
func (w *running) listInstances(service string) []InstanceReport {
	w.mu.Lock()
	defer w.mu.Unlock()
	interfaces := map[uint32]*localService{}
	for _, l := range w.locals.byIfindex {
		interfaces[l.index] = l
	}
	out := []InstanceReport{}
	for _, t := range w.targets {
		if r := w.report(t, interfaces[t.place().Local]); service == "" || r.Service == service {
			out = append(out, r)
		}
	}
	sort.Slice(out, func(i, j int) bool {
		a, b := &out[i], &out[j]
		return cmp.Or(compareText(a.Service, b.Service), compareText(a.Name, b.Name), cmp.Compare(a.Index, b.Index)) < 0
	})
	return out
}

// report describes an instance and its path from this node. Gone wins over draining, draining over ejected. The caller
// holds mu.
func (w *running) report(t *target, at *localService) InstanceReport {
	stats := &w.maps.stats[t.index]
	r := InstanceReport{Name: t.name, Index: t.index, Generation: t.entry.Generation, Addresses: t.place().addresses(),
		State: "ready", Path: "ordinary",
		Node: t.node, Weight: t.weight, Distance: t.distance, Sessions: stats.sessions(), Opened: stats.opened(),
		Failures: stats.failures()}
	if t.service != nil {
		r.Service = t.service.name
	}
	switch {
	case t.entry.Flags&instanceGone != 0:
		r.State = "gone"
	case t.drains:
		r.State = "draining"
	case t.health.ejected():
		r.State, r.Ejected = "ejected", t.health.text()
	}
	if at != nil {
		r.Interface = at.Interface
		if w.config.ShortPath && at.entry.MAC != [6]byte{} {
			r.Path = "interface"
			if at.entry.Flags&localPeer != 0 {
				r.Path = "peer"
			}
		}
	}
	if rtt := time.Duration(stats.rtt()); rtt != 0 {
		r.Connect = rtt.String()
	}
	return r
}

func (p *place) addresses() []string {
	out := []string{}
	if p.Addr4 != [4]byte{} {
		out = append(out, netip.AddrFrom4(p.Addr4).String())
	}
	if p.Addr6 != (address{}) {
		out = append(out, p.Addr6.addr().String())
	}
	return out
}

// SessionReport is a session.
type SessionReport struct {
	Protocol string `json:"protocol"`
	Client   string `json:"client"` // with port; for ICMP the port is the identifier
	Virtual  string `json:"virtual"`
	Target   string `json:"target"`
	Service  string `json:"service,omitempty"`
	Instance string `json:"instance,omitempty"`
	Ifindex  uint32 `json:"ifindex"` // of the client's interface
	State    string `json:"state"`   // new, established, half_closed, closing, reset
	Hairpin  bool   `json:"hairpin,omitempty"`
	Idle     string `json:"idle"`
}

// SessionsReport is the answer of GET sessions.
type SessionsReport struct {
	Sessions  []SessionReport `json:"sessions"`
	Truncated bool            `json:"truncated,omitempty"`
}

const (
	defaultLimit = 1000
	maxLimit     = 100_000
)

// listSessions returns each session once, by its forward entry, up to the limit of the query, and then sets Truncated.
// Kept sessions are listed before pending ones.
func (w *running) listSessions(q url.Values) (*SessionsReport, error) {
	limit := defaultLimit
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, &sdk.ConfigError{Field: "limit", Reason: "must be a number from 1 to " + strconv.Itoa(maxLimit)}
		}
		limit = min(n, maxLimit)
	}
	out := &SessionsReport{Sessions: []SessionReport{}}
	now := sdk.Monotonic()
	list := func(keys []flow, values []session) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for i := range keys {
			if values[i].Flags&sessionReverse != 0 || keys[i].Hook == hookAffinity {
				continue
			}
			r := w.reportSession(&keys[i], &values[i], now)
			if !matches(q, &r) {
				continue
			}
			if len(out.Sessions) == limit {
				out.Truncated = true
				return
			}
			out.Sessions = append(out.Sessions, r)
		}
	}
	if err := each(w.maps.sessions, mapSessions, list); err != nil {
		return nil, err
	}
	return out, each(w.maps.pending, mapPending, list)
}

// reportSession describes a session from its forward key. ICMP has an identifier in place of ports, so its endpoints
// are plain addresses. now is monotonic, in nanoseconds. The caller holds mu.
func (w *running) reportSession(k *flow, s *session, now uint64) SessionReport {
	r := SessionReport{Protocol: protocolName(k.Proto), Client: endpoint(k.Src, k.SPort),
		Virtual: endpoint(k.Dst, k.DPort), Target: endpoint(s.Addr, s.DPort),
		Ifindex: k.Ifindex, State: stateName(s.State), Hairpin: s.Flags&sessionHairpin != 0,
		Idle: time.Duration(now - min(now, s.Seen)).Round(time.Second).String()}
	if k.Proto == protoICMP || k.Proto == protoICMPv6 {
		r.Virtual, r.Target = k.Dst.addr().String(), s.Addr.addr().String()
	}
	if t := w.byIndex[s.Instance]; t != nil {
		r.Instance = t.name
		if t.service != nil {
			r.Service = t.service.name
		}
	}
	return r
}

func matches(q url.Values, r *SessionReport) bool {
	client, _ := netip.ParseAddrPort(r.Client)
	for name, value := range map[string]string{"service": r.Service, "instance": r.Instance, "protocol": r.Protocol,
		"client": client.Addr().String()} {
		if want := q.Get(name); want != "" && want != value {
			return false
		}
	}
	return true
}

func endpoint(a address, p port) string { return netip.AddrPortFrom(a.addr(), p.number()).String() }

// protocolName returns the name that the configuration uses, or the decimal protocol number.
func protocolName(n uint8) string {
	switch n {
	case protoICMP:
		return "icmp"
	case protoICMPv6:
		return "icmpv6"
	}
	for name, number := range protocols {
		if number == n {
			return string(name)
		}
	}
	return strconv.Itoa(int(n))
}

// Occupancy is how full a table is.
type Occupancy struct {
	Used     int `json:"used"`
	Capacity int `json:"capacity"`
}

// StatsReport is the answer of GET stats.
type StatsReport struct {
	Tables    map[string]Occupancy `json:"tables"`
	Sessions  tally                `json:"sessions"`        // as the last sweep found them
	Sweep     string               `json:"sweep,omitempty"` // how long it took
	Events    map[string]uint64    `json:"events"`
	Unknown   unknowns             `json:"unknown"`
	Instances map[string]int       `json:"instances"` // by state
	Ejections uint64               `json:"ejections"` // ever
	Failures  uint64               `json:"failures"`  // connects that instances refused or did not answer
}

// countNames are the counters of the data plane.
var countNames = [...]string{countOpened: "opened", countReselected: "reselected", countMoved: "moved",
	countReset: "reset", countUnknown: "unknown",
	countUnanswered: "unanswered", countNegative: "negative", countNoInstance: "no_instance", countNoPort: "no_port",
	countClash:     "clash",
	countNoSession: "no_session", countFragment: "fragment", countTableFull: "table_full", countOverQuota: "over_quota",
	countCrowded:   "crowded",
	countRecovered: "recovered"}

// stats returns counters, instance states and how full each table is. A session has two entries, one per direction, so
// entries and capacity are halved; index 0 of instances and interfaces is never used.
func (w *running) stats() (*StatsReport, error) {
	counters, err := w.counters()
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	ports, addresses := 0, len(w.addresses)
	for _, v := range w.addresses {
		ports += len(v.ports)
		addresses += len(v.split)
	}
	states, failures := map[string]int{"ready": 0, "draining": 0, "ejected": 0, "gone": 0}, uint64(0)
	for _, t := range w.targets {
		ports += len(t.ports)
		states[w.report(t, nil).State]++
		failures += w.maps.stats[t.index].failures()
	}
	k := w.maps
	out := &StatsReport{Events: counters, Unknown: w.unknowns, Sessions: w.tally, Instances: states,
		Ejections: w.ejections, Failures: failures, Tables: map[string]Occupancy{
			"sessions":   {(w.tally.Entries+1)/2 + w.tally.Affinities, int(k.sessions.MaxEntries()) / 2},
			"pending":    {(w.tally.Pending + 1) / 2, int(k.pending.MaxEntries()) / 2},
			"addresses":  {addresses, int(w.config.Tables.Addresses)},
			"ports":      {ports, int(k.ports.MaxEntries())},
			"instances":  {len(w.targets), int(k.instances.MaxEntries()) - 1},
			"slots":      {int(w.slots.used), int(k.slots.MaxEntries())},
			"interfaces": {len(w.locals.byIfindex), int(k.locals.MaxEntries()) - 1},
		}}
	if !w.tally.At.IsZero() {
		out.Sweep = w.tally.Took.Round(time.Microsecond).String()
	}
	return out, nil
}

// counters sums those of the data plane over the CPUs.
func (w *running) counters() (map[string]uint64, error) {
	out := map[string]uint64{}
	var perCPU []uint64
	for i, name := range countNames {
		if err := w.maps.counts.Lookup(uint32(i), &perCPU); err != nil {
			return nil, fmt.Errorf("read map %s: %w", mapCounts, err)
		}
		for _, n := range perCPU {
			out[name] += n
		}
	}
	return out, nil
}

// Collect implements sdk.Collector.
func (w *running) Collect() ([]sdk.Sample, error) {
	s, err := w.stats()
	if err != nil {
		return nil, err
	}
	var out []sdk.Sample
	add := func(name, help string, counter bool, value float64, labels ...string) {
		sample := sdk.Sample{Name: name, Help: help, Counter: counter, Value: value}
		if len(labels) == 2 {
			sample.Labels = map[string]string{labels[0]: labels[1]}
		}
		out = append(out, sample)
	}
	for name, o := range s.Tables {
		add("table_used", "Entries in use.", false, float64(o.Used), "table", name)
		add("table_capacity", "Maximum number of entries.", false, float64(o.Capacity), "table", name)
	}
	for state, n := range s.Sessions.States {
		add("sessions", "Sessions, as the last sweep found them.", false, float64(n), "state", state)
	}
	for state, n := range s.Instances {
		add("instances", "Instances of virtual services.", false, float64(n), "state", state)
	}
	add("instance_ejections_total", "How often an instance was ejected because connects to it failed.", true,
		float64(s.Ejections))
	add("instance_connect_failures", "Connects that the current instances refused or did not answer.", false,
		float64(s.Failures))
	add("sessions_evictable", "Live sessions beyond the share of their interface, which may be evicted.", false,
		float64(s.Sessions.Evictable))
	for event, n := range s.Events {
		add("events_total", "Actions of the data plane other than translating packets.", true, float64(n), "event", event)
	}
	add("affinities", "Clients whose last instance is remembered, as of the last sweep.", false,
		float64(s.Sessions.Affinities))
	add("sessions_expired_total", "Entries of sessions that were removed because of their age.", true,
		float64(s.Sessions.Expired))
	add("sweep_seconds", "How long the last sweep of sessions took.", false, s.Sessions.Took.Seconds())
	held := w.listHeld(time.Now())
	add("held_packets", "Packets that wait for their destination to be known.", false, float64(held.Packets))
	add("held_dropped_total", "Held packets that gave way to younger ones.", true, float64(held.Dropped))
	for outcome, n := range map[string]uint64{"asked": s.Unknown.Asked, "answered": s.Unknown.Answered,
		"denied": s.Unknown.Denied, "overdue": s.Unknown.Overdue} {
		add("unknown_addresses_total", "Unknown addresses, by outcome.", true, float64(n), "outcome", outcome)
	}
	for outcome, n := range map[string]uint64{"injected": s.Unknown.Injected, "lost": s.Unknown.Lost} {
		add("held_packets_total", "Held packets, by outcome.", true, float64(n), "outcome", outcome)
	}
	return out, nil
}
