// SPDX-License-Identifier: Apache-2.0

package model

// dense returns the layers with convolutions unrolled to dense layers. The activation of the last layer is part of the
// decision.
func (d *Document) dense() []Layer {
	out := make([]Layer, len(d.Layers))
	width := len(d.Features)
	for i, l := range d.Layers {
		if out[i] = l; l.Conv != nil {
			out[i] = l.unrolled(width)
		}
		width = len(out[i].Weights)
	}
	out[len(out)-1].Activation = Identity
	return out
}

// unrolled returns a convolution as a dense layer, with one row per filter and position, or with pooling one averaged
// row per filter, so that inference needs only one kind of layer.
func (l *Layer) unrolled(inputs int) Layer {
	c, length := l.Conv, l.Conv.length(inputs)
	out := Layer{Activation: l.Activation, Slope: l.Slope}
	for filter, weights := range l.Weights {
		var rows [][]float64
		for at := range length {
			rows = append(rows, c.row(weights, inputs, at))
		}
		if c.Pool != "" {
			rows = [][]float64{average(rows)}
		}
		for _, row := range rows {
			out.Weights, out.Bias = append(out.Weights, row), append(out.Bias, l.Bias[filter])
		}
	}
	return out
}

// row returns the weights of all inputs for a filter at one position.
func (c *Conv) row(weights []float64, inputs, at int) []float64 {
	row, length := make([]float64, inputs), inputs/c.Channels
	for channel := range c.Channels {
		for k := range c.Kernel {
			if i := at*max(1, c.Stride) - c.Padding + k; i >= 0 && i < length {
				row[channel*length+i] = weights[channel*c.Kernel+k]
			}
		}
	}
	return row
}

func average(rows [][]float64) []float64 {
	out := make([]float64, len(rows[0]))
	for _, row := range rows {
		for i, w := range row {
			out[i] += w / float64(len(rows))
		}
	}
	return out
}
