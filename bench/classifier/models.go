// SPDX-License-Identifier: Apache-2.0

package classifier

import (
	"fmt"
	"math/rand/v2"

	"github.com/kerb-edge/kerb/sdk/model"
)

// network returns a perceptron with random weights, on which its time does not depend.
func network(arithmetic string, widths []int) (*model.Document, error) {
	r := rand.New(rand.NewPCG(1, 2))
	d := document(model.MLP, widths[0])
	d.Arithmetic = arithmetic
	for l, inputs := range widths[:len(widths)-1] {
		layer := model.Layer{Activation: model.ReLU}
		for range widths[l+1] {
			row := make([]float64, inputs)
			for i := range row {
				row[i] = r.NormFloat64() / float64(inputs)
			}
			layer.Weights = append(layer.Weights, row)
			layer.Bias = append(layer.Bias, r.NormFloat64())
		}
		d.Layers = append(d.Layers, layer)
	}
	last, outputs := &d.Layers[len(d.Layers)-1], widths[len(widths)-1]
	if last.Activation = model.Sigmoid; outputs > 1 {
		last.Activation, d.Classes = model.Argmax, names("class", outputs)
	}
	if arithmetic != model.Int8 {
		return d, nil
	}
	var rows [][]float64
	for range 200 {
		rows = append(rows, floats(features(r, widths[0])))
	}
	return d, d.Calibrate(rows)
}

// forest returns complete trees, so that each inference has the full depth.
func forest(trees, depth int) *model.Document {
	r := rand.New(rand.NewPCG(1, 2))
	d := document(model.Forest, model.MaxFeatures)
	for range trees {
		nodes := make(model.Nodes, 2<<depth-1)
		for i := range nodes {
			if i < 1<<depth-1 {
				nodes[i] = model.Node{Feature: r.IntN(model.MaxFeatures), Threshold: float64(r.IntN(1024)), Left: 2*i + 1,
					Right: 2*i + 2}
				continue
			}
			p := r.Float64()
			nodes[i].Value = []float64{p, 1 - p}
		}
		d.Trees = append(d.Trees, nodes)
	}
	return d
}

func document(kind string, inputs int) *model.Document {
	return &model.Document{Format: model.Format, Name: "bench", Version: 1, Extractor: "rpl", Features: names("f", inputs),
		Kind:    kind,
		Classes: []string{"normal", "attack"}}
}

func names(prefix string, n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprint(prefix, i))
	}
	return out
}

func features(r *rand.Rand, n int) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = r.Int64N(1024)
	}
	return out
}

func floats(row []int64) []float64 {
	out := make([]float64, len(row))
	for i, v := range row {
		out[i] = float64(v)
	}
	return out
}
