// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"encoding/binary"
	"math"
	"math/bits"
	"net/netip"
	"slices"
)

// Mirrored in classify.h.
const (
	maxSteps  = 128
	chunkSize = 512
	maxForks  = 32

	dimProto = 8
	dimSport = 9
	dimDport = 10
	dims     = 11

	nodeRule  = 64
	nodeMatch = 65
	nodeJump  = 66
	nodeFork  = 67
	nodeEnd   = 68
	nodeClass = 72  // plus a field
	nodeTable = 128 // plus 4 times the dimension
	tableBits = 6
	tableSize = 1 << tableBits
)

// Dimensions by family: IPv4 has its addresses in words 0 and 1, IPv6 in words 0-3 and 4-7.
var (
	dims4 = []int{0, 1, dimProto, dimSport, dimDport}
	dims6 = []int{0, 1, 2, 3, 4, 5, 6, 7, dimProto, dimSport, dimDport}
)

// box is a rule, or a part of the space of packets: an inclusive interval per dimension.
type box struct{ lo, hi [dims]uint32 }

func everything() box {
	var b box
	for d := range b.hi {
		b.hi[d] = math.MaxUint32
	}
	b.hi[dimProto], b.hi[dimSport], b.hi[dimDport] = 255, 65535, 65535
	return b
}

func (b *box) covers(o *box) bool {
	for d := range b.lo {
		if b.lo[d] > o.lo[d] || b.hi[d] < o.hi[d] {
			return false
		}
	}
	return true
}

// boxOf is the rule as a box.
func boxOf(r *Rule, v4 bool) box {
	b := everything()
	if r.Proto >= 0 {
		b.lo[dimProto], b.hi[dimProto] = uint32(r.Proto), uint32(r.Proto)
	}
	b.lo[dimSport], b.hi[dimSport] = uint32(r.SrcPort.Lo), uint32(r.SrcPort.Hi)
	b.lo[dimDport], b.hi[dimDport] = uint32(r.DstPort.Lo), uint32(r.DstPort.Hi)
	if r.ICMPType >= 0 {
		b.lo[dimSport], b.hi[dimSport] = uint32(r.ICMPType), uint32(r.ICMPType)
	}
	words := 4
	if v4 {
		words = 1
	}
	prefixWords(r.Src, b.lo[:words], b.hi[:words])
	prefixWords(r.Dst, b.lo[words:2*words], b.hi[words:2*words])
	return b
}

// prefixWords narrows the intervals of an address's words.
func prefixWords(p netip.Prefix, lo, hi []uint32) {
	if !p.IsValid() {
		return
	}
	text := p.Addr().AsSlice()
	for i := range lo {
		length := min(max(p.Bits()-32*i, 0), 32)
		mask := uint32(uint64(math.MaxUint32) << (32 - length))
		lo[i] = binary.BigEndian.Uint32(text[4*i:]) & mask
		hi[i] = lo[i] | ^mask
	}
}

// node of the tree before it is laid out in chunks.
type node struct {
	kind        int     // 4 times a dimension to cut, or node...
	value       uint32  // last coordinate of the left side, first of a table, rule, record, or chunk of a jump
	shift       int     // of a table: binary logarithm of the width of its parts
	slot        int     // of a jump
	left, right *node   // of a cut; first and second tree of a fork; left is what follows a rule that does not match
	parts       []*node // of a table
	size        int     // nodes in it
}

func leaf(kind int, value uint32) *node { return &node{kind: kind, value: value, size: 1} }

// builder cuts the space until few rules are left in each part.
type builder struct {
	boxes      []box
	failed     bool // a search takes more steps than the budget has
	dims       []int
	starts     []uint32 // scratch of bestCut
	ends       []uint32
	candidates []uint32
}

// Lists up to shortList rules are not worth cutting; many rules that a cut would only copy to both sides get a tree of
// their own alongside it.
const (
	shortList = 2
	manyWide  = 16
)

// budget is what a tree may have.
type budget struct {
	nodes int // in all
	steps int // in the longest search; beyond that the tree has failed
}

func (b budget) of(nodes, taken int) budget { return budget{nodes, b.steps - taken} }

// build returns the tree for the rules of list, which all overlap part. When the budget of nodes runs
// out, lists stay longer than they might: slower, never wrong.
func (b *builder) build(list []int32, part box, budget budget) *node {
	if b.failed = b.failed || budget.steps <= 0; b.failed {
		return leaf(nodeEnd, 0)
	}
	list = b.reduce(list, &part)
	if len(list) <= shortList || budget.nodes < 3*len(list) {
		return b.tryAll(list, &part, budget)
	}
	table, useTable := b.bestTable(list, &part)
	cut, useCut := b.bestCut(list, &part)
	if useTable {
		cut.dim = table.dim
	} else if !useCut {
		return b.tryAll(list, &part, budget)
	}
	wide, narrow := b.split(list, &part, cut.dim)
	switch {
	case len(wide) >= manyWide && len(narrow) >= manyWide:
		return b.fork(narrow, wide, part, budget)
	case useTable && table.edge != nil:
		return b.cut(list, part, *table.edge, budget)
	case useTable && budget.nodes > 4*tableSize:
		return b.table(list, part, table, budget)
	}
	if !useCut {
		return b.tryAll(list, &part, budget)
	}
	return b.cut(list, part, cut, budget)
}

// reduce leaves out what can never be first: all after a rule that covers the part.
func (b *builder) reduce(list []int32, part *box) []int32 {
	for i, id := range list {
		if b.boxes[id].covers(part) {
			return list[:i+1]
		}
	}
	return list
}

// tryAll is a chain, if that has no more steps than it may.
func (b *builder) tryAll(list []int32, part *box, budget budget) *node {
	n := b.chain(list, part)
	b.failed = b.failed || n.size > budget.steps
	return n
}

// chain tries the rules one by one.
func (b *builder) chain(list []int32, part *box) *node {
	if len(list) == 0 {
		return leaf(nodeEnd, 0)
	}
	first := list[0]
	if b.boxes[first].covers(part) {
		return leaf(nodeMatch, uint32(first))
	}
	n := leaf(nodeRule, uint32(first))
	n.left = b.chain(list[1:], part)
	n.size += n.left.size
	return n
}

// split separates the rules that span the part in a dimension from those that do not.
func (b *builder) split(list []int32, part *box, dim int) (wide, narrow []int32) {
	for _, id := range list {
		r := &b.boxes[id]
		if r.lo[dim] <= part.lo[dim] && r.hi[dim] >= part.hi[dim] {
			wide = append(wide, id)
		} else {
			narrow = append(narrow, id)
		}
	}
	return
}

func (b *builder) fork(first, second []int32, part box, budget budget) *node {
	share := budget.nodes * len(first) / (len(first) + len(second))
	n := &node{kind: nodeFork, value: uint32(second[0]), left: b.build(first, part, budget.of(share, 2))}
	n.right = b.build(second, part, budget.of(budget.nodes-n.left.size, 1+n.left.depth()))
	n.size = 2 + n.left.size + n.right.size
	return n
}

// cut splits the box at c.at in one dimension and builds both sides. A rule that spans the cut is in both lists; nodes
// of the budget are shared in proportion to the number of rules.
func (b *builder) cut(list []int32, part box, c cut, budget budget) *node {
	var left, right []int32
	for _, id := range list {
		if b.boxes[id].lo[c.dim] <= c.at {
			left = append(left, id)
		}
		if b.boxes[id].hi[c.dim] > c.at {
			right = append(right, id)
		}
	}
	budget = budget.of(budget.nodes-2, 1)
	share := budget.nodes * (len(left) + 1) / (len(left) + len(right) + 2)
	below, above := part, part
	below.hi[c.dim], above.lo[c.dim] = c.at, c.at+1
	n := &node{kind: 4 * c.dim, value: c.at, left: b.build(left, below, budget.of(share, 0))}
	n.right = b.build(right, above, budget.of(budget.nodes-n.left.size, 0))
	n.size = 1 + n.left.size + n.right.size
	return n
}

// table divides a dimension into tableSize parts of equal width: as good as six cuts where rules are spread evenly.
type table struct {
	dim   int
	base  uint32
	shift int
	edge  *cut // to be made first, so that the part is no wider than the table
	cost  float64
}

const longList = 48 // rules that are worth a table

// bestTable finds the table that leaves the least work. It must divide well and copy little.
func (b *builder) bestTable(list []int32, part *box) (table, bool) {
	best := table{cost: math.Inf(1)}
	if len(list) < longList {
		return best, false
	}
	for _, d := range b.dims {
		if t, ok := b.tableFor(list, part, d); ok && t.cost < best.cost {
			best = t
		}
	}
	return best, !math.IsInf(best.cost, 1)
}

// tableFor lays a table over the smallest aligned block in which rules begin or end.
func (b *builder) tableFor(list []int32, part *box, d int) (table, bool) {
	first, last, ok := b.hull(list, part, d)
	if !ok {
		return table{}, false
	}
	width := max(tableBits, bits.Len32(first^last))
	t := table{dim: d, base: uint32(uint64(first) >> width << width), shift: width - tableBits}
	end := uint64(t.base) + 1<<width - 1
	var counts [tableSize + 1]int
	for _, id := range list {
		r := &b.boxes[id]
		counts[t.index(max(r.lo[d], t.base))]++
		counts[t.index(uint32(min(uint64(r.hi[d]), end)))+1]--
	}
	running, total := 0, 0
	for _, c := range counts[:tableSize] {
		running += c
		total += running
		t.cost += weight(running)
		if running > len(list)/4 {
			return t, false
		}
	}
	if t.base > part.lo[d] {
		t.edge = &cut{dim: d, at: t.base - 1}
	} else if end < uint64(part.hi[d]) {
		t.edge = &cut{dim: d, at: uint32(end)}
	}
	return t, total <= len(list)+len(list)/2
}

func (t *table) index(x uint32) int { return int((x - t.base) >> t.shift) }

// hull is where in the part rules begin or end.
func (b *builder) hull(list []int32, part *box, d int) (first, last uint32, ok bool) {
	first = math.MaxUint32
	for _, id := range list {
		if r := &b.boxes[id]; r.lo[d] > part.lo[d] {
			first, last, ok = min(first, r.lo[d]), max(last, r.lo[d]), true
		}
		if r := &b.boxes[id]; r.hi[d] < part.hi[d] {
			first, last, ok = min(first, r.hi[d]), max(last, r.hi[d]), true
		}
	}
	return
}

// table splits the box into tableSize equal parts, indexed by bits of one dimension, and builds each. The budget that
// one part leaves over passes to the parts after it.
func (b *builder) table(list []int32, part box, t table, budget budget) *node {
	var lists [tableSize][]int32
	total := 0
	for _, id := range list {
		r := &b.boxes[id]
		for i := t.index(max(r.lo[t.dim], part.lo[t.dim])); i <= t.index(min(r.hi[t.dim], part.hi[t.dim])); i++ {
			lists[i] = append(lists[i], id)
			total++
		}
	}
	n := t.node()
	budget = budget.of(budget.nodes-tableSize, 1)
	for i := range lists {
		n.parts[i] = b.build(lists[i], t.part(part, i), budget.of(budget.nodes*len(lists[i])/max(1, total), 0))
		n.size += n.parts[i].size
		budget.nodes -= n.parts[i].size
		total -= len(lists[i])
	}
	return n
}

// node is the node of the table, with no parts yet.
func (t *table) node() *node {
	return &node{kind: nodeTable + 4*t.dim, value: t.base, shift: t.shift, size: 1, parts: make([]*node, tableSize)}
}

// part is what entry i of the table is of a part.
func (t *table) part(whole box, i int) box {
	first := t.base + uint32(i)<<t.shift
	whole.lo[t.dim] = max(whole.lo[t.dim], first)
	whole.hi[t.dim] = min(whole.hi[t.dim], first+1<<t.shift-1)
	return whole
}

// cut splits a dimension into what is at most at, and the rest.
type cut struct {
	dim  int
	at   uint32
	cost float64
}

const maxCandidates = 32 // cuts tried per dimension

// bestCut finds the cut that leaves the least work: an even one that copies few rules to both sides. Only the middle
// half of a dimension's edges is examined, so that each cut takes at least a quarter of them away: where all rules are
// nested, nothing else leads to an end.
func (b *builder) bestCut(list []int32, part *box) (cut, bool) {
	best := cut{cost: math.Inf(1)}
	for _, d := range b.dims {
		b.collect(list, part, d)
		middle := b.candidates[len(b.candidates)/4 : (3*len(b.candidates)+3)/4]
		step := max(1, len(middle)/maxCandidates)
		for i := step / 2; i < len(middle); i += step {
			at := middle[i]
			left := upperBound(b.starts, at)
			right := len(list) - upperBound(b.ends, at)
			if cost := weight(left) + weight(right); cost < best.cost {
				best = cut{d, at, cost}
			}
		}
	}
	return best, !math.IsInf(best.cost, 1)
}

// weight of a number of rules: about the size of their tree.
func weight(n int) float64 {
	if n < len(weights) {
		return weights[n]
	}
	return nLogN(n)
}

func nLogN(n int) float64 { return float64(n) * math.Log2(float64(n)+1) }

// weights are those of short lists, which most cuts are compared by.
var weights = func() (all [128]float64) {
	for n := range all {
		all[n] = nLogN(n)
	}
	return all
}()

// collect fills starts and ends (sorted) and the places where the dimension can be cut (sorted).
func (b *builder) collect(list []int32, part *box, d int) {
	b.starts, b.ends, b.candidates = b.starts[:0], b.ends[:0], b.candidates[:0]
	for _, id := range list {
		r := &b.boxes[id]
		b.starts = append(b.starts, r.lo[d])
		b.ends = append(b.ends, r.hi[d])
		if r.lo[d] > part.lo[d] {
			b.candidates = append(b.candidates, r.lo[d]-1)
		}
		if r.hi[d] < part.hi[d] {
			b.candidates = append(b.candidates, r.hi[d])
		}
	}
	if len(b.candidates) == 0 {
		return
	}
	slices.Sort(b.starts)
	slices.Sort(b.ends)
	slices.Sort(b.candidates)
	b.candidates = slices.Compact(b.candidates)
}

// upperBound counts the elements of a sorted slice that are at most x.
func upperBound(sorted []uint32, x uint32) int {
	n, _ := slices.BinarySearchFunc(sorted, x, func(e, x uint32) int {
		if e <= x {
			return -1
		}
		return 1
	})
	return n
}
