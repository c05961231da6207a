// SPDX-License-Identifier: Apache-2.0

package firewall

// tree is the searches of all families and directions in chunks: nodes, and records, rows and rule numbers of bitmaps.
// An address is that of a word: chunk times chunkSize plus the place in it.
type tree struct {
	chunks  [][]uint64 // each chunkSize long at most while it grows
	packing int        // chunk for whole subtrees, 0: none yet
	packed  int        // slots that they need in it
	deep    bool       // a search visits more than oneTree nodes, or a bitmap

	recordPage, rowPage, numberPage int                          // chunks that are being filled, 0: none yet
	records                         map[[maxBlocks]uint32]uint32 // to addresses
	rows                            map[[blockWords]uint64]uint32
}

func newTree() *tree {
	return &tree{chunks: [][]uint64{{encode(nodeEnd, 0, 0)}}, records: map[[maxBlocks]uint32]uint32{},
		rows: map[[blockWords]uint64]uint32{}}
}

// truncate removes the chunks from n on.
func (t *tree) truncate(n int) {
	t.chunks = t.chunks[:n]
	t.packing, t.recordPage, t.rowPage, t.numberPage = 0, 0, 0, 0
	clear(t.records)
	clear(t.rows)
}

func encode(kind int, value uint32, child int) uint64 {
	return uint64(kind)<<48 | uint64(8*child)<<32 | uint64(value)
}

// place is where a node goes.
type place struct {
	node        *node
	chunk, slot int
}

// lay puts a tree into chunks and returns where it begins. A chunk takes the upper levels of a large tree, or small
// trees as a whole, so that a search touches few pages.
func (t *tree) lay(root *node) uint32 {
	first := t.open(root)
	roots := []place{first}
	for len(roots) > 0 {
		p := roots[0]
		roots = roots[1:]
		for _, n := range t.layChunk(p) {
			q := t.open(n.node)
			t.chunks[n.chunk][n.slot] = encode(nodeJump, uint32(q.chunk), q.slot)
			roots = append(roots, q)
		}
	}
	return uint32(first.chunk*chunkSize + first.slot)
}

// open reserves the slot of a subtree's root: where it fits as a whole, else in a chunk of its own. Room for a whole
// one is taken at once, by laying it, before the next is opened.
func (t *tree) open(n *node) place {
	if n.size > chunkSize {
		t.chunks = append(t.chunks, nil)
		return place{n, len(t.chunks) - 1, t.reserve(len(t.chunks)-1, 1)}
	}
	if t.packing == 0 || t.packed+n.size > chunkSize {
		t.chunks = append(t.chunks, nil)
		t.packing, t.packed = len(t.chunks)-1, 0
	}
	t.packed += n.size
	return place{n, t.packing, t.reserve(t.packing, 1)}
}

func (t *tree) reserve(chunk, slots int) int {
	at := len(t.chunks[chunk])
	t.chunks[chunk] = append(t.chunks[chunk], make([]uint64, slots)...)
	return at
}

// layChunk puts the tree at p into its chunk, level by level, and returns the subtrees that found no room.
func (t *tree) layChunk(p place) (rest []place) {
	queue := []place{p}
	for len(queue) > 0 {
		p, queue = queue[0], queue[1:]
		if len(t.chunks[p.chunk])+p.node.slots() > chunkSize {
			rest = append(rest, p)
			continue
		}
		queue = append(queue, t.put(p)...)
	}
	return rest
}

// slots is how many a node needs for its children.
func (n *node) slots() int {
	switch {
	case n.kind >= nodeTable:
		return tableSize
	case n.kind < nodeRule:
		return 2
	case n.kind == nodeRule:
		return 1
	case n.kind == nodeFork:
		return 3
	}
	return 0
}

// put writes a node and returns the places of its children.
func (t *tree) put(p place) []place {
	n := p.node
	at := t.reserve(p.chunk, n.slots())
	if n.parts != nil {
		t.chunks[p.chunk][p.slot] = encode(n.kind|n.shift<<8, n.value, at)
		out := make([]place, len(n.parts))
		for i, part := range n.parts {
			out[i] = place{part, p.chunk, at + i}
		}
		return out
	}
	switch n.slots() {
	case 0:
		t.chunks[p.chunk][p.slot] = encode(n.kind, n.value, n.slot)
		return nil
	case 1:
		t.chunks[p.chunk][p.slot] = encode(n.kind, n.value, at)
		return []place{{n.left, p.chunk, at}}
	case 3:
		t.chunks[p.chunk][p.slot] = encode(n.kind, uint32(p.chunk), at)
		t.chunks[p.chunk][at+1] = encode(nodeEnd, n.value, at+2)
		return []place{{n.left, p.chunk, at}, {n.right, p.chunk, at + 2}}
	}
	t.chunks[p.chunk][p.slot] = encode(n.kind, n.value, at)
	return []place{{n.left, p.chunk, at}, {n.right, p.chunk, at + 1}}
}

// jumpTo lays out a tree and returns a node that leads to it.
func (t *tree) jumpTo(n *node) *node {
	at := t.lay(n)
	return &node{kind: nodeJump, value: at / chunkSize, slot: int(at % chunkSize), size: 1}
}

// cost is the longest search from a node on, in steps of fw_search, and the most forks pending at a time.
func (t *tree) cost(at uint32) (steps, forks int) {
	chunk := int(at / chunkSize)
	n := t.chunks[chunk][at%chunkSize]
	kind, value, child := int(n>>48)&0xff, uint32(n), uint32(n>>32)&0xffff/8
	here := uint32(chunk*chunkSize) + child
	switch {
	case kind >= nodeTable:
		for i := range uint32(tableSize) {
			s, f := t.cost(here + i)
			steps, forks = max(steps, s), max(forks, f)
		}
		return 1 + steps, forks
	case kind < nodeRule:
		s1, f1 := t.cost(here)
		s2, f2 := t.cost(here + 1)
		return 1 + max(s1, s2), max(f1, f2)
	case kind == nodeRule:
		s, f := t.cost(here)
		return 1 + s, f
	case kind == nodeJump:
		s, f := t.cost(value*chunkSize + child)
		return 1 + s, f
	case kind == nodeFork:
		second := t.chunks[chunk][here%chunkSize+1]
		s1, f1 := t.cost(here)
		s2, f2 := t.cost(value*chunkSize + uint32(second>>32)&0xffff/8)
		return 1 + s1 + s2, max(1+f1, f2)
	}
	return 1, 0
}
