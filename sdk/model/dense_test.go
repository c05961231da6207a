// SPDX-License-Identifier: Apache-2.0

package model

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/kerb-edge/kerb/internal/seed"
)

// convolution is a random conv1d of two channels: a filter layer, then one output.
func convolution(r *rand.Rand, length int, c Conv) *Document {
	d := network(r, ReLU, Sigmoid, c.Channels*length, 1)
	d.Kind = Conv1D
	filters := randomLayer(r, c.Channels*c.Kernel, 2, ReLU)
	filters.Conv = &c
	outputs := 2 * c.length(c.Channels*length)
	if c.Pool != "" {
		outputs = 2
	}
	d.Layers = []Layer{filters, randomLayer(r, outputs, 1, Sigmoid)}
	return d
}

// A convolution unrolled to a dense layer computes the same as its definition.
func TestConvolution(t *testing.T) {
	r := seed.Rand(t)
	for _, c := range []Conv{{Channels: 2, Kernel: 3}, {Channels: 1, Kernel: 3, Padding: 1},
		{Channels: 2, Kernel: 4, Stride: 2, Padding: 2}, {Channels: 2, Kernel: 2, Pool: "average"}} {
		const length = 10
		d := convolution(r, length, c)
		pack(t, d, d.Features)
		x := make([]float64, c.Channels*length)
		for i := range x {
			x[i] = r.NormFloat64()
		}
		got, want := d.dense()[0].apply(x), c.slowly(&d.Layers[0], x, length)
		if len(got) != len(want) {
			t.Fatalf("%+v: %d outputs, not %d", c, len(got), len(want))
		}
		for i := range got {
			if math.Abs(got[i]-want[i]) > 1e-9 {
				t.Errorf("%+v: output %d is %g, not %g", c, i, got[i], want[i])
			}
		}
	}
}

// slowly convolves by the definition.
func (c *Conv) slowly(l *Layer, x []float64, length int) (out []float64) {
	for f, weights := range l.Weights {
		var sums []float64
		for from := -c.Padding; from+c.Kernel <= length+c.Padding; from += max(1, c.Stride) {
			sum := l.Bias[f]
			for channel := range c.Channels {
				for k := range c.Kernel {
					if at := from + k; at >= 0 && at < length {
						sum += weights[channel*c.Kernel+k] * x[channel*length+at]
					}
				}
			}
			sums = append(sums, sum)
		}
		if c.Pool != "" {
			mean := 0.0
			for _, s := range sums {
				mean += s / float64(len(sums))
			}
			sums = []float64{mean}
		}
		for _, s := range sums {
			out = append(out, max(0, s))
		}
	}
	return out
}

func TestTablesAreUpToDate(t *testing.T) {
	have, err := os.ReadFile("../../bpf/include/kerb/model_tables_gen.h")
	if err != nil {
		t.Skip(err) // the kernel matrix has no sources
	}
	if !bytes.Equal(have, TablesHeader()) {
		t.Error("model_tables_gen.h is out of date; run: go generate ./sdk/model")
	}
}
