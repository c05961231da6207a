// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// walk is fw_search in Go. It also counts steps.
func (t *tree) walk(at uint32, boxes []box, word *[dims]uint32) (rule, steps int) {
	best := math.MaxInt
	forks := []uint32{}
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
			forks = append(forks, value*chunkSize+uint32(second>>32)&0xffff/8)
			at = here
			continue
		case kind == nodeRule && int(value) < best && !boxes[value].contains(word):
			at = here
			continue
		case kind != nodeEnd:
			best = min(best, int(value))
		}
		if len(forks) == 0 {
			return best, steps
		}
		at, forks = forks[len(forks)-1], forks[:len(forks)-1]
	}
}

func (b *box) contains(word *[dims]uint32) bool {
	for d := range word {
		if word[d] < b.lo[d] || word[d] > b.hi[d] {
			return false
		}
	}
	return true
}

// shapes of rule sets, harmless ones and ones made to hurt.
var shapes = map[string]func(r *rand.Rand, i, n int, b *box){
	"exact": func(r *rand.Rand, i, n int, b *box) {
		for _, d := range dims4 {
			between(r, b, d, 1)
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

// between narrows a dimension to a random interval of at most a width.
func between(r *rand.Rand, b *box, d int, width uint32) {
	b.lo[d] = r.Uint32N(b.hi[d])
	b.hi[d] = min(b.hi[d], b.lo[d]+r.Uint32N(max(1, width)))
}

// The tree finds the same rule as trying them in order, in no more steps than promised.
func TestTreeFindsFirstMatch(t *testing.T) {
	for name, shape := range shapes {
		for _, n := range []int{1, 40, 1000, 10000} {
			r := rand.New(rand.NewPCG(uint64(n), 3))
			boxes, list := make([]box, n), make([]int32, n)
			for i := range boxes {
				boxes[i], list[i] = everything(), int32(i)
				shape(r, i, n, &boxes[i])
			}
			tr := newTree()
			root, err := tr.add(boxes, list, dims4)
			if err != nil {
				t.Errorf("%s, %d rules: %v", name, n, err)
				continue
			}
			most, _ := tr.cost(root)
			for i := range 400 {
				var word [dims]uint32
				probe(r, &boxes[r.IntN(n)], &word, i%4 == 0)
				want := math.MaxInt
				for id := range boxes {
					if boxes[id].contains(&word) {
						want = id
						break
					}
				}
				if got, steps := tr.walk(root, boxes, &word); got != want || steps > most {
					t.Fatalf("%s, %d rules, at %v: rule %d in %d steps, want %d in at most %d", name, n, word, got, steps, want, most)
				}
			}
			t.Logf("%s, %d rules: %d pages, %d steps", name, n, len(tr.chunks), most)
		}
	}
}

// probe is a point at the corner of a box or next to it, or anywhere.
func probe(r *rand.Rand, b *box, word *[dims]uint32, anywhere bool) {
	all := everything()
	for _, d := range dims4 {
		word[d] = []uint32{b.lo[d], b.hi[d], b.lo[d] - 1, b.hi[d] + 1, b.lo[d], b.hi[d]}[r.IntN(6)]
		if anywhere {
			word[d] = r.Uint32()
		}
		word[d] = min(word[d], all.hi[d])
	}
}

// Rules that overlap in a way that no tree of bearable size takes apart are refused, not searched wrongly.
func TestEntangledRulesAreRefused(t *testing.T) {
	const n = 10000
	r := rand.New(rand.NewPCG(1, 1))
	boxes, list := make([]box, n), make([]int32, n)
	for i := range boxes {
		boxes[i], list[i] = everything(), int32(i)
		for _, d := range dims4 {
			boxes[i].hi[d] = r.Uint32N(boxes[i].hi[d]) // all begin in one corner of four dimensions
		}
	}
	if _, err := newTree().add(boxes, list, dims4); !errors.Is(err, errEntangled) {
		t.Errorf("%v, want %v", err, errEntangled)
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
