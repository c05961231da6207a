// SPDX-License-Identifier: Apache-2.0

package model

import (
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/kerb-edge/kerb/internal/seed"
)

// The integers compute what floating point does, to the precision of the arithmetic. There is no share of decisions
// that may differ: random models can be constant but for a margin of any size (a layer of dead ReLUs), and then one
// rounding differs for all rows. What holds for every model and row:
//   - each layer gives, for the integers that it gets, what floating point gives, within its own rounding;
//   - a decision differs only where the margin in floating point is at most the sum of these roundings.
func TestIntegersAgreeWithFloat(t *testing.T) {
	r := seed.Rand(t)
	all := documents(r)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		d := all[name]
		t.Run(name, func(t *testing.T) {
			p, n, differ := pack(t, d, d.Features), 5000, 0
			if d.layered() {
				n = 300
			}
			for range n {
				features := ordinary(r, d)
				row := floats(features)
				class, _ := d.Infer(row)
				got := int(p.Infer(features).Class)
				outputs, rounding := d.Outputs(row), roundingOfTrees(d)
				if d.layered() {
					rounding = checkLayers(t, d, p, features)
				}
				if class == got {
					continue
				}
				differ++
				if margin, most := marginOf(d, outputs, class, got), roundingOf(rounding, class, got); margin > most {
					t.Fatalf("class %d, %d in floating point by %g, which no rounding explains (%g)\nfeatures %v", got, class, margin,
						most, features)
				}
			}
			t.Logf("%d of %d decisions differ", differ, n)
		})
	}
}

// marginOf is by how much the outputs are in favour of a class against another one.
func marginOf(d *Document, outputs []float64, class, other int) float64 {
	if len(outputs) == 1 {
		return math.Abs(outputs[0] - d.cut())
	}
	return outputs[class] - outputs[other]
}

func roundingOf(rounding []float64, class, other int) float64 {
	if len(rounding) == 1 {
		return rounding[0]
	}
	return rounding[class] + rounding[other]
}

// roundingOfTrees is what the fractions of leaves lose: 2^-24 and less.
func roundingOfTrees(d *Document) []float64 {
	return slices.Repeat([]float64{float64(len(d.Trees)) * 1e-7}, d.outputs())
}

// A wire carries a value between layers: from + step * its integer, between low and high.
type wire struct{ from, step, low, high float64 }

func (w wire) value(q int64) float64           { return w.from + w.step*float64(q) }
func (w wire) clip(v float64) float64          { return max(w.low, min(v, w.high)) }
func wireOfLevel(l level) wire                 { return wire{l.from, l.step, l.from, l.from + int8Limit*l.step} }
func wireOfQ15(low float64) wire               { return wire{0, 1. / ScoreOne, low, 1<<16 - 1./ScoreOne} }
func (w wire) lost(v float64) float64          { return math.Abs(v - w.clip(v)) }
func (w wire) steps(v float64) (steps float64) { return (v - w.from) / w.step }

// wires in front of layer k, and behind the last.
func wires(d *Document, p *Packed) [][]wire {
	layers := d.dense()
	in := make([]wire, len(d.Features))
	for i := range in {
		if in[i] = wireOfQ15(-1 << 16); d.Arithmetic == Int8 {
			from, width := d.Scale.of(i)
			at := d.Ranges.Inputs[i]
			in[i] = wireOfLevel(levelOf([2]float64{(at[0] - from) / width, (at[1] - from) / width}))
		}
	}
	out := [][]wire{in}
	for k, l := range layers {
		w := wireOfQ15(-1 << 16)
		switch {
		case d.Arithmetic == Int8 && k == len(layers)-1:
			w = wire{0, math.Ldexp(1./ScoreOne, -int(p.ScoreShift)) * float64(p.ScoreMul), math.Inf(-1), math.Inf(1)}
		case d.Arithmetic == Int8:
			w = wireOfLevel(levelsOf(&l, d.Ranges.Layers[k], out[k]))
		case l.Activation == ReLU:
			w = wireOfQ15(0)
		}
		out = append(out, slices.Repeat([]wire{w}, len(l.Weights)))
	}
	return out
}

// levelsOf what leaves a layer: 127 steps of its range, but none finer than a 1024th of what its weights can tell
// apart.
func levelsOf(l *Layer, at [2]float64, in []wire) level {
	if l.Activation == ReLU {
		at = [2]float64{0, max(at[1], 1e-6)}
	}
	out, finest := levelOf(at), 0.
	for _, row := range l.Weights {
		finest = max(finest, weightStep(row, in))
	}
	out.step = max(out.step, finest/1024)
	return out
}

// weightStep of a neuron in int8: the largest product of a weight and a step of its input is 127 of them.
func weightStep(row []float64, in []wire) (step float64) {
	for j, w := range row {
		step = max(step, math.Abs(w*in[j].step)/int8Limit)
	}
	return step
}

// ownRounding bounds what neuron i of a layer loses by its own: half a step of each weight and of what leaves it, and
// what the activation takes in between.
func ownRounding(d *Document, l *Layer, i int, x []float64, in []wire, out wire) float64 {
	lost, reach := 0.6*out.step, math.Abs(l.Bias[i])
	step, bits := weightStep(l.Weights[i], in), 0
	if d.Arithmetic != Int8 {
		bits, _ = weightBits("", l)
		step = math.Ldexp(1, -bits)
	}
	for j, v := range x {
		most := math.Abs(v)
		if d.Arithmetic == Int8 {
			lost += step / 2 * in[j].steps(v)
			most = max(math.Abs(in[j].low), math.Abs(in[j].high))
		} else {
			lost += step / 2 * (1 + most)
		}
		reach += 2 * most * math.Abs(l.Weights[i][j])
	}
	if activationOf(l) != clamped { // values of 26 bits, a slope of 15, tables of 16
		lost += reach/(1<<15) + 1./(1<<14)
	}
	return lost
}

// checkLayers compares what leaves each layer of the integers with floating point, and returns how far the last outputs
// may be from those of floating point alone.
func checkLayers(t *testing.T, d *Document, p *Packed, features []int64) []float64 {
	t.Helper()
	lines, row := wires(d, p), make([]float64, len(features)) // row: floating point alone
	sum := make([]float64, len(features))                     // how far the integers may be from it
	x := p.after(0, len(features), features, lines[0])
	for i, f := range features {
		from, width := d.Scale.of(i)
		row[i] = (float64(f) - from) / width
		own := 0.6*lines[0][i].step + 1./ScoreOne*bound(d.Arithmetic != Int8)
		if want := lines[0][i].clip(row[i]); math.Abs(x[i]-want) > own {
			t.Fatalf("feature %d: %d is %g, want %g within %g", i, features[i], x[i], want, own)
		}
		sum[i] = own + lines[0][i].lost(row[i])
	}
	for k, l := range d.dense() {
		want, next, y := l.apply(x), l.apply(row), p.after(k+1, len(l.Weights), features, lines[k+1])
		behind := make([]float64, len(want))
		for i := range want {
			w := lines[k+1][i]
			own := ownRounding(d, &l, i, x, lines[k], w)
			if math.Abs(y[i]-w.clip(want[i])) > own {
				t.Fatalf("layer %d, neuron %d: %g, want %g within %g\nfeatures %v", k, i, y[i], w.clip(want[i]), own, features)
			}
			behind[i] = own + w.lost(next[i])
			for j, weight := range l.Weights[i] {
				behind[i] += math.Abs(weight) * sum[j]
			}
		}
		x, row, sum = y, next, behind
	}
	return sum
}

func bound(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// after is what leaves the first layers, in real terms.
func (p *Packed) after(layers, n int, features []int64, w []wire) []float64 {
	head := *p
	head.Layers, head.Outputs = uint8(layers), uint8(n)
	out := make([]float64, n)
	for i, q := range head.outputs(features) {
		out[i] = w[i].value(q)
	}
	return out
}
