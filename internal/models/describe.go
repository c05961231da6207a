// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"
	"strconv"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/sdk/model"
)

// Description is a document without its weights, with what they cost.
type Description struct {
	v1.ModelSummary
	Text       string       `json:"description,omitempty"`
	Arithmetic string       `json:"arithmetic,omitempty"`
	Window     string       `json:"window,omitempty"`
	Threshold  *float64     `json:"threshold,omitempty"`
	TrainedOn  string       `json:"trainedOn,omitempty"`
	Accuracy   *float64     `json:"accuracy,omitempty"`
	Rules      []model.Rule `json:"rules,omitempty"`
	Usage      []Usage      `json:"usage"`
	TooLarge   string       `json:"tooLarge,omitempty"` // why only a control plane can run it
}

// Usage is how much of a limit a model uses.
type Usage struct {
	What  string `json:"what"`
	Used  int    `json:"used"`
	Limit int    `json:"limit,omitempty"` // 0: none
}

// Describe returns the description of a document.
func Describe(spec v1.ModelSpec) (Description, error) {
	summary, err := Summarize(spec)
	if err != nil {
		return Description{}, err
	}
	doc, err := parse(spec)
	if err != nil {
		return Description{}, err
	}
	d := Description{ModelSummary: summary, Text: doc.Description, Arithmetic: doc.Arithmetic, Window: doc.Window,
		Threshold: doc.Threshold,
		TrainedOn: doc.TrainedOn, Accuracy: doc.Accuracy, Rules: doc.Rules}
	d.Usage, d.TooLarge = usage(doc)
	return d, nil
}

// usage returns how much of the data plane's limits a document uses, or why it is too large.
func usage(doc *model.Document) (out []Usage, tooLarge string) {
	out = []Usage{{"features", len(doc.Features), model.MaxFeatures}, {"classes", len(doc.Classes), model.MaxClasses}}
	packed, err := doc.Pack(doc.Features)
	if err != nil {
		return out, err.Error()
	}
	cost := packed.Cost()
	if len(doc.Trees) > 0 {
		out = append(out, Usage{"trees", len(doc.Trees), model.MaxTrees}, Usage{"depth", int(packed.Depth), model.MaxDepth})
	} else {
		out = append(out, Usage{"layers", len(doc.Layers), model.MaxLayers})
	}
	out = append(out, Usage{"words", cost.Words, model.MaxWords})
	if cost.Steps > 0 {
		out = append(out, Usage{"steps of an evaluation", cost.Steps, 0})
	}
	if cost.Multiplications > 0 {
		out = append(out, Usage{"multiplications of an evaluation", cost.Multiplications, 0})
	}
	return out, ""
}

// depth of a checked tree below a node.
func depth(tree model.Nodes, at int) int {
	n := tree[at]
	if len(n.Value) > 0 {
		return 0
	}
	return 1 + max(depth(tree, n.Left), depth(tree, n.Right))
}

// shape returns the size of a model in a few characters, such as "3 x depth 5" or "8-16-2".
func shape(doc *model.Document) string {
	if len(doc.Trees) > 0 {
		deepest := 0
		for _, tree := range doc.Trees {
			deepest = max(deepest, depth(tree, 0))
		}
		if len(doc.Trees) == 1 {
			return fmt.Sprintf("depth %d", deepest)
		}
		return fmt.Sprintf("%d x depth %d", len(doc.Trees), deepest)
	}
	parts := []string{strconv.Itoa(len(doc.Features))}
	for _, l := range doc.Layers {
		part := strconv.Itoa(len(l.Weights))
		if l.Conv != nil {
			part = fmt.Sprintf("conv%dx%d", len(l.Weights), l.Conv.Kernel)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "-")
}
