// SPDX-License-Identifier: Apache-2.0

// Package firewall is the control plane of the firewall: it compiles rules to the search tree that firewall.bpf.c
// walks, keeps the hit counters of rules when the rule set changes, ages connections, and explains which rule matches a
// packet.
package firewall

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf/features"

	"github.com/kerb-edge/kerb/sdk"
)

// Control returns the control plane.
func Control() sdk.Control { return sdk.Define(compile) }

func compile(raw json.RawMessage) (*Firewall, error) {
	c, err := parseConfig(raw)
	if err != nil {
		return nil, err
	}
	rules, err := parseRules(c.Rules)
	if err != nil {
		return nil, err
	}
	texts := make([]string, len(rules)) // which take longer than anything else that is made of a rule
	for i := range rules {
		texts[i] = rules[i].text()
	}
	f := &Firewall{config: c, rules: rules, identities: identities(rules, texts), set: ruleSet(c, texts),
		fillSlots: make([]uint32, len(rules))}
	f.compile()
	return f, nil
}

// Firewall is a compiled config.
type Firewall struct {
	config     *config
	rules      []Rule
	identities []uint64 // by rule
	set        uint32   // identifies what is allowed: connections of another rule set are checked again
	tree       *tree
	ids4       []int // index in rules by rule number of the data plane
	ids6       []int
	boxes4     []box
	boxes6     []box
	limited    []int             // rules with a limit or log, by its number
	roots      map[string]uint32 // constant to root

	mu        sync.Mutex
	fillSlots []uint32 // by rule, in the maps that were filled last
}

// running is a started map set: a config and the maps that see packets.
type running struct {
	*Firewall
	live   sdk.Live
	slots  []uint32   // by rule
	owning sync.Mutex // one writer of the own addresses at a time
	log    journal
	moved  atomic.Bool // the attach points have changed
}

var (
	_ sdk.Compiled          = (*Firewall)(nil)
	_ sdk.Handler           = (*running)(nil)
	_ sdk.Runner            = (*running)(nil)
	_ sdk.Collector         = (*running)(nil)
	_ sdk.NoteNamer         = (*running)(nil)
	_ sdk.Conditioner       = (*running)(nil)
	_ sdk.AttachmentWatcher = (*running)(nil)
)

// filling is held while slots are assigned, and until they are in the rules: by one Fill at a time, of any config.
var filling sync.Mutex

// Open implements sdk.Compiled. It looks up the slots of the hit counters in the maps, since Fill may have run for the
// maps of a trial last.
func (f *Firewall) Open(live sdk.Live) (sdk.Running, error) {
	filling.Lock()
	defer filling.Unlock()
	slots, err := keepSlots(live.Maps, f.identities)
	if err != nil {
		return nil, err
	}
	return &running{Firewall: f, live: live, slots: slots}, nil
}

// compile builds the decision trees for both IP versions. A rule without addresses is in both; only rules with a limit
// or a log need a token bucket.
func (f *Firewall) compile() {
	for i := range f.rules {
		if f.rules[i].Limit.isSet() || f.rules[i].Log.isSet() {
			f.limited = append(f.limited, i)
		}
		if r := &f.rules[i]; r.family4() {
			f.ids4, f.boxes4 = append(f.ids4, i), append(f.boxes4, boxOf(r, true))
		}
		if r := &f.rules[i]; r.family6() {
			f.ids6, f.boxes6 = append(f.ids6, i), append(f.boxes6, boxOf(r, false))
		}
	}
	f.tree, f.roots = newTree(), map[string]uint32{}
	f.addTrees(f.ids4, f.boxes4, dims4, "4")
	f.addTrees(f.ids6, f.boxes6, dims6, "6")
}

// addTrees builds the searches of a family; directions with the same rules share one.
func (f *Firewall) addTrees(ids []int, boxes []box, dimensions []int, suffix string) {
	var egress, ingress, egressSets, ingressSets []int32
	for id, i := range ids {
		out, in := &egress, &ingress
		if f.rules[i].hasSets() {
			out, in = &egressSets, &ingressSets
		}
		if f.rules[i].Egress {
			*out = append(*out, int32(id))
		}
		if f.rules[i].Ingress {
			*in = append(*in, int32(id))
		}
	}
	lists := [][]int32{egress, ingress}
	if slices.Equal(egress, ingress) {
		lists = lists[:1]
	}
	roots := f.tree.add(boxes, lists, dimensions)
	ruleOf := func(id int32) *Rule { return &f.rules[ids[id]] }
	f.roots["root_egress"+suffix] = f.tree.addSets(egressSets, ruleOf, roots[0])
	f.roots["root_ingress"+suffix] = f.tree.addSets(ingressSets, ruleOf, roots[len(roots)-1])
}

// ruleSet identifies rules by their texts, with the default policy.
func ruleSet(c *config, texts []string) uint32 {
	h := fnv.New32a()
	for _, text := range texts {
		h.Write([]byte(text + "\n"))
	}
	fmt.Fprint(h, c.DefaultPolicy)
	return h.Sum32()
}

var fragmentPolicies = map[string]uint32{"deny": 0, "allow": 1, "track": 2}

// Settings implements sdk.Compiled.
func (f *Firewall) Settings() sdk.Settings {
	c, t := f.config, f.config.State.Timeouts
	constants := map[string]any{
		"allow_extensions":   bool(c.ExtensionHeaders),
		"allow_malformed":    bool(c.Malformed),
		"allow_non_ip":       c.NonIP.all,
		"ether_types0":       c.NonIP.words()[0],
		"ether_types1":       c.NonIP.words()[1],
		"link_control":       c.LinkControl == "allow",
		"anti_spoof":         c.antiSpoof(),
		"audit":              c.Mode == modeAudit,
		"shallow":            !f.tree.deep,
		"fragments":          fragmentPolicies[c.Fragments],
		"state":              f.stateConstant(),
		"drop_when_full":     c.State.WhenFull == "drop",
		"coarse_clock":       hasCoarseClock(),
		"max_connections":    uint64(c.State.MaxConnections),
		"tcp_syn_ns":         uint64(t.TCPSyn),
		"tcp_established_ns": uint64(t.TCPEstablished),
		"tcp_half_closed_ns": uint64(t.TCPHalfClosed),
		"tcp_closing_ns":     uint64(t.TCPClosing),
		"udp_ns":             uint64(t.UDP),
		"udp_stream_ns":      uint64(t.UDPStream),
		"udp_assured_ns":     uint64(c.State.assured),
		"icmp_ns":            uint64(t.ICMP),
		"pickup_ns":          uint64(c.State.Pickup),
	}
	tunables := map[string]any{
		"generation":    f.set,
		"allow_egress":  bool(c.DefaultPolicy.Egress),
		"allow_ingress": bool(c.DefaultPolicy.Ingress),
	}
	for name, root := range f.roots {
		tunables[name] = root
	}
	sizes, shape := f.sizes(), ""
	if f.isLarge() {
		shape = f.contents()
	} else {
		for name, size := range sizes {
			constants[name+"_half"], sizes[name] = size, 2*size
		}
	}
	established := c.State.MaxConnections
	if !c.State.Enabled {
		established = 1
	}
	sizes[mapEstablished4], sizes[mapEstablished6] = established, established
	return sdk.Settings{Constants: constants, Tunables: tunables, Shape: shape, MaxEntries: sizes, Idle: f.idle(),
		Inbound: f.config.inbound(), Sets: setReferences(f.rules)}
}

// stateConstant mirrors enum fw_tracking.
func (f *Firewall) stateConstant() uint8 {
	switch {
	case !f.config.State.Enabled:
		return 0
	case len(setReferences(f.rules)) > 0:
		return 2
	}
	return 1
}

// isLarge reports whether the rules take so much memory that there is none for two halves. Each such rule set has maps
// of its own.
func (f *Firewall) isLarge() bool { return len(f.tree.chunks) > mostChunks }

// contents identifies what Fill writes.
func (f *Firewall) contents() string {
	h := fnv.New64a()
	fmt.Fprint(h, f.set, f.identities)
	for _, i := range f.limited {
		fmt.Fprint(h, " ", i, f.rules[i].Log)
	}
	return fmt.Sprintf("%016x", h.Sum64())
}

// sizes of the maps of the rules. They are powers of two, so that rule sets of about the same size fit the same maps,
// and replace each other without a new program. The least hold most sets of 1,000 rules in half a MiB.
func (f *Firewall) sizes() map[string]uint32 {
	if f.isLarge() {
		return map[string]uint32{mapTree: uint32(len(f.tree.chunks)), mapRules4: uint32(max(1, len(f.ids4))),
			mapRules6: uint32(max(1, len(f.ids6))), mapLimits: uint32(max(1, len(f.limited)))}
	}
	size := func(least, n int) uint32 { return 1 << bits.Len32(uint32(max(least, n)-1)) }
	return map[string]uint32{mapTree: size(leastChunks, len(f.tree.chunks)), mapRules4: size(leastRules, len(f.ids4)),
		mapRules6: size(leastRules, len(f.ids6)), mapLimits: size(leastLimits, len(f.limited))}
}

const (
	leastChunks = 32 // of 4 KiB
	mostChunks  = 2048
	leastRules  = 1024
	leastLimits = 256
)

// idle names egress when every packet from the service passes whatever it is, and none has to be remembered.
func (f *Firewall) idle() []string {
	c := f.config
	for _, r := range f.rules {
		if r.Egress {
			return nil
		}
	}
	if c.State.Enabled || c.Fragments == "deny" || !bool(c.DefaultPolicy.Egress && c.ExtensionHeaders && c.Malformed) {
		return nil
	}
	if !c.NonIP.all || c.LinkControl == "allow" || c.antiSpoof() {
		return nil
	}
	return []string{"egress"}
}

// hasCoarseClock reports whether the data plane may use bpf_ktime_get_coarse_ns (Linux 5.11). A control plane may not
// load programs, so that it cannot try.
var hasCoarseClock = sync.OnceValue(func() bool {
	version, err := features.LinuxVersionCode()
	return err == nil && version >= 5<<16|11<<8
})

// Names of maps in the data plane.
const (
	mapTree         = "tree"
	mapRules4       = "rules4"
	mapRules6       = "rules6"
	mapHits         = "hits"
	mapOwners       = "owners"
	mapLimits       = "limits"
	mapBuckets      = "buckets"
	mapReports      = "reports"
	mapWouldDrop    = "would_drop"
	mapTable        = "table"
	mapOwn          = "own"
	mapEstablished4 = "established4"
	mapEstablished6 = "established6"
	mapOpening4     = "opening4"
	mapOpening6     = "opening6"
	mapPending4     = "pending4"
	mapPending6     = "pending6"
	mapUsage        = "usage"
)

// Fill implements sdk.Compiled.
func (f *Firewall) Fill(maps sdk.Maps) error {
	filling.Lock()
	defer filling.Unlock()
	slots, err := assignSlots(maps, f.identities)
	if err != nil {
		return err
	}
	if !f.config.State.Enabled {
		if err := forgetUsage(maps); err != nil {
			return err
		}
	}
	f.mu.Lock()
	f.fillSlots = slots
	f.mu.Unlock()
	half, err := maps.FreeHalf()
	if err != nil {
		return err
	}
	begin := f.sizes()
	if f.isLarge() {
		half = 0
	}
	for name := range begin {
		begin[name] *= uint32(half)
	}
	if err := fillFrom(maps, mapTree, begin[mapTree], len(f.tree.chunks), f.chunk); err != nil {
		return err
	}
	if err := fillFrom(maps, mapRules4, begin[mapRules4], len(f.ids4), f.rule4); err != nil {
		return err
	}
	if err := fillFrom(maps, mapLimits, begin[mapLimits], len(f.limited), f.limit); err != nil {
		return err
	}
	return fillFrom(maps, mapRules6, begin[mapRules6], len(f.ids6), f.rule6)
}

// Of a decision in a word: mirrored in classify.h.
const (
	dropPolicy     = 1
	decisionReject = 1 << 24
	decisionLimit  = 1 << 25
	decisionLog    = 1 << 26
)

// l4rule mirrors struct fw_l4rule.
type l4rule struct {
	Sport, Sports, Dport, Dports uint16 // first port and how many follow, host byte order
	Proto, ProtoMask             uint8  // matches if proto & ProtoMask == Proto
	Limit                        uint16 // number of it, with decisionLimit or decisionLog
	Decision                     uint32
}

// rule4 mirrors struct fw_rule4, rule6 struct fw_rule6; pairs of words as words.
type rule4 struct {
	Mask, Value [2]uint32
	L4          l4rule
}

type rule6 struct {
	Mask, Value [8]uint32
	L4          l4rule
}

func (f *Firewall) chunk(id int) (out [chunkSize]uint64) {
	copy(out[:], f.tree.chunks[id])
	return
}

func (f *Firewall) rule4(id int) (out rule4) {
	maskOf(&f.boxes4[id], out.Mask[:], out.Value[:])
	out.L4 = f.l4rule(f.ids4[id])
	return
}

func (f *Firewall) rule6(id int) (out rule6) {
	maskOf(&f.boxes6[id], out.Mask[:], out.Value[:])
	out.L4 = f.l4rule(f.ids6[id])
	return
}

// maskOf turns the intervals of address words, which come from prefixes, into masks: what their ends have in common.
func maskOf(b *box, mask, value []uint32) {
	for i := range mask {
		mask[i], value[i] = ^(b.lo[i] ^ b.hi[i]), b.lo[i]
	}
}

// l4rule returns the part of a rule that the data plane checks after the addresses. An ICMP type takes the place of the
// source port.
func (f *Firewall) l4rule(i int) l4rule {
	r := &f.rules[i]
	sport := r.SrcPort
	if r.ICMPType >= 0 {
		sport = Ports{uint16(r.ICMPType), uint16(r.ICMPType)}
	}
	out := l4rule{Sport: sport.Lo, Sports: sport.Hi - sport.Lo, Dport: r.DstPort.Lo, Dports: r.DstPort.Hi - r.DstPort.Lo,
		Decision: f.slotOf(i)}
	if r.Proto >= 0 {
		out.Proto, out.ProtoMask = uint8(r.Proto), 0xff
	}
	if !r.Allow {
		out.Decision |= dropPolicy << 16
	}
	if r.Reject {
		out.Decision |= decisionReject
	}
	if id, ok := slices.BinarySearch(f.limited, i); ok {
		out.Limit = uint16(id)
	}
	if r.Limit.isSet() {
		out.Decision |= decisionLimit
	}
	if r.Log.isSet() {
		out.Decision |= decisionLog
	}
	return out
}

const fillBatch = 256

// fillFrom writes n elements of an array map.
func fillFrom[T any](maps sdk.Maps, name string, begin uint32, n int, element func(id int) T) error {
	m, err := maps.Get(name)
	if err != nil {
		return err
	}
	for from := 0; from < n; from += fillBatch {
		count := min(fillBatch, n-from)
		keys, values := make([]uint32, count), make([]T, count)
		for i := range count {
			keys[i], values[i] = begin+uint32(from+i), element(from+i)
		}
		if _, err := m.BatchUpdate(keys, values, nil); err != nil {
			return fmt.Errorf("fill map %s: %w", name, err)
		}
	}
	return nil
}
