// SPDX-License-Identifier: Apache-2.0

package model

import "math"

// packTrees packs the trees. Roots are padded to a multiple of abreast with leaves of value 0, because the data plane
// walks that many trees at once.
func (p *Packed) packTrees(d *Document, index []int) {
	p.Kind = trees
	p.Trees = uint16(len(d.Trees))
	forest := &packing{Packed: p, doc: d, index: index}
	p.words = make([]uint64, (len(d.Trees)+abreast-1)/abreast*abreast)
	if d.outputs() > 1 && d.Kind != Boosting {
		p.Vectors = 1
	}
	bits := forest.bits()
	p.score(d, bits, d.outputs())
	if d.Kind != Boosting {
		forest.average(bits)
	}
	for i, b := range d.Base {
		p.Base[i] = int64(math.Round(math.Ldexp(b, bits)))
	}
	for i := range p.words {
		forest.leaf(i, 0)
	}
	var vectors []place
	for i, tree := range d.Trees {
		vectors = append(vectors, forest.tree(tree, i, bits)...)
	}
	if p.Vectors != 0 {
		forest.vectors(vectors, bits)
	}
}

// packing is the state while trees are packed.
type packing struct {
	*Packed
	doc   *Document
	index []int
}

// bits returns the number of fractional bits of leaves and outputs, with which values fit in 32 bits.
func (f *packing) bits() int {
	if f.doc.Kind != Boosting {
		return 24
	}
	most := 1.0
	for _, tree := range f.doc.Trees {
		for _, n := range tree {
			if n.leaf() {
				most = max(most, math.Abs(n.Value[0]))
			}
		}
	}
	return 30 - int(math.Ceil(math.Log2(most)))
}

// average sets threshold and score conversion for outputs that are sums over the trees, of which the mean decides.
func (f *packing) average(bits int) {
	n := float64(len(f.doc.Trees))
	f.Threshold = int64(math.Floor(math.Ldexp(f.doc.cut()*n, bits)))
	f.ScoreMul, f.ScoreShift = int64(math.Ceil(math.Ldexp(1/n, 31))), uint8(bits+31-15)
}

// leaf writes a leaf, whose child is the leaf itself: its feature is below every threshold.
func (f *packing) leaf(at int, value int64) {
	f.words[at] = uint64(value)<<32 | never<<nodeFeature | uint64(at*8+1)
}

// place is the position of a tree node among the words.
type place struct {
	node *Node
	at   int
}

// tree lays out the nodes, those of a level side by side, and returns the leaves.
func (f *packing) tree(tree Nodes, root, bits int) (leaves []place) {
	level, depth := []place{{&tree[0], root}}, 0
	for ; len(level) > 0; depth++ {
		var next []place
		for _, at := range level {
			if at.node.leaf() {
				leaves = append(leaves, at)
				f.leaf(at.at, f.value(at.node, bits))
				continue
			}
			left := len(f.words)
			f.words = append(f.words, 0, 0)
			f.words[at.at] = uint64(f.threshold(at.node))<<32 | uint64(f.index[at.node.Feature]*8)<<nodeFeature |
				uint64(left*8+1)
			next = append(next, place{&tree[at.node.Left], left}, place{&tree[at.node.Right], left + 1})
		}
		level = next
	}
	f.Depth = max(f.Depth, uint16(depth-1))
	return leaves
}

func (f *packing) value(n *Node, bits int) int64 {
	switch {
	case f.Vectors != 0:
		return 0 // until all nodes have positions
	case f.doc.Kind == Boosting:
		return int64(math.Round(math.Ldexp(n.Value[0], bits)))
	}
	return int64(math.Round(math.Ldexp(n.Value[1], bits)))
}

// vectors writes the values of leaves by class after the nodes, deduplicated. The first one is that of padding trees.
func (f *packing) vectors(leaves []place, bits int) {
	classes, zero := len(f.doc.Classes), len(f.words)
	f.words = append(f.words, make([]uint64, classes)...)
	at := map[[MaxClasses]float64]int{}
	for _, l := range leaves {
		var key [MaxClasses]float64
		copy(key[:], l.node.Value)
		if _, known := at[key]; !known {
			at[key] = len(f.words)
			for _, p := range l.node.Value {
				f.words = append(f.words, uint64(math.Round(math.Ldexp(p, bits))))
			}
		}
		f.leaf(l.at, int64(at[key]))
	}
	for i := len(f.doc.Trees); i < (len(f.doc.Trees)+abreast-1)/abreast*abreast; i++ {
		f.leaf(i, int64(zero))
	}
}

// threshold returns the largest integer within the range of features that goes left.
func (f *packing) threshold(n *Node) int64 {
	const lowest, highest = -1 << 31, 1<<31 - 1
	from, width := f.doc.Scale.of(n.Feature)
	left := func(v float64) bool { return (v-from)/width <= n.Threshold }
	t := max(lowest, min(math.Floor(n.Threshold*width+from), highest))
	for t < highest && left(t+1) { // correct rounding
		t++
	}
	for t > lowest && !left(t) {
		t--
	}
	return int64(t)
}
