// SPDX-License-Identifier: Apache-2.0

package model

import (
	"math"
	"slices"
)

// Infer evaluates the model in floating point. It returns the class and the probability that it is not the first, or 0
// or 1 for models without probabilities. row has the features in the order of d.Features.
func (d *Document) Infer(row []float64) (class int, score float64) {
	out := d.Outputs(row)
	if len(out) > 1 {
		class = largest(out)
	} else if out[0] > d.cut() {
		class = 1
	}
	switch d.meaning() {
	case logistic:
		score = 1 / (1 + math.Exp(-out[0]))
	case share:
		score = out[0]
	case softmax:
		score = 1 - softmaxOf(out)[0]
	case shares:
		score = 1 - out[0]
	default:
		score = float64(min(class, 1))
	}
	return class, score
}

// Outputs returns the outputs before the decision: logits, or the probabilities of trees and forests.
func (d *Document) Outputs(row []float64) []float64 {
	x := make([]float64, len(row))
	for i, v := range row {
		from, width := d.Scale.of(i)
		x[i] = (v - from) / width
	}
	if !d.layered() {
		return d.treeOutputs(x)
	}
	for _, l := range d.dense() {
		x = l.apply(x)
	}
	return x
}

// output mirrors enum kerb_model_output.
type output uint8

const (
	threshold output = iota
	logistic
	share
	argmax
	softmax
	shares
)

// meaning returns how outputs are converted to a class and a score: boosting and sigmoid yield log odds, forests the
// fraction of the trees' votes.
func (d *Document) meaning() output {
	if !d.layered() {
		many := d.outputs() > 1
		switch {
		case d.Kind == Boosting && many:
			return softmax
		case d.Kind == Boosting:
			return logistic
		case many:
			return shares
		}
		return share
	}
	last := &d.Layers[len(d.Layers)-1]
	switch {
	case last.Activation == Sigmoid:
		return logistic
	case last.Activation == Softmax:
		return softmax
	case len(last.Weights) == 1:
		return threshold
	}
	return argmax
}

// cut returns the threshold in units of the output.
func (d *Document) cut() float64 {
	t, meaning := 0.5, d.meaning()
	if meaning == threshold {
		t = 0
	}
	if d.Threshold != nil {
		t = *d.Threshold
	}
	if meaning == logistic {
		return math.Log(t / (1 - t))
	}
	return t
}

func largest[T float64 | int64](out []T) int { return slices.Index(out, slices.Max(out)) }

func softmaxOf(out []float64) []float64 {
	most, sum := slices.Max(out), 0.0
	p := make([]float64, len(out))
	for i, v := range out {
		p[i] = math.Exp(v - most)
		sum += p[i]
	}
	for i := range p {
		p[i] /= sum
	}
	return p
}

func (l *Layer) apply(x []float64) []float64 {
	y := make([]float64, len(l.Weights))
	for i, row := range l.Weights {
		sum := l.Bias[i]
		for j, w := range row {
			sum += w * x[j]
		}
		y[i] = l.activate(sum)
	}
	return y
}

// activate applies the activation, except those of last layers, which are part of the decision.
func (l *Layer) activate(v float64) float64 {
	switch l.Activation {
	case ReLU:
		return max(v, 0)
	case LeakyReLU:
		if v < 0 {
			return v * l.slope()
		}
	case Sigmoid:
		return 1 / (1 + math.Exp(-v))
	case Tanh:
		return math.Tanh(v)
	}
	return v
}

func (l *Layer) slope() float64 {
	if l.Slope == 0 {
		return 0.01
	}
	return l.Slope
}

// treeOutputs sums up the leaves that x reaches. In boosting, tree t belongs to class t modulo the number of classes;
// forests average. A single output is the fraction of class 1.
func (d *Document) treeOutputs(x []float64) []float64 {
	out := make([]float64, d.outputs())
	copy(out, d.Base)
	for t, tree := range d.Trees {
		value := tree.find(x).Value
		switch {
		case d.Kind == Boosting:
			out[t%len(out)] += value[0]
		case len(out) == 1:
			out[0] += value[1] / float64(len(d.Trees))
		default:
			for i, p := range value {
				out[i] += p / float64(len(d.Trees))
			}
		}
	}
	return out
}

func (t Nodes) find(x []float64) *Node {
	n := &t[0]
	for !n.leaf() {
		if x[n.Feature] <= n.Threshold {
			n = &t[n.Left]
		} else {
			n = &t[n.Right]
		}
	}
	return n
}
