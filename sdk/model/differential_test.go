// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/internal/seed"
)

// A seed gives the same documents every time, so that a failure can be repeated.
func TestDocumentsOfASeed(t *testing.T) {
	of := func() map[string]*Document { return documents(rand.New(rand.NewPCG(16250801253556215813, 0))) }
	if diff := cmp.Diff(of(), of()); diff != "" {
		t.Errorf("another run has other documents: %.300s", diff)
	}
}

// documents of every kind and activation, of random sizes.
func documents(r *rand.Rand) map[string]*Document {
	out := map[string]*Document{}
	for _, arithmetic := range []string{Q15, Int8} {
		for _, hidden := range []string{Identity, ReLU, LeakyReLU, Sigmoid, Tanh} {
			for _, last := range []string{Identity, Sigmoid, Softmax, Argmax} {
				widths := []int{1 + r.IntN(MaxWidth)}
				for range r.IntN(MaxLayers) {
					widths = append(widths, 1+r.IntN(MaxWidth))
				}
				outputs := 1
				if last == Softmax || last == Argmax {
					outputs = 2 + r.IntN(MaxClasses-1)
				}
				d := network(r, hidden, last, append(widths, outputs)...)
				if arithmetic == Int8 {
					calibrate(r, d)
				}
				out[fmt.Sprintf("mlp/%s/%s/%s", arithmetic, hidden, last)] = d
			}
		}
		for _, kind := range []string{Logistic, Linear} {
			d := network(r, Identity, map[string]string{Logistic: Sigmoid, Linear: Identity}[kind], 1+r.IntN(MaxWidth), 1)
			d.Kind = kind
			if arithmetic == Int8 {
				calibrate(r, d)
			}
			out[kind+"/"+arithmetic] = d
		}
		conv := convolution(r, 12, Conv{Channels: 2, Kernel: 3, Padding: 1})
		if arithmetic == Int8 {
			calibrate(r, conv)
		}
		out["conv1d/"+arithmetic] = conv
		for _, last := range []string{Sigmoid, Identity, Softmax, Argmax} {
			outputs := 1
			if last == Softmax || last == Argmax {
				outputs = 2 + r.IntN(3)
			}
			widths := []int{1 + r.IntN(smallWidth)}
			for range r.IntN(smallLayers) {
				widths = append(widths, 1+r.IntN(smallWidth))
			}
			small := network(r, ReLU, last, append(widths, outputs)...)
			if arithmetic == Int8 {
				calibrate(r, small)
			}
			out["small/"+arithmetic+"/"+last] = small
		}
		widest := network(r, ReLU, Softmax, 64, 64, 64, 64, 64, 64, 64, 64, 16)
		if arithmetic == Int8 {
			calibrate(r, widest)
		}
		out["widest/"+arithmetic] = widest
	}
	for _, kind := range []string{Tree, Forest, Boosting} {
		for _, classes := range []int{2, 3, 16} {
			n := 1
			if kind != Tree {
				n = classes * (1 + r.IntN(6))
			}
			depth := 1 + r.IntN(6)
			for n<<depth*(classes+2) > MaxWords { // each leaf may be a node and a word per class
				depth--
			}
			out[fmt.Sprintf("%s/%d", kind, classes)] = forest(r, kind, 1+r.IntN(MaxFeatures), classes, n, depth, false)
		}
	}
	out["forest/10x10"] = forest(r, Forest, MaxFeatures, 2, 10, 10, true)
	out["boosting/320"] = forest(r, Boosting, MaxFeatures, 2, MaxTrees, 3, true)
	return out
}

// The kernel computes what Infer computes, to the last bit, of features in the extractor's order.
func TestKernelIsEqualToGo(t *testing.T) {
	r, k := seed.Rand(t), newKernel(t)
	all := documents(r)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		d := all[name]
		t.Run(name, func(t *testing.T) {
			extractor := names(MaxFeatures)
			r.Shuffle(len(extractor), func(i, j int) { extractor[i], extractor[j] = extractor[j], extractor[i] })
			p := pack(t, d, extractor)
			k.load(p)
			for range 300 {
				features := sample(r, MaxFeatures)
				want, got := p.Infer(features), k.infer(features)
				if want.Slot = got.Slot; got != want {
					t.Fatalf("kernel %+v, Go %+v\nfeatures %v", got, want, features)
				}
			}
		})
	}
}

func pack(t testing.TB, d *Document, extractor []string) *Packed {
	t.Helper()
	if err := d.Check(); err != nil {
		t.Fatal(err)
	}
	p, err := d.Pack(extractor)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
