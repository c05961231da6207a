// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"time"
)

var namePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$`)

// maxNumber bounds all numbers of a document: larger ones would cost sums their precision.
const maxNumber = 1 << 40

// Check validates a document. Errors are *Error. Pack checks the limits of the data plane's arithmetic.
func (d *Document) Check() error {
	checks := []func() error{d.checkHead, d.checkNames, d.checkScale, d.checkInfo}
	if d.layered() {
		checks = append(checks, d.checkLayers, d.checkRanges)
	} else {
		checks = append(checks, d.checkTrees)
	}
	for _, check := range append(checks, d.checkThreshold) {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (d *Document) layered() bool {
	return slices.Contains([]string{MLP, Conv1D, Logistic, Linear}, d.Kind)
}

// checkHead checks the fields that all kinds have: format, kind, name, features, classes.
func (d *Document) checkHead() error {
	switch {
	case d.Format != Format:
		return wrong("format", "%q; this version reads %s", d.Format, Format)
	case !namePattern.MatchString(d.Name):
		return wrong("name", "%q; use up to 63 lower-case letters, digits, dashes and dots", d.Name)
	case d.Version == 0:
		return wrong("version", "must be 1 or greater")
	case !d.layered() && !slices.Contains([]string{Tree, Forest, Boosting}, d.Kind):
		return wrong("kind", "%q is not one of mlp, conv1d, logistic, linear, tree, forest, boosting", d.Kind)
	case d.Extractor == "":
		return wrong("extractor", "required: rpl or flow")
	}
	if d.Window != "" {
		if w, err := time.ParseDuration(d.Window); err != nil || w <= 0 {
			return wrong("window", "%q is no time such as 10s", d.Window)
		}
	}
	return nil
}

// checkNames checks the names of features and classes, whose order is that of columns and outputs.
func (d *Document) checkNames() error {
	if err := distinct("features", d.Features, 1, MaxFeatures); err != nil {
		return err
	}
	return distinct("classes", d.Classes, 2, MaxClasses)
}

// distinct rejects empty and duplicate names, and lists with fewer than least or more than most names.
func distinct(field string, names []string, least, most int) error {
	if len(names) < least || len(names) > most {
		return wrong(field, "%d names; there have to be %d to %d", len(names), least, most)
	}
	for i, name := range names {
		if name == "" || slices.Contains(names[:i], name) {
			return wrong(fmt.Sprintf("%s[%d]", field, i), "%q is empty, or there twice", name)
		}
	}
	return nil
}

// finite rejects NaN, infinities and numbers that are too large.
func finite(field string, numbers ...float64) error {
	for i, v := range numbers {
		if len(numbers) > 1 {
			field := fmt.Sprintf("%s[%d]", field, i)
			if err := finite(field, v); err != nil {
				return err
			}
			continue
		}
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return wrong(field, "is %v; train the model again, with scaled features and fewer steps", v)
		}
		if math.Abs(v) > maxNumber {
			return wrong(field, "%g is too large (2^40); scale the features before training", v)
		}
	}
	return nil
}

// numbers checks a list with one number per item, such as per feature.
func numbers(field string, list []float64, want int, of string) error {
	if len(list) != want {
		return wrong(field, "%d numbers for %d %s", len(list), want, of)
	}
	return finite(field, list...)
}

// checkScale checks that each feature has an offset and a width: mean and std, or min and max. If a feature was
// constant in training, its width is nearly 0, and any other value would dominate the decision.
func (d *Document) checkScale() error {
	s, n := d.Scale, len(d.Features)
	if s == nil {
		return nil
	}
	if (s.Mean == nil) != (s.Std == nil) || (s.Min == nil) != (s.Max == nil) || (s.Mean == nil) == (s.Min == nil) {
		return wrong("scale", "set mean and std, or min and max")
	}
	for _, l := range []struct {
		name string
		list []float64
	}{{"mean", s.Mean}, {"std", s.Std}, {"min", s.Min}, {"max", s.Max}} {
		if l.list == nil {
			continue
		}
		if err := numbers("scale."+l.name, l.list, n, "features"); err != nil {
			return err
		}
	}
	for i := range n {
		if _, width := s.of(i); width < 1e-6 {
			return wrong(fmt.Sprintf("scale of %s", d.Features[i]), "std, or max-min, is %g; it has to be at least 0.000001: "+
				"remove features that never change", width)
		}
	}
	return nil
}

// of returns the offset and the divisor of feature i.
func (s *Scale) of(i int) (from, width float64) {
	switch {
	case s == nil:
		return 0, 1
	case s.Mean != nil:
		return s.Mean[i], s.Std[i]
	}
	return s.Min[i], s.Max[i] - s.Min[i]
}

// checkThreshold checks the threshold of a model with two classes: a probability, or any number if the output is not
// one.
func (d *Document) checkThreshold() error {
	if d.Threshold == nil {
		return nil
	}
	if len(d.Classes) != 2 {
		return wrong("threshold", "is for two classes; with more the most probable one wins")
	}
	if t := *d.Threshold; d.meaning() != threshold && !(t > 0 && t < 1) {
		return wrong("threshold", "%g is no probability between 0 and 1", t)
	}
	return finite("threshold", *d.Threshold)
}

// checkInfo checks the numbers that are only displayed. They come from training, and may be NaN.
func (d *Document) checkInfo() error {
	if d.Accuracy != nil {
		if err := finite("accuracy", *d.Accuracy); err != nil {
			return err
		}
	}
	for i, r := range d.Rules {
		if err := finite(fmt.Sprintf("rules[%d].accuracy", i), r.Accuracy); err != nil {
			return err
		}
	}
	return nil
}

// checkLayers checks that the output width of each layer is the input width of the next, from features to classes.
func (d *Document) checkLayers() error {
	switch {
	case len(d.Trees) > 0 || d.Base != nil:
		return wrong("trees", "a model of kind %s has layers, no trees and no base", d.Kind)
	case len(d.Layers) == 0 || len(d.Layers) > MaxLayers:
		return wrong("layers", "%d layers; there have to be 1 to %d", len(d.Layers), MaxLayers)
	case len(d.Layers) > 1 && (d.Kind == Logistic || d.Kind == Linear):
		return wrong("layers", "a model of kind %s has one", d.Kind)
	case !slices.Contains([]string{"", Q15, Int8}, d.Arithmetic):
		return wrong("arithmetic", "%q is neither q15 nor int8", d.Arithmetic)
	}
	width := len(d.Features)
	for i := range d.Layers {
		var err error
		if width, err = d.checkLayer(fmt.Sprintf("layers[%d]", i), &d.Layers[i], width); err != nil {
			return err
		}
		if last := i == len(d.Layers)-1; !last && !slices.Contains([]string{Identity, ReLU, LeakyReLU, Sigmoid, Tanh},
			d.Layers[i].Activation) {
			return wrong(fmt.Sprintf("layers[%d].activation", i), "%q is not one of identity, relu, leakyRelu, sigmoid, tanh",
				d.Layers[i].Activation)
		}
	}
	return d.checkOutput(width)
}

// checkLayer returns the number of outputs of the layer.
func (d *Document) checkLayer(field string, l *Layer, inputs int) (int, error) {
	outputs, columns := len(l.Weights), inputs
	if l.Conv != nil {
		if d.Kind != Conv1D {
			return 0, wrong(field+".conv", "is for models of kind %s", Conv1D)
		}
		length, err := l.Conv.check(field+".conv", inputs)
		if err != nil {
			return 0, err
		}
		outputs, columns = len(l.Weights)*length, l.Conv.Channels*l.Conv.Kernel
	}
	if outputs == 0 || outputs > MaxWidth {
		return 0, wrong(field+".weights", "%d outputs; a layer has 1 to %d: train a narrower one, or run it in user space",
			outputs, MaxWidth)
	}
	for i, row := range l.Weights {
		if err := numbers(fmt.Sprintf("%s.weights[%d]", field, i), row, columns, "inputs"); err != nil {
			return 0, err
		}
	}
	if l.Activation != LeakyReLU && l.Slope != 0 || l.Slope < 0 || l.Slope > 1 || math.IsNaN(l.Slope) {
		return 0, wrong(field+".slope", "%g; leakyRelu has one between 0 and 1", l.Slope)
	}
	return outputs, numbers(field+".bias", l.Bias, len(l.Weights), "rows of weights")
}

// check returns the number of outputs of a filter.
func (c *Conv) check(field string, inputs int) (int, error) {
	switch {
	case c.Channels < 1 || inputs%c.Channels != 0:
		return 0, wrong(field+".channels", "%d does not divide the %d inputs", c.Channels, inputs)
	case c.Kernel < 1 || c.Kernel > MaxWidth || c.Stride < 0 || c.Stride > MaxWidth || c.Padding < 0 ||
		c.Padding >= c.Kernel:
		return 0, wrong(field, "kernel %d, stride %d, padding %d; kernel and stride are 1 to %d, padding is less than kernel",
			c.Kernel, c.Stride, c.Padding, MaxWidth)
	case c.Pool != "" && c.Pool != "average":
		return 0, wrong(field+".pool", "%q; only average is possible", c.Pool)
	}
	length := c.length(inputs)
	if length < 1 {
		return 0, wrong(field+".kernel", "%d is longer than the signal", c.Kernel)
	}
	if c.Pool != "" {
		return 1, nil
	}
	return length, nil
}

// length returns the number of positions of a filter.
func (c *Conv) length(inputs int) int {
	return (inputs/c.Channels+2*c.Padding-c.Kernel)/max(1, c.Stride) + 1
}

// checkOutput checks the last layer: it has one output per class, or one for the second of two classes, and an
// activation from which a score can be computed.
func (d *Document) checkOutput(outputs int) error {
	field := fmt.Sprintf("layers[%d]", len(d.Layers)-1)
	activation := d.Layers[len(d.Layers)-1].Activation
	one, many := []string{Identity, Sigmoid}, []string{Identity, Argmax, Softmax}
	switch d.Kind {
	case Logistic:
		one, many = []string{Sigmoid}, []string{Softmax}
	case Linear:
		one, many = []string{Identity}, []string{Identity, Argmax}
	}
	switch {
	case outputs == 1 && len(d.Classes) == 2:
		if !slices.Contains(one, activation) {
			return wrong(field+".activation", "%q; one output of a %s model has one of %v", activation, d.Kind, one)
		}
	case outputs == len(d.Classes):
		if !slices.Contains(many, activation) {
			return wrong(field+".activation", "%q; %d outputs of a %s model have one of %v", activation, outputs, d.Kind, many)
		}
		if d.Threshold != nil {
			return wrong("threshold", "is for one output; with %d the largest wins", outputs)
		}
	default:
		return wrong(field, "%d outputs for %d classes; there has to be one for each, or one for two", outputs,
			len(d.Classes))
	}
	return nil
}

// checkRanges checks the ranges that int8 arithmetic divides into 127 levels: minimum and maximum of each input, and of
// the outputs of each layer.
func (d *Document) checkRanges() error {
	r := d.Ranges
	if r == nil {
		return nil
	}
	if len(r.Inputs) != len(d.Features) || len(r.Layers) != len(d.Layers) {
		return wrong("ranges", "%d inputs and %d layers for a model with %d and %d; quantise it again", len(r.Inputs),
			len(r.Layers), len(d.Features), len(d.Layers))
	}
	for _, list := range []struct {
		name   string
		ranges [][2]float64
	}{{"inputs", r.Inputs}, {"layers", r.Layers}} {
		for i, at := range list.ranges {
			field := fmt.Sprintf("ranges.%s[%d]", list.name, i)
			if err := finite(field, at[:]...); err != nil {
				return err
			}
			if at[1]-at[0] < 1e-6 {
				return wrong(field, "from %g to %g is no range; quantise the model again", at[0], at[1])
			}
		}
	}
	return nil
}

// checkTrees checks every tree, and that all of them fit into a value of the map.
func (d *Document) checkTrees() error {
	switch {
	case len(d.Layers) > 0 || d.Arithmetic != "" || d.Ranges != nil:
		return wrong("layers", "a model of kind %s has trees; no layers, arithmetic or ranges", d.Kind)
	case len(d.Trees) == 0 || len(d.Trees) > MaxTrees || d.Kind == Tree && len(d.Trees) > 1:
		return wrong("trees", "%d trees; kind tree has 1, other kinds have 1 to %d", len(d.Trees), MaxTrees)
	}
	if d.Kind != Boosting {
		if d.Base != nil {
			return wrong("base", "is for boosting")
		}
	} else if err := d.checkBase(); err != nil {
		return err
	}
	nodes := 0
	for i, tree := range d.Trees {
		if nodes += len(tree); nodes > MaxWords {
			return wrong("trees", "more than %d nodes; train fewer or lower trees, or run the model in user space", MaxWords)
		}
		if err := d.checkTree(fmt.Sprintf("trees[%d]", i), tree); err != nil {
			return err
		}
	}
	return nil
}

// checkBase checks the base values of boosting. Tree i adds to output i modulo the number of outputs.
func (d *Document) checkBase() error {
	if n := d.outputs(); d.Base != nil {
		if err := numbers("base", d.Base, n, "outputs"); err != nil {
			return err
		}
	}
	if n := d.outputs(); len(d.Trees)%n != 0 {
		return wrong("trees", "%d trees cannot take turns for %d classes", len(d.Trees), n)
	}
	return nil
}

// outputs returns the number of outputs of a model of trees: one for two classes.
func (d *Document) outputs() int {
	if n := len(d.Classes); n > 2 {
		return n
	}
	return 1
}

// checkTree walks the tree from the root and checks that each node is reached exactly once: no cycles, no unreachable
// nodes.
func (d *Document) checkTree(field string, tree Nodes) error {
	type place struct{ node, depth int }
	met, next := make([]bool, len(tree)), []place{{}}
	if len(tree) == 0 {
		return wrong(field, "has no nodes")
	}
	for len(next) > 0 {
		at := next[len(next)-1]
		next = next[:len(next)-1]
		name := fmt.Sprintf("%s[%d]", field, at.node)
		if at.node < 0 || at.node >= len(tree) {
			return wrong(name, "is a child, but the tree has %d nodes", len(tree))
		}
		if met[at.node] {
			return wrong(name, "is the child of two nodes, or of itself; nodes have to be a tree")
		}
		if at.depth > MaxDepth {
			return wrong(field, "is deeper than %d; train it with a lower limit (max_depth)", MaxDepth)
		}
		met[at.node] = true
		n := &tree[at.node]
		if err := d.checkNode(name, n); err != nil {
			return err
		}
		if !n.leaf() {
			next = append(next, place{n.Left, at.depth + 1}, place{n.Right, at.depth + 1})
		}
	}
	if i := slices.Index(met, false); i >= 0 {
		return wrong(fmt.Sprintf("%s[%d]", field, i), "is not reachable from the root; remove it")
	}
	return nil
}

func (n *Node) leaf() bool { return len(n.Value) > 0 }

// checkNode checks one node: a split on a feature, or a leaf with class probabilities, or for boosting with any number.
func (d *Document) checkNode(field string, n *Node) error {
	if !n.leaf() {
		if n.Feature < 0 || n.Feature >= len(d.Features) {
			return wrong(field+".feature", "%d; the model has %d features, counted from 0", n.Feature, len(d.Features))
		}
		return finite(field+".threshold", n.Threshold)
	}
	if n.Left != 0 || n.Right != 0 {
		return wrong(field, "has a value and children")
	}
	want := len(d.Classes)
	if d.Kind == Boosting {
		want = 1
	}
	if err := numbers(field+".value", n.Value, want, "outputs"); err != nil {
		return err
	}
	if d.Kind == Boosting {
		return nil
	}
	sum := 0.0
	for _, p := range n.Value {
		if p < 0 {
			return wrong(field+".value", "%g is no probability", p)
		}
		sum += p
	}
	if math.Abs(sum-1) > 1e-3 {
		return wrong(field+".value", "the probabilities add up to %g, not 1", sum)
	}
	return nil
}
