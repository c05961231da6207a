// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"slices"
	"sort"
)

// Longest searches in nodes. One tree for all rules is best where it is shallow. Where it is not, rules are separated
// by how wide their sources and destinations are: rules of a kind separate well, mixed they are copied to many parts.
const (
	oneTree    = 48 // mirrored in classify.h
	narrowTree = 32 // source or destination is narrow
	wideTree   = 24 // neither is
	wideRules  = 128
	wideBits   = 16 // an IPv4 prefix shorter than /16, an IPv6 prefix shorter than /48
)

// add builds the searches that find the first box around a point, of those in each of the lists, which are ascending.
// It returns their roots.
func (t *tree) add(boxes []box, lists [][]int32, dimensions []int) []uint32 {
	mark := len(t.chunks)
	searches := make([]search, len(lists))
	for i, list := range lists {
		searches[i] = t.plan(boxes, list, dimensions)
	}
	roots := t.layAll(boxes, searches, dimensions)
	steps := t.deepest(roots)
	if steps > maxSteps {
		t.truncate(mark)
		for i, list := range lists {
			searches[i] = search{bits: list}
		}
		roots = t.layAll(boxes, searches, dimensions)
		steps = t.deepest(roots)
	}
	isBitmap := func(s search) bool { return len(s.bits) > 0 }
	t.deep = t.deep || steps > oneTree || slices.ContainsFunc(searches, isBitmap)
	return roots
}

// search is how a list is searched: a hash, trees, and a bitmap for the rules of bits.
type search struct {
	hash  *hash // of most rules, or nil
	trees []*node
	first []int32 // rule of each tree
	bits  []int32
}

// plan decides how rules are searched: a hash for exact tuples, trees for what fits in their budgets, and bit vectors
// for the rest. One tree for all that is not hashed is preferred, because it costs one walk.
func (t *tree) plan(boxes []box, list []int32, dimensions []int) (s search) {
	s.hash, list = planHash(boxes, list, dimensions)
	if len(list) == 0 || s.try(boxes, list, dimensions, oneTree) {
		return s
	}
	for kind, group := range separate(boxes, list, dimensions) {
		limit := narrowTree
		if kind == wideBoth {
			limit = wideTree
		}
		if len(group) > 0 && (kind == wideBoth && len(group) > wideRules || !s.try(boxes, group, dimensions, limit)) {
			s.bits = append(s.bits, group...)
		}
	}
	slices.Sort(s.bits)
	return s
}

// try adds a tree for the rules if no search in it takes more steps than limit.
func (s *search) try(boxes []box, list []int32, dimensions []int, limit int) bool {
	b := builder{boxes: boxes, dims: dimensions}
	root := b.build(list, everything(), budget{nodes: 32*len(list) + 4096, steps: limit})
	if b.failed {
		return false
	}
	s.trees, s.first = append(s.trees, root), append(s.first, list[0])
	return true
}

const wideBoth = 3

// separate groups rules by the width of source and destination.
func separate(boxes []box, list []int32, dimensions []int) (groups [4][]int32) {
	words := (len(dimensions) - 3) / 2
	for _, id := range list {
		kind := 0
		if boxes[id].isWide(0, words) {
			kind |= 1
		}
		if boxes[id].isWide(words, words) {
			kind |= 2
		}
		groups[kind] = append(groups[kind], id)
	}
	return groups
}

// isWide reports whether an address, in words from first on, is a short prefix.
func (b *box) isWide(first, words int) bool {
	last := min(1, words-1) // the words behind it belong to longer prefixes
	for d := first; d < first+last; d++ {
		if b.lo[d] != b.hi[d] {
			return true
		}
	}
	return b.hi[first+last]-b.lo[first+last] >= 1<<wideBits
}

// layAll lays out the searches and returns their roots. They share one bitmap.
func (t *tree) layAll(boxes []box, searches []search, dimensions []int) []uint32 {
	lists := make([][]int32, len(searches))
	var all []int32
	for i := range searches {
		lists[i] = searches[i].bits
		all = append(all, lists[i]...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	inBits := make([]*node, len(lists))
	if len(all) > 0 {
		b := bitmap{tree: t, boxes: boxes, list: all}
		inBits = b.add(lists, dimensions)
	}
	roots := make([]uint32, len(searches))
	for i := range searches {
		if n := searches[i].join(inBits[i]); n != nil {
			roots[i] = t.lay(n)
		}
		if h := searches[i].hash; h != nil {
			roots[i] = t.layHash(h, roots[i])
		}
	}
	return roots
}

// join is the node from which all parts of a search are searched: trees in the order of their first rules, so that a
// rule found in one can spare the next, then the bitmap. It is nil for a search without rules.
func (s *search) join(inBits *node) *node {
	order := make([]int, len(s.trees))
	for i := range order {
		order[i] = i
	}
	sort.Slice(order, func(i, j int) bool { return s.first[order[i]] < s.first[order[j]] })
	n, first := inBits, int32(0)
	if n != nil {
		first = s.bits[0]
	}
	for _, i := range slices.Backward(order) {
		if n == nil {
			n, first = s.trees[i], s.first[i]
			continue
		}
		n, first = forkOf(s.trees[i], n, first), min(first, s.first[i])
	}
	return n
}

// deepest is the number of nodes in the longest search, more than any may have if its forks are too many.
func (t *tree) deepest(roots []uint32) (most int) {
	for _, root := range roots {
		steps, forks := t.cost(t.behindHash(root))
		if forks > maxForks {
			return maxSteps + 1
		}
		most = max(most, steps)
	}
	return most
}

// depth is the number of nodes in the longest search of a tree.
func (n *node) depth() int {
	switch {
	case n.parts != nil:
		most := 0
		for _, part := range n.parts {
			most = max(most, part.depth())
		}
		return 1 + most
	case n.kind == nodeFork:
		return 1 + n.left.depth() + n.right.depth()
	case n.kind == nodeRule:
		return 1 + n.left.depth()
	case n.kind < nodeRule:
		return 1 + max(n.left.depth(), n.right.depth())
	}
	return 1
}
