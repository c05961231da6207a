// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/seed"
)

// Inference terminates and stays within the maps for any content: random models, and valid ones with changed bytes.
func TestNoiseInTheMapsIsHarmless(t *testing.T) {
	r, k := seed.Rand(t), newKernel(t)
	models, good := k.coll.Maps["models"], pack(t, forest(r, Forest, 8, 3, 5, 4, false), names(8)).Bytes()
	for i := range 200 {
		value := make([]byte, ValueSize)
		if i%2 == 0 {
			copy(value, good)
			for range 1 + r.IntN(50) {
				value[r.IntN(len(value))] = byte(r.Uint32())
				value[r.IntN(512)] = byte(r.Uint32())
			}
		} else {
			for j := range value {
				value[j] = byte(r.Uint32())
			}
		}
		value[4] = byte(i / 2 % 6) // the kind
		if err := models.Put(uint32(0), value); err != nil {
			t.Fatal(err)
		}
		if err := k.coll.Maps["active"].Put(uint32(0), uint32(1)); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			k.run(sample(r, MaxFeatures))
		}
	}
	if err := k.coll.Maps["active"].Put(uint32(0), uint32(slots+7)); err != nil {
		t.Fatal(err)
	}
	if _, ok := k.run(nil); ok {
		t.Error("inference with a slot that is not there")
	}
}

// good documents for the changes below.
func goodMLP() *Document { return network(rand.New(rand.NewPCG(1, 1)), ReLU, Sigmoid, 3, 4, 1) }
func goodForest() *Document {
	return forest(rand.New(rand.NewPCG(1, 1)), Forest, 3, 2, 2, 2, true)
}

func TestBadModelsAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		from   func() *Document
		change func(d *Document)
		field  string // where
		advice string // part of the reason
	}{
		"NaN": {goodMLP, func(d *Document) { d.Layers[0].Weights[2][1] = math.NaN() },
			"layers[0].weights[2][1]", "train"},
		"infinite": {goodMLP, func(d *Document) { d.Layers[1].Bias[0] = math.Inf(-1) }, "layers[1].bias", "train"},
		"huge": {goodMLP, func(d *Document) { d.Layers[0].Weights[0][0] = 1e30 }, "layers[0].weights[0][0]",
			"scale"},
		"sum out of range": {goodMLP, func(d *Document) { d.Layers[0].Weights[1] = []float64{1e7, 1e7, 1e7} },
			"layers[0].weights[1]", "scale"},
		"bias out of range": {goodMLP, func(d *Document) { d.Layers[0].Bias[1] = -70000 }, "layers[0].bias[1]", "scale"},
		"row too short": {goodMLP, func(d *Document) { d.Layers[1].Weights[0] = d.Layers[1].Weights[0][1:] },
			"layers[1].weights[0]", "3 numbers for 4"},
		"no bias": {goodMLP, func(d *Document) { d.Layers[0].Bias = nil }, "layers[0].bias", "0 numbers for 4"},
		"too wide": {goodMLP, func(d *Document) { d.Layers[0].Weights = make([][]float64, 65) },
			"layers[0].weights", "narrower"},
		"no layers":       {goodMLP, func(d *Document) { d.Layers = nil }, "layers", "1 to 8"},
		"too many layers": {goodMLP, func(d *Document) { d.Layers = make([]Layer, 9) }, "layers", "1 to 8"},
		"activation": {goodMLP, func(d *Document) { d.Layers[0].Activation = "swish" }, "layers[0].activation",
			"relu"},
		"softmax inside": {goodMLP, func(d *Document) { d.Layers[0].Activation = Softmax }, "layers[0].activation",
			"relu"},
		"outputs":           {goodMLP, func(d *Document) { d.Classes = names(3) }, "layers[1]", "1 outputs for 3 classes"},
		"threshold":         {goodMLP, func(d *Document) { d.Threshold = new(float64) }, "threshold", "between 0 and 1"},
		"int8 without data": {goodMLP, func(d *Document) { d.Arithmetic = Int8 }, "ranges", "kerb model quantise"},
		"ranges of another": {goodMLP, func(d *Document) { d.Ranges = &Ranges{} }, "ranges", "again"},
		"constant feature":  {goodMLP, func(d *Document) { d.Scale.Std[1] = 0 }, "scale of f1", "remove features"},
		"half a scale":      {goodMLP, func(d *Document) { d.Scale.Std = nil }, "scale", "mean and std"},
		"trees in an MLP":   {goodMLP, func(d *Document) { d.Trees = make([]Nodes, 1) }, "trees", "layers"},
		"convolution": {goodMLP, func(d *Document) { d.Layers[0].Conv = &Conv{Channels: 1, Kernel: 2} },
			"layers[0].conv", "conv1d"},
		"unknown feature": {goodMLP, func(d *Document) { d.Features[1] = "colour" }, "features[1]",
			"no feature of extractor"},
		"feature twice":     {goodMLP, func(d *Document) { d.Features[1] = "f0" }, "features[1]", "twice"},
		"no version":        {goodMLP, func(d *Document) { d.Version = 0 }, "version", "1 or greater"},
		"name":              {goodMLP, func(d *Document) { d.Name = "../x" }, "name", "lower-case"},
		"kind":              {goodMLP, func(d *Document) { d.Kind = "svm" }, "kind", "forest"},
		"format":            {goodMLP, func(d *Document) { d.Format = "kerb-model/2" }, "format", Format},
		"window":            {goodMLP, func(d *Document) { d.Window = "-1s" }, "window", "10s"},
		"cycle":             {goodForest, func(d *Document) { d.Trees[1][1].Left = 1 }, "trees[1][1]", "itself"},
		"cycle to the root": {goodForest, func(d *Document) { d.Trees[0][1].Right = 0 }, "trees[0][0]", "two nodes"},
		"child outside":     {goodForest, func(d *Document) { d.Trees[0][1].Right = 70 }, "trees[0][70]", "7 nodes"},
		"negative child":    {goodForest, func(d *Document) { d.Trees[0][1].Right = -1 }, "trees[0][-1]", "7 nodes"},
		"orphan": {goodForest,
			func(d *Document) { d.Trees[0] = append(d.Trees[0], Node{Value: []float64{1, 0}}) }, "trees[0][7]", "remove it"},
		"leaf with children": {goodForest, func(d *Document) { d.Trees[0][2].Left = 3 }, "trees[0][2]", "children"},
		"feature index": {goodForest, func(d *Document) { d.Trees[0][0].Feature = 3 }, "trees[0][0].feature",
			"3 features"},
		"threshold NaN": {goodForest, func(d *Document) { d.Trees[0][0].Threshold = math.NaN() }, "trees[0][0].threshold",
			"train"},
		"probabilities": {goodForest, func(d *Document) { d.Trees[0][2].Value = []float64{1, 1} }, "trees[0][2].value",
			"add up to 2"},
		"negative": {goodForest, func(d *Document) { d.Trees[0][2].Value = []float64{2, -1} }, "trees[0][2].value",
			"no probability"},
		"values": {goodForest, func(d *Document) { d.Trees[0][2].Value = []float64{1} }, "trees[0][2].value",
			"1 numbers for 2"},
		"no trees":       {goodForest, func(d *Document) { d.Trees = nil }, "trees", "1 to 320"},
		"empty tree":     {goodForest, func(d *Document) { d.Trees[0] = nil }, "trees[0]", "no nodes"},
		"too many trees": {goodForest, func(d *Document) { d.Trees = make([]Nodes, 321) }, "trees", "1 to 320"},
		"too deep":       {goodForest, func(d *Document) { d.Trees[0] = chain(MaxDepth + 1) }, "trees[0]", "max_depth"},
		"too large": {func() *Document {
			return forest(rand.New(rand.NewPCG(1, 1)), Forest, 3, 2, 40, 10, true)
		}, func(*Document) {},
			"trees", "train fewer"},
		"base": {goodForest, func(d *Document) { d.Base = []float64{1} }, "base", "boosting"},
		"odd boosting": {func() *Document { return forest(rand.New(rand.NewPCG(1, 1)), Boosting, 3, 3, 4, 2, true) },
			func(*Document) {}, "trees", "take turns"},
		"one class":    {goodForest, func(d *Document) { d.Classes = names(1) }, "classes", "2 to 16"},
		"arithmetic":   {goodMLP, func(d *Document) { d.Arithmetic = "int4" }, "arithmetic", "q15"},
		"no extractor": {goodMLP, func(d *Document) { d.Extractor = "" }, "extractor", "rpl"},
		"infinite rule": {goodMLP, func(d *Document) { d.Rules = []Rule{{"dis > 0", math.Inf(1)}} }, "rules[0].accuracy",
			"is +Inf"},
	} {
		t.Run(name, func(t *testing.T) {
			d := c.from()
			c.change(d)
			err := d.Check()
			if err == nil {
				_, err = d.Pack(names(8))
			}
			var wrong *Error
			if !errors.As(err, &wrong) {
				t.Fatalf("error %v", err)
			}
			if !strings.HasPrefix(wrong.Field, c.field) || !strings.Contains(wrong.Reason, c.advice) {
				t.Errorf("%v; want it to be about %s, with %q", err, c.field, c.advice)
			}
		})
	}
}

// chain is a tree of a depth with one leaf at each.
func chain(depth int) (tree Nodes) {
	for i := range depth {
		tree = append(tree, Node{Threshold: float64(i), Left: 2*i + 1, Right: 2*i + 2}, Node{Value: []float64{1, 0}})
	}
	return append(tree, Node{Value: []float64{0, 1}})
}

func TestParse(t *testing.T) {
	text, err := json.Marshal(goodMLP())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Parse(text); err != nil {
		t.Error(err)
	}
	weight := strings.Replace(string(text), `"weights":[[`, `"weights":[[NaN,`, 1)
	for name, c := range map[string]struct{ text, want string }{
		"NaN":           {weight, "NaN and Infinity"},
		"out of range":  {strings.Replace(weight, "NaN", "1e999", 1), "out of range"},
		"a word":        {strings.Replace(weight, "NaN", `"x"`, 1), "string is no float64"},
		"unknown field": {strings.Replace(string(text), `"kind"`, `"kidn"`, 1), `unknown field "kidn"`},
		"cut off":       {string(text[:len(text)/2]), "truncated document"},
		"two":           {string(text) + "{}", "a file contains one model"},
		"a pickle":      {"\x80\x04\x95\x10", "not JSON at byte 1"},
		"empty":         {"", "truncated document"},
		"too large":     {strings.Repeat(" ", MaxDocument+1), "at most"},
	} {
		if _, err := Parse([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
}

// FuzzParse checks that every document that parses and packs can be evaluated.
func FuzzParse(f *testing.F) {
	for _, d := range []*Document{goodMLP(), goodForest()} {
		text, err := json.Marshal(d)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := Parse(text)
		if err != nil {
			return
		}
		d.Infer(make([]float64, len(d.Features)))
		if p, err := d.Pack(d.Features); err == nil {
			p.Infer(make([]int64, MaxFeatures))
		}
	})
}

// Short text that would be large in memory is refused before it is read.
func TestBombsAreRefused(t *testing.T) {
	for _, field := range []string{`"trees":[[%s]]`, `"layers":[%s]`, `"rules":[%s]`, `"ranges":{"inputs":[%s]}`} {
		for _, part := range []string{"{},", "[],", `{"conv":{}},`} {
			text := "{" + fmt.Sprintf(field, strings.Repeat(part, 4<<20/len(part))+"{}") + "}"
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := Parse([]byte(text))
			runtime.ReadMemStats(&after)
			if err == nil || !strings.Contains(err.Error(), "objects and lists") {
				t.Errorf("%s of %s: %v", field, part, err)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 2*uint64(len(text)) {
				t.Errorf("%s of %s: %d bytes of text took %d bytes", field, part, len(text), n)
			}
		}
	}
}

// The largest forest that can be loaded is within the limits of Parse.
func TestTheLargestForestIsRead(t *testing.T) {
	d := forest(seed.Rand(t), Forest, 8, MaxClasses, 31, 9, true)
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Parse(text); err != nil {
		t.Errorf("%d trees of %d nodes: %v", len(d.Trees), len(d.Trees[0]), err)
	}
}
