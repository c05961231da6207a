// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"math"
)

// Values between layers are Q15 in 32 bits: -65536 to 65536 in steps of 1/32768.
const (
	q15Low   = -1 << 31
	q15Limit = 1<<32 - 1
)

// packQ15 packs layers with 16-bit activations of 15 fractional bits. Inputs are scaled from their range to Q15;
// networks that isSmall accepts get a kind of their own.
func (p *Packed) packQ15(d *Document, index []int) error {
	layers := d.dense()
	if p.Kind = exact; isSmall(layers) {
		p.Kind = small
	}
	scaling := func(i int) affine {
		from, width := d.Scale.of(i)
		return affine{from, (1 << 15) / width}
	}
	if err := p.inputs(d, index, q15Limit, q15Low, scaling); err != nil {
		return err
	}
	for i := range layers {
		if err := p.layerQ15(fmt.Sprintf("layers[%d]", i), &layers[i]); err != nil {
			return err
		}
	}
	p.score(d, 15, len(layers[len(layers)-1].Weights))
	return nil
}

// layerQ15 packs one layer. The weights' fractional bits are as many as fit (weightBits); the rounding half and the
// input's offset are part of the cell's constant.
func (p *Packed) layerQ15(field string, l *Layer) error {
	bits, err := weightBits(field, l)
	if err != nil {
		return err
	}
	q := layer{Activation: activationOf(l), Shift: uint8(bits), Offset: q15Low, Limit: q15Limit, Slope: slopeOf(l),
		PostMul: 1, PostAdd: -q15Low, PostOffset: q15Low, PostLimit: q15Limit}
	if l.Activation == ReLU {
		q.Offset, q.Limit = 0, -q15Low-1
	}
	cells := make([]cell, len(l.Weights))
	for i, row := range l.Weights {
		cells[i] = cell{add: int64(math.Round(math.Ldexp(l.Bias[i], 15+bits))) - q.Offset<<bits + half(bits), mul: 1}
		for _, w := range row {
			cells[i].weights = append(cells[i].weights, int64(math.Round(math.Ldexp(w, bits))))
		}
	}
	p.appendLayer(q, len(l.Weights[0]), cells)
	return nil
}

func slopeOf(l *Layer) int64 { return int64(math.Round(math.Ldexp(l.slope(), 15))) }

// weightBits returns the largest number of fractional bits for the weights of a layer. With inputs of 31 bits, sums of
// products fit in 62 bits, and with the bias in 64, so that saturation is needed only at the end.
func weightBits(field string, l *Layer) (int, error) {
	most := 0.0
	for i, row := range l.Weights {
		sum := 0.0
		for _, w := range row {
			sum += math.Abs(w)
		}
		if most = max(most, sum); sum >= 1<<24 {
			return 0, wrong(fmt.Sprintf("%s.weights[%d]", field, i), "add up to %.3g, out of the range of q15 (2^24); scale "+
				"the features before training", sum)
		}
		if math.Abs(l.Bias[i]) >= 1<<16 {
			return 0, wrong(fmt.Sprintf("%s.bias[%d]", field, i), "%g is out of the range of q15 (65536); scale the features "+
				"before training", l.Bias[i])
		}
	}
	for bits := 30; ; bits-- {
		if math.Ldexp(most, bits)+MaxWidth < 1<<31 { // each weight may be rounded up
			return bits, nil
		}
	}
}
