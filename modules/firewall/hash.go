// SPDX-License-Identifier: Apache-2.0

package firewall

// Mirrored in classify.h.
const (
	hashWords  = 5 // of a mask: pairs of address words, and protocol and ports
	bucketSize = 8 // entries of a bucket: a cache line
	noRule     = 0xffffffff
	rootHash   = 1 << 31 // of a root: the rest is the address of a hash
	restWord   = hashWords + 2
)

const (
	// A hash takes as long as about six nodes of a tree, and the rules that are not in it take a tree as well.
	leastHash = 512
	mostRest  = 8

	perBucket = 2
	hashSeeds = 64
	hashSizes = 4 // each has twice as many buckets as the one before
)

// signature is what rules in one hash have in common: the bits of a packet's words that they compare.
type signature [hashWords]uint64

// hash finds the only rule of a signature that can match a packet by one bucket. Each entry is a rule's number and 32
// bits of its key's hash; no two of a bucket are equal in these.
type hash struct {
	mask    signature
	pairs   int // of address words
	seed    uint64
	buckets [][bucketSize]uint64
}

// planHash takes the rules with the most frequent signature out of a list, if that leaves few.
func planHash(boxes []box, list []int32, dimensions []int) (h *hash, rest []int32) {
	if len(list) < leastHash {
		return nil, list
	}
	counts, frequent := map[signature]int{}, signature{}
	for _, id := range list {
		if s, ok := signatureOf(&boxes[id], dimensions); ok {
			counts[s]++
			if counts[s] > counts[frequent] {
				frequent = s
			}
		}
	}
	if n := counts[frequent]; n < leastHash || len(list)-n > mostRest {
		return nil, list
	}
	var in []int32
	keys := map[[hashWords]uint64]bool{}
	for _, id := range list {
		if s, ok := signatureOf(&boxes[id], dimensions); !ok || s != frequent {
			rest = append(rest, id)
		} else if key := pack(&boxes[id].lo, dimensions); !keys[key] { // else an earlier rule matches the same packets
			keys[key] = true
			in = append(in, id)
		}
	}
	for grow := range hashSizes {
		h := &hash{mask: frequent, pairs: pairsOf(dimensions),
			buckets: make([][bucketSize]uint64, (len(in)/perBucket+1)<<grow)}
		for ; h.seed < hashSeeds; h.seed++ {
			if h.fill(boxes, in, dimensions) {
				return h, rest
			}
		}
	}
	return nil, list
}

// signatureOf fails for ranges of ports.
func signatureOf(b *box, dimensions []int) (s signature, ok bool) {
	all := everything()
	var mask [dims]uint32
	for _, d := range dimensions {
		mask[d] = ^(b.lo[d] ^ b.hi[d]) & all.hi[d]
		switch {
		case b.lo[d] == b.hi[d] || d < dimProto:
		case b.lo[d] == 0 && b.hi[d] == all.hi[d]:
			mask[d] = 0
		default:
			return s, false
		}
	}
	return pack(&mask, dimensions), true
}

// pack is the words of a packet as fw_search_hash has them.
func pack(word *[dims]uint32, dimensions []int) (key [hashWords]uint64) {
	for i := range pairsOf(dimensions) {
		key[i] = uint64(word[2*i]) | uint64(word[2*i+1])<<32
	}
	key[hashWords-1] = uint64(word[dimProto])<<32 | uint64(word[dimSport])<<16 | uint64(word[dimDport])
	return key
}

func pairsOf(dimensions []int) int { return (len(dimensions) - 3) / 2 }

// of mirrors fw_hash_of.
func (h *hash) of(key [hashWords]uint64) (bucket int, tag uint32) {
	x := h.seed
	add := func(i int) {
		x = (x ^ key[i]&h.mask[i]) * 0x9e3779b97f4a7c15
		x ^= x >> 32
	}
	for i := range h.pairs {
		add(i)
	}
	add(hashWords - 1)
	return int(x >> 32 * uint64(len(h.buckets)) >> 32), uint32(x)
}

// fill fails if a bucket has no room or two rules with the same tag, or a tag is that of an empty entry.
func (h *hash) fill(boxes []box, in []int32, dimensions []int) bool {
	for i := range h.buckets {
		for j := range h.buckets[i] {
			h.buckets[i][j] = noRule
		}
	}
	for _, id := range in {
		at, tag := h.of(pack(&boxes[id].lo, dimensions))
		if tag == 0 { // as in what is empty
			return false
		}
		bucket := &h.buckets[at]
		for j := range bucket {
			if uint32(bucket[j]) == noRule {
				bucket[j] = uint64(tag)<<32 | uint64(id)
				break
			}
			if uint32(bucket[j]>>32) == tag || j == bucketSize-1 {
				return false
			}
		}
	}
	return true
}

// layHash stores a hash, after which the search continues at the root rest, and returns its root.
func (t *tree) layHash(h *hash, rest uint32) uint32 {
	const perChunk = chunkSize / bucketSize
	first := uint32(len(t.chunks) * chunkSize)
	for i := range h.buckets {
		if i%perChunk == 0 {
			t.chunks = append(t.chunks, nil)
		}
		last := len(t.chunks) - 1
		t.chunks[last] = append(t.chunks[last], h.buckets[i][:]...)
	}
	at := t.room(&t.rowPage, blockWords)
	copy(t.chunks[at/chunkSize][at%chunkSize:],
		append(h.mask[:], h.seed, uint64(len(h.buckets))<<32|uint64(first), uint64(rest)))
	return at | rootHash
}

// behindHash is the root of the trees of a search.
func (t *tree) behindHash(root uint32) uint32 {
	if root&rootHash == 0 {
		return root
	}
	at := root &^ rootHash
	return uint32(t.chunks[at/chunkSize][at%chunkSize+restWord])
}
