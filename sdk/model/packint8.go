// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"math"
)

const (
	int8Limit = 127
	// wideLow and wideLimit bound the outputs of neurons that are not followed directly by a packed layer.
	wideLow   = -1 << 25
	wideLimit = 1<<26 - 1
)

// level is a quantised input of a layer: from + step * q, with q from 0 to 127.
type level struct{ from, step float64 }

func levelOf(at [2]float64) level { return level{at[0], (at[1] - at[0]) / int8Limit} }

func (p *Packed) packInt8(d *Document, index []int) error {
	if d.Ranges == nil {
		return wrong("ranges", "int8 needs the ranges of inputs and layers; find them with: kerb model quantise "+
			"MODEL --data CSV")
	}
	layers := d.dense()
	if p.Kind = packed; isSmall(layers) {
		p.Kind = small
	}
	levels := make([]level, len(index))
	scaling := func(i int) affine {
		l, at := levelOf(d.Ranges.Inputs[i]), d.Ranges.Inputs[i]
		from, width := d.Scale.of(i)
		levels[i] = level{(l.from - from) / width, l.step / width}
		return affine{at[0], 1 / l.step}
	}
	if err := p.inputs(d, index, int8Limit, 0, scaling); err != nil {
		return err
	}
	for i := range layers {
		var out *level
		if i < len(layers)-1 {
			at := levelOf(d.Ranges.Layers[i])
			if layers[i].Activation == ReLU { // clamping at 0 implements it
				at = levelOf([2]float64{0, max(d.Ranges.Layers[i][1], 1e-6)})
			}
			out = &at
		}
		bits, err := p.layerInt8(fmt.Sprintf("layers[%d]", i), &layers[i], levels, out)
		if err != nil {
			return err
		}
		if out == nil {
			p.score(d, bits, len(layers[i].Weights))
			break
		}
		levels = make([]level, len(layers[i].Weights))
		for j := range levels {
			levels[j] = *out
		}
	}
	return nil
}

// neuron is a neuron with quantised inputs: its value is the sum of weights * q * scale, plus bias.
type neuron struct {
	weights     []int64
	scale, bias float64
}

func newNeuron(row []float64, bias float64, in []level) neuron {
	n, most := neuron{bias: bias}, 0.0
	for i, w := range row {
		n.bias += w * in[i].from
		most = max(most, math.Abs(w*in[i].step))
	}
	n.scale = max(most/int8Limit, 1e-12)
	for i, w := range row {
		n.weights = append(n.weights, int64(math.Round(w*in[i].step/n.scale)))
	}
	return n
}

// reach returns the largest value of the neuron.
func (n *neuron) reach() float64 {
	sum := 0.0
	for _, w := range n.weights {
		sum += math.Abs(float64(w)) * int8Limit * n.scale
	}
	return sum + math.Abs(n.bias)
}

// pack returns a cell whose output is (value - from) * factor.
func (n *neuron) pack(field string, from, factor float64) (cell, error) {
	mul := math.Round(math.Ldexp(n.scale*factor, packedShift))
	add := math.Ldexp((n.bias-from)*factor, packedShift)
	if mul >= 1<<40 || math.Abs(add)+mul*(1<<20) >= 1<<62 {
		return cell{}, wrong(field, "is out of the range of int8 (scale %.3g, bias %.3g); scale the features before "+
			"training, or use q15", n.scale*factor, n.bias*factor)
	}
	return cell{int64(add) + half(packedShift), int64(mul), n.weights}, nil
}

// layerInt8 packs a layer. Outputs are quantised to out; if out is nil, they stay wide, with the returned number of
// fractional bits.
func (p *Packed) layerInt8(field string, l *Layer, in []level, out *level) (bits int, err error) {
	neurons, reach, finest := make([]neuron, len(l.Weights)), 1e-6, 0.0
	for i, row := range l.Weights {
		neurons[i] = newNeuron(row, l.Bias[i], in)
		reach, finest = max(reach, neurons[i].reach()), max(finest, neurons[i].scale)
	}
	if out != nil { // finer levels than inputs make a difference for say nothing
		out.step = max(out.step, finest/1024)
	}
	q := layer{Activation: activationOf(l), Shift: packedShift, Limit: int8Limit}
	var from, factor float64
	if out == nil || q.Activation != clamped {
		if bits = min(24, 24-int(math.Ceil(math.Log2(reach)))); q.Activation == sigmoid || q.Activation == tanh {
			bits = 15 // of the tables
		}
		if out != nil {
			q.post(l, bits, *out)
		}
		q.Offset, q.Limit = wideLow, wideLimit
		factor = math.Ldexp(1, bits)
		from = wideLow / factor
	} else {
		from, factor = out.from, 1/out.step
	}
	cells := make([]cell, len(neurons))
	for i := range neurons {
		if cells[i], err = neurons[i].pack(fmt.Sprintf("%s, neuron %d", field, i), from, factor); err != nil {
			return 0, err
		}
	}
	p.appendLayer(q, len(in), cells)
	return bits, nil
}

// post quantises the output of an activation, which has the given number of fractional bits.
func (q *layer) post(l *Layer, bits int, out level) {
	shift := 0
	for shift < 40 && math.Ldexp(1/out.step, shift-bits) < 1<<30 {
		shift++
	}
	q.Slope, q.PostShift, q.PostLimit = slopeOf(l), uint8(shift), int8Limit
	q.PostMul = int64(math.Round(math.Ldexp(1/out.step, shift-bits)))
	q.PostAdd = int64(math.Round(math.Ldexp(-out.from/out.step, shift))) + half(shift)
}
