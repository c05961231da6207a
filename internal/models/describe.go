// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"
	"strconv"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/modules/classifier/model"
)

// Description is all that a document says but its numbers, with what they cost.
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
}

// Usage is how much of a limit a model takes.
type Usage struct {
	What  string `json:"what"`
	Used  int    `json:"used"`
	Limit int    `json:"limit,omitempty"` // 0: none
}

// Describe reads a document.
func Describe(spec v1.ModelSpec) (Description, error) {
	summary, err := Summarize(spec)
	if err != nil {
		return Description{}, err
	}
	doc, err := model.Parse([]byte(spec.Document))
	if err != nil {
		return Description{}, err
	}
	return Description{ModelSummary: summary, Text: doc.Description, Arithmetic: doc.Arithmetic, Window: doc.Window, Threshold: doc.Threshold,
		TrainedOn: doc.TrainedOn, Accuracy: doc.Accuracy, Rules: doc.Rules, Usage: usage(doc)}, nil
}

func usage(doc *model.Document) []Usage {
	out := []Usage{{"features", len(doc.Features), model.MaxFeatures}, {"classes", len(doc.Classes), model.MaxClasses}}
	if len(doc.Trees) > 0 {
		nodes, depth, steps := forestSize(doc)
		return append(out, Usage{"trees", len(doc.Trees), model.MaxTrees}, Usage{"depth", depth, model.MaxDepth},
			Usage{"nodes", nodes, model.MaxWords}, Usage{"comparisons per evaluation, at most", steps, 0})
	}
	weights, width := 0, len(doc.Features)
	for _, l := range doc.Layers {
		width = max(width, len(l.Weights))
		for _, row := range l.Weights {
			weights += len(row) + 1
		}
	}
	return append(out, Usage{"layers", len(doc.Layers), model.MaxLayers}, Usage{"neurons of a layer", width, model.MaxWidth},
		Usage{"weights", weights, model.MaxWords})
}

// forestSize counts nodes, the levels of the deepest tree, and the comparisons of an evaluation.
func forestSize(doc *model.Document) (nodes, deepest, steps int) {
	for _, tree := range doc.Trees {
		nodes += len(tree)
		d := depth(tree, 0, 0)
		deepest, steps = max(deepest, d), steps+d
	}
	return nodes, deepest, steps
}

// depth is that of the part of a checked tree below a node; level is a guard against what is none.
func depth(tree model.Nodes, at, level int) int {
	n := tree[at]
	if level > len(tree) || n.Left == 0 || n.Right == 0 {
		return 0
	}
	return 1 + max(depth(tree, n.Left, level+1), depth(tree, n.Right, level+1))
}

// shape tells the size of a model in a few characters.
func shape(doc *model.Document) string {
	if len(doc.Trees) > 0 {
		_, deepest, _ := forestSize(doc)
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
