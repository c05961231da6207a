// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/classbench"
)

// walk is fw_search in Go. It also counts nodes and blocks.
func (t *tree) walk(at uint32, boxes []box, word *[dims]uint32, dimensions []int) (rule, steps, blocks int) {
	best, at := t.walkHash(at, boxes, word, dimensions)
	type fork struct{ at, first uint32 }
	forks := []fork{}
	var class [numbersField + 1]uint32
	for steps = 1; ; steps++ {
		chunk := at / chunkSize
		n := t.chunks[chunk][at%chunkSize]
		kind, value, shift := int(n>>48)&0xff, uint32(n), n>>56
		here := chunk*chunkSize + uint32(n>>32)&0xffff/8
		switch {
		case kind >= nodeTable:
			at = here + (word[(kind-nodeTable)/4]-value)>>shift&(tableSize-1)
			continue
		case kind < nodeRule:
			at = here
			if word[kind/4] > value {
				at++
			}
			continue
		case kind == nodeJump:
			at = value*chunkSize + uint32(n>>32)&0xffff/8
			continue
		case kind == nodeFork:
			second := t.chunks[chunk][here%chunkSize+1]
			forks = append(forks, fork{value*chunkSize + uint32(second>>32)&0xffff/8, uint32(second)})
			at = here
			continue
		case kind == nodeRule && int(value) < best && !boxes[value].contains(word):
			at = here
			continue
		case kind >= nodeClass:
			class[kind-nodeClass] = value
		case kind != nodeEnd:
			best = min(best, int(value))
		}
		if len(forks) == 0 {
			bit, blocks := t.firstBit(class)
			return min(best, bit), steps, blocks
		}
		last := forks[len(forks)-1]
		at, forks = last.at, forks[:len(forks)-1]
		if int(last.first) >= best {
			at = 0
		}
	}
}

// walkHash is fw_search_hash in Go.
func (t *tree) walkHash(root uint32, boxes []box, word *[dims]uint32, dimensions []int) (rule int, at uint32) {
	if root&rootHash == 0 {
		return math.MaxInt, root
	}
	at = t.behindHash(root)
	record := root &^ rootHash
	h := &hash{seed: t.word(record + hashWords), pairs: pairsOf(dimensions),
		buckets: make([][bucketSize]uint64, t.get32(record+6, 1))}
	for i := range h.mask {
		h.mask[i] = t.word(record + uint32(i))
	}
	bucket, tag := h.of(pack(word, dimensions))
	for i := range uint32(bucketSize) {
		entry := t.word(t.get32(record+6, 0) + uint32(bucket)*bucketSize + i)
		if uint32(entry>>32) == tag && uint32(entry) != noRule && boxes[uint32(entry)].contains(word) {
			return int(uint32(entry)), at
		}
	}
	return math.MaxInt, at
}

// firstBit is fw_search_bitmap in Go: the first rule in all classes.
func (t *tree) firstBit(class [numbersField + 1]uint32) (rule, blocks int) {
	if class[numbersField] == 0 {
		return math.MaxInt, 0
	}
	for block := range maxBlocks {
		numbers := t.get32(class[numbersField], block)
		if numbers == 0 {
			break
		}
		blocks++
		for i := range blockRules {
			in := 0
			for _, record := range class[:numbersField] {
				if row := t.get32(record, block); row != 0 && t.word(row+uint32(i/64))>>(i%64)&1 != 0 {
					in++
				}
			}
			if in == numbersField {
				return int(t.get32(numbers, i)), blocks
			}
		}
	}
	return math.MaxInt, blocks
}

func (t *tree) get32(at uint32, i int) uint32 {
	return uint32(t.word(at+uint32(i/2)) >> (32 * (i % 2)))
}

func (t *tree) word(at uint32) uint64 { return t.chunks[at/chunkSize][at%chunkSize] }

func (b *box) contains(word *[dims]uint32) bool {
	for d := range word {
		if word[d] < b.lo[d] || word[d] > b.hi[d] {
			return false
		}
	}
	return true
}

// shapes are kinds of rule sets, typical and adversarial.
var shapes = map[string]func(r *rand.Rand, i, n int, b *box){
	"exact": func(r *rand.Rand, i, n int, b *box) {
		for _, d := range dims4 {
			between(r, b, d, 1)
		}
	},
	"exact, some of them twice": func(_ *rand.Rand, i, n int, b *box) {
		r := rand.New(rand.NewPCG(uint64(i%max(1, n-n/8)), 9))
		for _, d := range dims6 {
			between(r, b, d, 1)
		}
	},
	"prefixes of one length among others": func(r *rand.Rand, i, n int, b *box) {
		for _, d := range []int{0, 1} {
			b.lo[d] = r.Uint32() &^ 0xff
			b.hi[d] = b.lo[d] | 0xff
		}
		between(r, b, dimDport, 1)
		if i%(1+n/5) == 0 {
			b.lo[1], b.hi[1] = 0, math.MaxUint32
			between(r, b, dimDport, 10000)
		}
	},
	"crossing strips": func(r *rand.Rand, i, n int, b *box) {
		between(r, b, []int{dimSport, dimDport}[i%2], 4)
	},
	"crossing slabs": func(r *rand.Rand, i, n int, b *box) {
		d := []int{0, 1, dimSport, dimDport}[i%4]
		between(r, b, d, b.hi[d]>>14)
	},
	"small rectangles": func(r *rand.Rand, i, n int, b *box) {
		between(r, b, dimSport, 1000)
		between(r, b, dimDport, 1000)
	},
	"rectangles of all proportions": func(r *rand.Rand, i, n int, b *box) {
		k := r.IntN(16)
		between(r, b, dimSport, 1<<k)
		between(r, b, dimDport, 1<<(15-k))
	},
	"nested": func(r *rand.Rand, i, n int, b *box) {
		b.lo[dimDport], b.hi[dimDport] = uint32(n-i), uint32(30000-n+i)
	},
	"large rectangles": func(r *rand.Rand, i, n int, b *box) {
		between(r, b, dimSport, 65535)
		between(r, b, dimDport, 65535)
	},
	"rectangles": func(r *rand.Rand, i, n int, b *box) {
		between(r, b, dimSport, 10000)
		between(r, b, dimDport, 10000)
	},
	"nested in a corner of all dimensions": func(r *rand.Rand, i, n int, b *box) {
		for _, d := range dims4 {
			b.hi[d] = r.Uint32N(b.hi[d])
		}
	},
	"staircase": func(r *rand.Rand, i, n int, b *box) {
		b.hi[dimSport], b.hi[dimDport] = uint32(i), uint32(n-i)
	},
	"prefixes and ranges": func(r *rand.Rand, i, n int, b *box) {
		for _, d := range []int{0, 1} {
			mask := uint32(uint64(math.MaxUint32) << r.IntN(33))
			b.lo[d] = r.Uint32() & mask
			b.hi[d] = b.lo[d] | ^mask
		}
		between(r, b, dimSport, 30000)
		between(r, b, dimDport, 3000)
	},
}

// between restricts a dimension to a random interval of at most a width.
func between(r *rand.Rand, b *box, d int, width uint32) {
	b.lo[d] = r.Uint32N(b.hi[d])
	b.hi[d] = min(b.hi[d], b.lo[d]+r.Uint32N(max(1, width)))
}

// sizes omits the largest rule sets in short mode, which take almost all of the time.
func sizes(all ...int) []int {
	if testing.Short() {
		return all[:len(all)-1]
	}
	return all
}

// The search finds the same rule as a linear search, within the promised numbers of nodes and blocks.
func TestTreeFindsFirstMatch(t *testing.T) {
	for name, shape := range shapes {
		for _, n := range sizes(1, 40, 1000, MaxRules) {
			r := rand.New(rand.NewPCG(uint64(n), 3))
			boxes := make([]box, n)
			for i := range boxes {
				boxes[i] = everything()
				shape(r, i, n, &boxes[i])
			}
			checkSearch(t, fmt.Sprintf("%s, %d rules", name, n), boxes, dims4)
		}
	}
}

// Rules that compare the same bits are in a hash without a tree, also with a few other rules among them.
func TestHash(t *testing.T) {
	for name, inTrees := range map[string]bool{"exact": false, "exact, some of them twice": false,
		"prefixes of one length among others": true} {
		for _, dimensions := range [][]int{dims4, dims6} {
			r := rand.New(rand.NewPCG(1, 3))
			boxes, list := make([]box, 1000), make([]int32, 1000)
			for i := range boxes {
				boxes[i], list[i] = everything(), int32(i)
				shapes[name](r, i, len(boxes), &boxes[i])
			}
			checkSearch(t, fmt.Sprint(name, dimensions), boxes, dimensions)
			if h, rest := planHash(boxes, list, dimensions); h == nil || len(rest) > 0 != inTrees {
				t.Errorf("%s, %v: hash %t, %d rules left", name, dimensions, h != nil, len(rest))
			}
		}
	}
}

// A rule with the tag of an empty entry requires another seed, since a packet would match the empty entry.
func TestHashHasNoEmptyTag(t *testing.T) {
	const inverse = 0xf1de83e19937733d // of the factor of hash.of, modulo 1<<64
	r := rand.New(rand.NewPCG(1, 4))
	boxes, list := make([]box, leastHash), make([]int32, leastHash)
	for i := range boxes {
		boxes[i], list[i] = everything(), int32(i)
		shapes["exact, some of them twice"](r, i, len(boxes), &boxes[i])
	}
	one := &boxes[7]
	last := uint64(0x1234567812345678)
	behind := last*inverse ^ pack(&one.lo, dims4)[hashWords-1]
	first := (behind ^ behind>>32) * inverse // with seed 0
	one.lo[0], one.lo[1] = uint32(first), uint32(first>>32)
	one.hi[0], one.hi[1] = one.lo[0], one.lo[1]
	h, _ := planHash(boxes, list, dims4)
	unseeded := *h
	unseeded.seed = 0
	if _, tag := unseeded.of(pack(&one.lo, dims4)); tag != 0 {
		t.Fatalf("tag %x with seed 0", tag)
	}
	if _, tag := h.of(pack(&one.lo, dims4)); tag == 0 {
		t.Errorf("seed %d: the tag of an empty entry", h.seed)
	}
}

// Typical and hostile rule sets are searched within the promised bounds in both families.
func TestTreeOfRuleSets(t *testing.T) {
	notEmulated(t)
	for _, kind := range classbench.Kinds {
		for _, n := range sizes(10, 100, 1000, MaxRules) {
			for _, v4 := range []bool{true, false} {
				rules := compileConfig(t, benchConfig(t, kind, n, v4)).rules
				boxes := make([]box, n)
				for i := range rules {
					boxes[i] = boxOf(&rules[i], v4)
				}
				tr := checkSearch(t, fmt.Sprintf("%s, %d rules, IPv4 %t", kind, n, v4), boxes, dimsOf(v4))
				if n <= 100 && tr.deep {
					t.Errorf("%s, %d rules, IPv4 %t: deep, which takes the verifier twice as long", kind, n, v4)
				}
			}
		}
	}
}

func dimsOf(v4 bool) []int {
	if v4 {
		return dims4
	}
	return dims6
}

// maxPages bounds the memory of one family: 32 MiB.
const maxPages = 8192

// checkSearch compares the search with a linear search, in two lists that share rules.
func checkSearch(t *testing.T, name string, boxes []box, dimensions []int) *tree {
	t.Helper()
	r := rand.New(rand.NewPCG(uint64(len(boxes)), 4))
	lists := make([][]int32, 2)
	for i := range boxes {
		lists[0] = append(lists[0], int32(i))
		if i%5 > 0 {
			lists[1] = append(lists[1], int32(i))
		}
	}
	tr := newTree()
	roots := tr.add(boxes, lists, dimensions)
	deepest := tr.deepest(roots)
	if len(tr.chunks) > maxPages || deepest > maxSteps {
		t.Errorf("%s: %d pages, %d nodes; at most %d and %d are allowed", name, len(tr.chunks), deepest, maxPages, maxSteps)
	}
	most := 0
	for i := range 400 {
		var word [dims]uint32
		probe(r, &boxes[r.IntN(len(boxes))], &word, dimensions, i%4 == 0)
		want := firstOf(boxes, lists[i%2], &word)
		got, steps, blocks := tr.walk(roots[i%2], boxes, &word, dimensions)
		if !tr.deep && (steps > oneTree || blocks > 0) {
			t.Fatalf("%s, at %v: %d nodes and %d blocks, but the rules are shallow", name, word, steps, blocks)
		}
		if got != want || steps > deepest || blocks > maxBlocks {
			t.Fatalf("%s, at %v: rule %d in %d nodes and %d blocks, want %d in at most %d and %d", name, word, got, steps,
				blocks, want, deepest, maxBlocks)
		}
		most = max(most, blocks)
	}
	t.Logf("%s: %d pages, at most %d nodes; probes took at most %d blocks", name, len(tr.chunks), deepest, most)
	return tr
}

func firstOf(boxes []box, list []int32, word *[dims]uint32) int {
	for _, id := range list {
		if boxes[id].contains(word) {
			return int(id)
		}
	}
	return math.MaxInt
}

// probe returns a point at or next to the corner of a box, or a random one.
func probe(r *rand.Rand, b *box, word *[dims]uint32, dimensions []int, anywhere bool) {
	all := everything()
	for _, d := range dimensions {
		word[d] = []uint32{b.lo[d], b.hi[d], b.lo[d] - 1, b.hi[d] + 1, b.lo[d], b.hi[d]}[r.IntN(6)]
		if anywhere {
			word[d] = r.Uint32()
		}
		word[d] = min(word[d], all.hi[d])
	}
}

func TestIdleOnlyWhenNothingIsDecided(t *testing.T) {
	idle := `"state": {"enabled": false}, "malformed": "allow", "nonIP": "allow", "linkControl": "rules"`
	for config, want := range map[string]int{
		`{` + idle + `}`: 1,
		`{` + idle + `, "rules": [{"action": "allow", "direction": "ingress"}]}`: 1,
		`{` + idle + `, "rules": [{"action": "deny", "direction": "both"}]}`:     0,
		`{` + idle + `, "rules": [{"action": "allow", "direction": "egress"}]}`:  0,
		`{` + idle + `, "defaultPolicy": {"egress": "deny"}}`:                    0,
		`{` + idle + `, "fragments": "deny"}`:                                    0,
		strings.Replace(`{`+idle+`}`, `"nonIP": "allow"`, `"nonIP": "arp"`, 1):   0,
		strings.Replace(`{`+idle+`}`, `rules`, `allow`, 1):                       0,
		`{` + idle + `, "antiSpoof": true}`:                                      0,
		`{` + idle + `, "extensionHeaders": "deny"}`:                             0,
		strings.Replace(`{`+idle+`}`, `false`, `true`, 1):                        0,
		strings.Replace(`{`+idle+`}`, `"malformed": "allow", `, ``, 1):           0,
	} {
		if got := compileConfig(t, config).Settings().Idle; len(got) != want {
			t.Errorf("%s: idle in %v", config, got)
		}
	}
}

// The data plane's search must not stop before the limit in Go, since it would drop allowed packets.
func TestLimitsOfTheDataPlane(t *testing.T) {
	text, err := os.ReadFile("classify.h")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"FW_STEPS": maxSteps, "FW_SHALLOW": oneTree} {
		found := regexp.MustCompile(`(?m)^#define ` + name + `\s+(\d+)\s`).FindSubmatch(text)
		if found == nil || string(found[1]) != strconv.Itoa(want) {
			t.Errorf("%s is %q, want %d", name, found, want)
		}
	}
}
