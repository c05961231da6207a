// SPDX-License-Identifier: Apache-2.0

package model

// Infer computes the same result as the data plane, bit for bit. features has all features of the extractor, in its
// order.
func (p *Packed) Infer(features []int64) Decision {
	out := p.outputs(features)
	d := Decision{Version: p.header.Version}
	if len(out) > 1 {
		d.Class = uint32(largest(out))
	} else if out[0] > p.Threshold {
		d.Class = 1
	}
	d.Score = int32(p.scoreOf(out, int(d.Class)))
	return d
}

// outputs is the reference for the data plane's arithmetic: integers only, arithmetic shifts, and the same clamps, so
// that both agree bit for bit.
func (p *Packed) outputs(features []int64) []int64 {
	if p.Kind == trees {
		return p.walk(features)
	}
	x := make([]int64, p.Inputs, MaxWidth+4)
	for i := range x {
		in := &p.Input[i]
		x[i] = clamp((features[in.Feature/8]*in.Mul+in.Add)>>in.Shift, p.InputLimit) + p.InputOffset
	}
	offset := p.InputOffset
	for i := range p.Layer[:p.Layers] {
		l := &p.Layer[i]
		if p.Kind == small {
			x = p.applySmall(l, x, offset)
		} else {
			x = p.apply(l, x)
		}
		offset = l.Offset
	}
	return x[:p.Outputs]
}

// clamp limits v to 0..limit.
func clamp(v int64, limit uint64) int64 { return max(0, min(v, int64(limit))) }

// apply returns the outputs of a layer. Neurons that pad a row come last and have zero weights, or none.
func (p *Packed) apply(l *layer, x []int64) (y []int64) {
	x = x[:min(len(x), int(l.Inputs))]
	perRow := wordsPerInput * p.perWord()
	for row := range int(l.Rows) {
		at := int(l.At) + row*int(l.Stride)
		for i := range perRow {
			sum := uint64(0)
			if p.Kind == packed {
				sum = lanesZero
			}
			for j, v := range x {
				sum += p.words[at+2*perRow+j*wordsPerInput+i/p.perWord()] * uint64(v)
			}
			if p.Kind == packed {
				sum = sum >> (lane * (i % 3))
				if i%3 < 2 {
					sum &= laneMask
				}
			}
			y = append(y, p.neuron(l, at+2*i, sum))
		}
	}
	for i := range y {
		if l.Activation != clamped {
			y[i] = clamp((l.activate(y[i])*l.PostMul+l.PostAdd)>>l.PostShift, l.PostLimit) + l.PostOffset
		}
	}
	return y
}

// applySmall takes inputs with an offset, like apply, and subtracts it, since the layer's bias includes it.
func (p *Packed) applySmall(l *layer, x []int64, offset int64) (y []int64) {
	for i := range int(l.Neurons) {
		words := p.words[int(l.At)+i*(1+smallWidth):]
		sum := int64(words[0])
		for j, v := range x {
			sum += int64(words[1+j]) * (v - offset)
		}
		y = append(y, clamp(sum>>l.Shift, l.Limit)+l.Offset)
	}
	return y
}

func (p *Packed) neuron(l *layer, at int, sum uint64) int64 {
	return clamp(int64(sum*p.words[at+1]+p.words[at])>>l.Shift, l.Limit) + l.Offset
}

func (l *layer) activate(z int64) int64 {
	switch {
	case l.Activation == leaky && z < 0:
		return round(z*l.Slope, 15)
	case l.Activation == sigmoid:
		return round(sigmoidOf(z), 15)
	case l.Activation == tanh:
		return round(2*sigmoidOf(2*z)-tableOne, 15)
	}
	return z
}

func round(v int64, shift uint8) int64 { return (v + 1<<(shift-1)) >> shift }

// at returns the value at z >= 0, which is in Q15.
func (t *table) at(z int64) int64 {
	z = min(z, tableSteps<<tableStep-1)
	low, high := int64(t[z>>tableStep]), int64(t[z>>tableStep+1])
	return low + (high-low)*(z&(1<<tableStep-1))>>tableStep
}

// sigmoidOf takes z in Q15 and returns Q30.
func sigmoidOf(z int64) int64 {
	if z < 0 {
		return tableOne - tables().sigmoid.at(-z)
	}
	return tables().sigmoid.at(z)
}

// walk descends every tree for Depth steps like the data plane, whose loop needs a fixed bound. At nodes with the
// feature never, the walk does not branch.
func (p *Packed) walk(features []int64) []int64 {
	out := make([]int64, p.Outputs)
	copy(out, p.Base[:])
	for t := range int(p.Trees) {
		at := t
		for range p.Depth {
			node := p.words[at]
			next := int(node&nodeLeft) / 8
			if f := uint32(node) >> nodeFeature; f != never && features[f/8] > int64(node)>>32 {
				next++
			}
			at = next
		}
		value := int64(p.words[at]) >> 32
		switch {
		case p.Vectors != 0:
			for i := range out {
				out[i] += int64(p.words[int(value)+i])
			}
		default:
			out[t%len(out)] += value
		}
	}
	return out
}

// scoreOf returns the score in Q15, from 0 to ScoreOne. Softmax subtracts the largest output first, so that the table
// of exponentials covers the range.
func (p *Packed) scoreOf(out []int64, class int) int64 {
	q15 := func(i int) int64 { return out[i] * p.ScoreMul >> p.ScoreShift }
	switch p.Output {
	case logistic:
		return round(sigmoidOf(q15(0)), 15)
	case share:
		return max(0, min(q15(0), ScoreOne))
	case softmax:
		sum, most := int64(0), q15(class)
		for i := range out {
			sum += tables().exp.at(most - q15(i))
		}
		return ((sum - tables().exp.at(most-q15(0))) << 15) / sum
	case shares:
		return max(0, min(ScoreOne-q15(0), ScoreOne))
	}
	return int64(min(class, 1)) * ScoreOne
}
