// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// names of features 0 to n-1.
func names(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("f%d", i)
	}
	return out
}

// network is a random MLP of these widths, the first of which is the number of features.
func network(r *rand.Rand, hidden, last string, widths ...int) *Document {
	n := widths[0]
	d := &Document{Format: Format, Name: "random", Version: 1 + r.Uint32N(1000), Extractor: "test", Kind: MLP,
		Features: names(n),
		Classes:  names(max(2, widths[len(widths)-1])), Scale: &Scale{Mean: make([]float64, n), Std: make([]float64, n)}}
	for i := range n {
		d.Scale.Mean[i], d.Scale.Std[i] = r.Float64()*100, math.Exp(r.Float64()*8-1)
	}
	for i, width := range widths[1:] {
		d.Layers = append(d.Layers, randomLayer(r, widths[i], width, hidden))
	}
	d.Layers[len(d.Layers)-1].Activation = last
	return d
}

func randomLayer(r *rand.Rand, inputs, outputs int, activation string) Layer {
	l := Layer{Activation: activation}
	for range outputs {
		row := make([]float64, inputs)
		for j := range row {
			row[j] = r.NormFloat64() * math.Sqrt(2/float64(inputs))
		}
		l.Weights, l.Bias = append(l.Weights, row), append(l.Bias, r.NormFloat64()*0.1)
	}
	return l
}

// forest is random; full trees have all their leaves at the same depth.
func forest(r *rand.Rand, kind string, features, classes, n, depth int, full bool) *Document {
	d := &Document{Format: Format, Name: "random", Version: 1 + r.Uint32N(1000), Extractor: "test", Kind: kind,
		Features: names(features), Classes: names(classes)}
	for t := range n {
		var tree Nodes
		grow(r, d, &tree, depth, full, t)
		d.Trees = append(d.Trees, tree)
	}
	if kind == Boosting {
		for range d.outputs() {
			d.Base = append(d.Base, r.NormFloat64())
		}
	}
	return d
}

func grow(r *rand.Rand, d *Document, tree *Nodes, depth int, full bool, t int) int {
	at := len(*tree)
	*tree = append(*tree, Node{})
	if depth == 0 || !full && at > 0 && r.IntN(6) == 0 {
		(*tree)[at].Value = leafValue(r, d)
		return at
	}
	n := Node{Feature: r.IntN(len(d.Features)), Threshold: math.Round(r.Float64()*400) / 2}
	n.Left = grow(r, d, tree, depth-1, full, t)
	n.Right = grow(r, d, tree, depth-1, full, t)
	(*tree)[at] = n
	return at
}

func leafValue(r *rand.Rand, d *Document) []float64 {
	if d.Kind == Boosting {
		return []float64{r.NormFloat64() * 0.1}
	}
	p, sum := make([]float64, len(d.Classes)), 0.0
	for i := range p {
		p[i] = math.Round(r.ExpFloat64() * 20)
		sum += p[i]
	}
	if sum == 0 {
		p[0], sum = 1, 1
	}
	for i := range p {
		p[i] /= sum
	}
	return p
}

// extremes are values of features that programs trip over.
var extremes = []int64{0, 1, -1, 127, 128, 1 << 15, 65535, 65536, 1000000, 1<<31 - 1, -(1<<31 - 1)}

func sample(r *rand.Rand, n int) []int64 {
	out := make([]int64, n)
	for i := range out {
		switch r.IntN(8) {
		case 0:
			out[i] = extremes[r.IntN(len(extremes))]
		case 1:
			out[i] = r.Int64N(1<<31) >> r.IntN(31)
		default:
			out[i] = r.Int64N(200)
		}
	}
	return out
}

// ordinary features are like those that the model was trained with.
func ordinary(r *rand.Rand, d *Document) []int64 {
	out := make([]int64, len(d.Features))
	for i := range out {
		out[i] = r.Int64N(200)
		if d.Scale != nil {
			from, width := d.Scale.of(i)
			out[i] = int64(from + width*r.NormFloat64())
		}
	}
	return out
}

func floats(in []int64) []float64 {
	out := make([]float64, len(in))
	for i, v := range in {
		out[i] = float64(v)
	}
	return out
}

// calibrate finds the ranges on ordinary rows.
func calibrate(r *rand.Rand, d *Document) *Document {
	rows := make([][]float64, 2000)
	for i := range rows {
		rows[i] = floats(ordinary(r, d))
	}
	if err := d.Calibrate(rows); err != nil {
		panic(err)
	}
	d.Arithmetic = Int8
	return d
}
