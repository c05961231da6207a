// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"math"
	"slices"
)

// Pack converts the model to the data plane's integers. names are all features of the extractor, in its order; the
// model may use a subset in any order. Errors are *Error.
func (d *Document) Pack(names []string) (*Packed, error) {
	p := &Packed{header: header{Version: d.Version, Output: d.meaning(), Outputs: 1}}
	index, err := d.index(names)
	if err != nil {
		return nil, err
	}
	switch {
	case !d.layered():
		p.packTrees(d, index)
	case d.Arithmetic == Int8:
		err = p.packInt8(d, index)
	default:
		err = p.packQ15(d, index)
	}
	if err == nil && len(p.words) > MaxWords {
		err = wrong("", "takes %d of %d words; train a smaller model, or run it in user space", len(p.words), MaxWords)
	}
	if err != nil {
		return nil, err
	}
	p.WordsUsed = uint32(len(p.words))
	return p, nil
}

// index returns the position of each of the model's features among the extractor's.
func (d *Document) index(names []string) ([]int, error) {
	index := make([]int, len(d.Features))
	for i, name := range d.Features {
		if index[i] = slices.Index(names, name); index[i] < 0 || index[i] >= MaxFeatures {
			return nil, wrong(fmt.Sprintf("features[%d]", i), "%q is no feature of extractor %s, which has %v", name,
				d.Extractor, names)
		}
	}
	return index, nil
}

// affine is v = (feature - from) * factor.
type affine struct{ from, factor float64 }

// pack converts it to (feature * mul + add) >> shift, rounded, minus offset. Features have 31 bits; product and sum
// must fit in 63.
func (a affine) pack(field string, offset int64, feature int) (input, error) {
	for shift := 56; shift >= 0; shift-- {
		mul := math.Round(math.Ldexp(a.factor, shift))
		add := math.Round(math.Ldexp(-a.from*a.factor-float64(offset), shift))
		if math.Abs(mul) < 1<<31 && math.Abs(add) < 1<<61 {
			return input{Add: int64(add) + half(shift), Mul: int64(mul), Shift: uint8(shift), Feature: uint16(feature * 8)}, nil
		}
	}
	return input{}, wrong(field, "cannot be scaled: from %g, times %g; widen its scale", a.from, a.factor)
}

// half returns half of 2^shift, which is added for rounding before a shift.
func half(shift int) int64 {
	if shift == 0 {
		return 0
	}
	return 1 << (shift - 1)
}

// inputs packs the scaling of the features.
func (p *Packed) inputs(d *Document, index []int, limit uint64, offset int64, scaling func(i int) affine) error {
	p.InputLimit, p.InputOffset, p.Inputs = limit, offset, uint16(len(index))
	for i, feature := range index {
		var err error
		if p.Input[i], err = scaling(i).pack("feature "+d.Features[i], offset, feature); err != nil {
			return err
		}
	}
	return nil
}

// rowInputs returns the words of a row for n inputs.
func rowInputs(n int) int {
	if n <= 4 {
		return 4
	}
	return (n + 7) &^ 7
}

// cell is a neuron: its weights, the factor of the sum, and the constant that is added to the product.
type cell struct {
	add, mul int64
	weights  []int64
}

// appendLayer lays out the cells of a layer.
func (p *Packed) appendLayer(l layer, inputs int, cells []cell) {
	l.At, l.Inputs, l.Neurons = uint32(len(p.words)), uint16(rowInputs(inputs)), uint16(len(cells))
	if p.Kind == small {
		p.appendSmall(cells, p.offsetBefore())
	} else {
		p.appendRows(&l, cells)
	}
	p.Layer[p.Layers] = l
	p.Layers++
}

func (p *Packed) appendRows(l *layer, cells []cell) {
	perRow := p.perWord() * wordsPerInput
	l.Rows = uint16((len(cells) + perRow - 1) / perRow)
	l.Stride = uint16(wordsPerInput * (2*p.perWord() + int(l.Inputs)))
	for row := range slices.Chunk(cells, perRow) {
		words := make([]uint64, l.Stride)
		for i, c := range row {
			words[2*i], words[2*i+1] = uint64(c.add), uint64(c.mul)
			if p.Kind == packed { // the sum in its lane is 2^20 too high
				words[2*i] -= uint64(c.mul << 20)
			}
			for j, w := range c.weights {
				words[2*perRow+j*wordsPerInput+i/p.perWord()] += uint64(w) << (lane * (i % p.perWord()))
			}
		}
		p.words = append(p.words, words...)
	}
}

// offsetBefore returns the offset of the outputs of the previous layer, or of the inputs.
func (p *Packed) offsetBefore() int64 {
	if p.Layers == 0 {
		return p.InputOffset
	}
	return p.Layer[p.Layers-1].Offset
}

// appendSmall lays out cells with premultiplied weights, and adds the offset of the inputs to the constants.
func (p *Packed) appendSmall(cells []cell, offset int64) {
	for i := range smallWidth {
		words := make([]uint64, 1+smallWidth)
		if i < len(cells) {
			words[0] = uint64(cells[i].add)
			for j, w := range cells[i].weights {
				words[1+j] = uint64(w * cells[i].mul)
				words[0] += words[1+j] * uint64(offset)
			}
		}
		p.words = append(p.words, words...)
	}
}

// isSmall reports whether the values of each layer fit into registers.
func isSmall(layers []Layer) bool {
	for i, l := range layers {
		if i >= smallLayers || len(l.Weights) > smallWidth || len(l.Weights[0]) > smallWidth || activationOf(&l) != clamped {
			return false
		}
	}
	return true
}

// score sets the conversion of an output with the given number of fractional bits to Q15.
func (p *Packed) score(d *Document, bits int, outputs int) {
	p.Outputs = uint8(outputs)
	if p.ScoreMul = 1; bits >= 15 {
		p.ScoreShift = uint8(bits - 15)
	} else {
		p.ScoreMul = 1 << (15 - bits)
	}
	if outputs == 1 {
		p.Threshold = int64(math.Floor(math.Ldexp(d.cut(), bits)))
	}
}

// activationOf returns the activation of a hidden layer.
func activationOf(l *Layer) activation {
	return map[string]activation{LeakyReLU: leaky, Sigmoid: sigmoid, Tanh: tanh}[l.Activation]
}
