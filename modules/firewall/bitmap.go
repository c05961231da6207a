// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"math/bits"
	"slices"
)

// Mirrored in classify.h.
const (
	blockWords = 8 // of a row: a cache line
	blockRules = 64 * blockWords
	maxBlocks  = 20 // MaxRules / blockRules

	recordWords = 16

	numbersField = 5 // of the record of the rule numbers, behind those of the classes
)

// bitmap finds the first match among rules that no tree separates. The values of each field fall into classes: those of
// a class are in the same rules. A class has a record, which has a row for each block of rules: a bit per rule. The AND
// of the rows of a packet's classes is what matches it.
type bitmap struct {
	tree  *tree
	boxes []box
	list  []int32 // bit to rule, ascending
}

// fields are the dimensions that a class tree searches together: the words of an address are one field.
func fields(dimensions []int) [][]int {
	words := (len(dimensions) - 3) / 2
	return [][]int{dimensions[:words], dimensions[words : 2*words], {dimSport}, {dimDport}, {dimProto}}
}

// add lays out a class tree per field and returns the node that starts the search, for each of the lists: those rules
// of the bitmap that are in it. The lists share all but the trees of the last field.
func (b *bitmap) add(lists [][]int32, dimensions []int) []*node {
	all := fields(dimensions)
	last := len(all) - 1
	shared := make([]*node, last, len(all))
	full := b.bitsOf(b.list)
	for i := range shared {
		shared[i] = b.addClasses(i, all[i], full)
	}
	numbers := b.addNumbers()
	out := make([]*node, len(lists))
	for i, list := range lists {
		if len(list) == 0 {
			continue
		}
		n := b.addClasses(last, all[last], b.bitsOf(list))
		for _, field := range slices.Backward(append(shared, numbers)) {
			n = forkOf(n, field, list[0])
		}
		out[i] = n
	}
	return out
}

func forkOf(first, second *node, rule int32) *node {
	return &node{kind: nodeFork, value: uint32(rule), left: first, right: second, size: 2 + first.size + second.size}
}

// bitsOf is a set of rules as bits.
func (b *bitmap) bitsOf(list []int32) []uint64 {
	out := make([]uint64, (len(b.list)+63)/64)
	for _, id := range list {
		i, _ := slices.BinarySearch(b.list, id)
		setBit(out, i)
	}
	return out
}

func setBit(set []uint64, i int) { set[i/64] |= 1 << (i % 64) }

// addClasses lays out the tree that finds the class of a field's value, among the rules of possible, and returns a jump
// to it.
func (b *bitmap) addClasses(field int, dimensions []int, possible []uint64) *node {
	c := classes{bitmap: b, field: field, dims: dimensions}
	var open []int32
	for i := range b.list {
		if possible[i/64]>>(i%64)&1 != 0 {
			open = append(open, int32(i))
		}
	}
	return b.tree.jumpTo(c.build(open, make([]uint64, len(possible)), everything()))
}

// addNumbers writes the numbers of the rules, in the order of their bits.
func (b *bitmap) addNumbers() *node {
	var blocks [maxBlocks]uint32
	for i, id := range b.list {
		if i%blockRules == 0 {
			blocks[i/blockRules] = b.tree.room(&b.tree.numberPage, blockRules/2)
		}
		b.tree.put32(blocks[i/blockRules], i%blockRules, uint32(id))
	}
	return leaf(nodeClass+numbersField, b.tree.record(blocks))
}

// classes builds the tree of a field.
type classes struct {
	*bitmap
	field int
	dims  []int
	edges []uint32 // scratch
}

// build returns the tree of a part. The rules in covering (a set of bits) cover it; those in open, by bit, overlap it.
func (c *classes) build(open []int32, covering []uint64, part box) *node {
	open, covering = c.close(open, covering, &part)
	if len(open) == 0 {
		return leaf(nodeClass+c.field, c.tree.class(covering))
	}
	d := c.collectEdges(open, &part)
	slices.Sort(c.edges)
	if t, ok := c.tableOf(&part, d); ok {
		if t.edge != nil {
			return c.cut(open, covering, part, *t.edge)
		}
		return c.table(open, covering, part, t)
	}
	return c.cut(open, covering, part, cut{dim: d, at: c.edges[len(c.edges)/2]})
}

// close moves rules that cover the part from open to covering and drops those outside.
func (c *classes) close(open []int32, covering []uint64, part *box) ([]int32, []uint64) {
	var rest []int32
	covering = slices.Clone(covering)
	for _, i := range open {
		r := &c.boxes[c.list[i]]
		covers, outside := true, false
		for _, d := range c.dims {
			covers = covers && r.lo[d] <= part.lo[d] && r.hi[d] >= part.hi[d]
			outside = outside || r.lo[d] > part.hi[d] || r.hi[d] < part.lo[d]
		}
		if covers {
			setBit(covering, int(i))
		} else if !outside {
			rest = append(rest, i)
		}
	}
	return rest, covering
}

// collectEdges finds where rules begin or end in the part, in the first dimension in which any does: the last value
// before a rule and the last value of one. A cut at the median halves them.
func (c *classes) collectEdges(open []int32, part *box) int {
	for _, d := range c.dims {
		c.edges = c.edges[:0]
		for _, i := range open {
			r := &c.boxes[c.list[i]]
			if r.lo[d] > part.lo[d] {
				c.edges = append(c.edges, r.lo[d]-1)
			}
			if r.hi[d] < part.hi[d] {
				c.edges = append(c.edges, r.hi[d])
			}
		}
		if len(c.edges) > 0 {
			return d
		}
	}
	panic("a rule that neither covers the part nor ends in it")
}

// tableOf divides the smallest aligned block with all edges. It must do more work than as many cuts, with those that it
// needs before it.
func (c *classes) tableOf(part *box, d int) (table, bool) {
	first, last := c.edges[0], c.edges[len(c.edges)-1]
	width := max(tableBits, bits.Len32(first^last))
	t := table{dim: d, base: uint32(uint64(first) >> width << width), shift: width - tableBits}
	var counts [tableSize]int
	for _, e := range c.edges {
		counts[t.index(e)]++
	}
	end, work := uint64(t.base)+1<<width-1, 4
	if end < uint64(part.hi[d]) {
		t.edge, work = &cut{dim: d, at: uint32(end)}, 2*work
	}
	if t.base > part.lo[d] {
		t.edge, work = &cut{dim: d, at: t.base - 1}, 2*work
	}
	return t, len(c.edges) >= 16 && work*slices.Max(counts[:]) <= len(c.edges)
}

func (c *classes) cut(open []int32, covering []uint64, part box, at cut) *node {
	below, above := part, part
	below.hi[at.dim], above.lo[at.dim] = at.at, at.at+1
	n := &node{kind: 4 * at.dim, value: at.at, left: c.build(open, covering, below)}
	n.right = c.build(open, covering, above)
	n.size = 1 + n.left.size + n.right.size
	return n
}

func (c *classes) table(open []int32, covering []uint64, part box, t table) *node {
	n := t.node()
	for i := range n.parts {
		n.parts[i] = c.build(open, covering, t.part(part, i))
		n.size += n.parts[i].size
	}
	return n
}

// class stores the record of a set of rules, and its rows, unless they are stored already. It returns the record's
// address.
func (t *tree) class(set []uint64) uint32 {
	var rows [maxBlocks]uint32
	for i := range rows {
		var row [blockWords]uint64
		if from := i * blockWords; from < len(set) {
			copy(row[:], set[from:])
			rows[i] = t.row(row)
		}
	}
	return t.record(rows)
}

func (t *tree) record(blocks [maxBlocks]uint32) uint32 {
	if at, ok := t.records[blocks]; ok {
		return at
	}
	at := t.room(&t.recordPage, recordWords)
	for i, block := range blocks {
		t.put32(at, i, block)
	}
	t.records[blocks] = at
	return at
}

// row stores a row and returns its address: 0 if no bit is set.
func (t *tree) row(row [blockWords]uint64) uint32 {
	if row == [blockWords]uint64{} {
		return 0
	}
	if at, ok := t.rows[row]; ok {
		return at
	}
	at := t.room(&t.rowPage, blockWords)
	copy(t.chunks[t.rowPage][at%chunkSize:], row[:])
	t.rows[row] = at
	return at
}

// room takes words from the chunk that page is filling, or from a new one.
func (t *tree) room(page *int, words int) uint32 {
	if *page == 0 || len(t.chunks[*page])+words > chunkSize {
		t.chunks = append(t.chunks, nil)
		*page = len(t.chunks) - 1
	}
	return uint32(*page*chunkSize + t.reserve(*page, words))
}

// put32 writes one of the 32-bit numbers from an address on.
func (t *tree) put32(at uint32, i int, value uint32) {
	t.chunks[at/chunkSize][int(at%chunkSize)+i/2] |= uint64(value) << (32 * (i % 2))
}
