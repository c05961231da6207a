// SPDX-License-Identifier: Apache-2.0

// Package model implements the document format of the resource Model: parsing and validation, packing to integers for
// the data plane, and inference in Go, in floating point and in the data plane's integer arithmetic. The classifier
// runs models in the kernel; bpf/include/kerb/model.h has the same limits and layout.
//
//	doc, err := model.Parse(text)        // strict; errors name the field and say what to do
//	err = doc.Calibrate(rows)            // finds Ranges, for int8
//	class, score := doc.Infer(row)       // floating point; features in the order of doc.Features
//	packed, err := doc.Pack(names)       // names: all features of the extractor, in its order
//	decision := packed.Infer(features)   // the data plane's arithmetic, bit by bit; in the order of names
//	slots := model.NewSlots(models, active)
//	err = slots.Load(model.Live, packed) // writes a free slot, then switches atomically
package model

// Format is the value of Document.Format.
const Format = "kerb-model/1"

// Limits of a model; those of the data plane are in model.h.
const (
	MaxFeatures = 64
	MaxWidth    = 64
	MaxLayers   = 8
	MaxClasses  = 16
	MaxTrees    = 320
	MaxDepth    = 20
	MaxWords    = 32768 // weights or nodes
)

// Kinds of models.
const (
	MLP      = "mlp"
	Conv1D   = "conv1d" // an MLP with convolution layers
	Logistic = "logistic"
	Linear   = "linear"
	Tree     = "tree"
	Forest   = "forest"
	Boosting = "boosting"
)

// Arithmetics of MLP, Conv1D, Logistic and Linear; trees are exact.
const (
	Q15  = "q15"
	Int8 = "int8"
)

// Activations of layers. Softmax and argmax are for the last layer only.
const (
	Identity  = "identity"
	ReLU      = "relu"
	LeakyReLU = "leakyRelu"
	Sigmoid   = "sigmoid"
	Tanh      = "tanh"
	Softmax   = "softmax"
	Argmax    = "argmax"
)

// Document is a model of format kerb-model/1.
type Document struct {
	Format      string   `json:"format"`
	Name        string   `json:"name"`
	Version     uint32   `json:"version"` // 1 or more; the data plane reports it with every decision
	Description string   `json:"description,omitempty"`
	Extractor   string   `json:"extractor"`        // rpl or flow
	Window      string   `json:"window,omitempty"` // window length used in training, such as 10s
	Features    []string `json:"features"`         // inputs by the extractor's names
	Kind        string   `json:"kind"`
	Arithmetic  string   `json:"arithmetic,omitempty"` // q15 (if absent) or int8; not for trees
	Scale       *Scale   `json:"scale,omitempty"`
	Layers      []Layer  `json:"layers,omitempty"`
	Trees       []Nodes  `json:"trees,omitempty"`

	// Base has the initial outputs of boosting, by class, or one. Leaves include the learning rate. With several classes,
	// tree t adds to class t mod len(classes).
	Base []float64 `json:"base,omitempty"`

	Classes []string `json:"classes"` // the first is normal traffic
	// Threshold is the probability above which a model with one output decides for the second class, 0.5 if absent. If the
	// output is not a probability, it is compared with the output itself, and is 0 if absent.
	Threshold *float64 `json:"threshold,omitempty"`
	Ranges    *Ranges  `json:"ranges,omitempty"` // needed by int8; Calibrate finds them
	TrainedOn string   `json:"trainedOn,omitempty"`
	Accuracy  *float64 `json:"accuracy,omitempty"` // on the test data
	Rules     []Rule   `json:"rules,omitempty"`    // one-line rules on the same data
}

// Scale is applied to features before layers and trees see them: (x-mean)/std or (x-min)/(max-min).
type Scale struct {
	Mean []float64 `json:"mean,omitempty"` // by feature and in its unit, like the other fields
	Std  []float64 `json:"std,omitempty"`
	Min  []float64 `json:"min,omitempty"`
	Max  []float64 `json:"max,omitempty"`
}

// Layer is dense, or a one-dimensional convolution over its inputs.
type Layer struct {
	// by neuron and input; for a convolution by filter, channel and position
	Weights    [][]float64 `json:"weights"`
	Bias       []float64   `json:"bias"` // by neuron or filter
	Activation string      `json:"activation"`
	Slope      float64     `json:"slope,omitempty"` // leakyRelu: factor for negative values, 0.01 if absent
	Conv       *Conv       `json:"conv,omitempty"`
}

// Conv describes a convolution. The layer's inputs are a signal of channels times length values, ordered by channel; so
// are its outputs.
type Conv struct {
	Channels int    `json:"channels"`          // of the signal
	Kernel   int    `json:"kernel"`            // positions that a filter covers
	Stride   int    `json:"stride,omitempty"`  // 1 if absent
	Padding  int    `json:"padding,omitempty"` // zeros on each side
	Pool     string `json:"pool,omitempty"`    // average: each filter's outputs become one, before the activation
}

// Nodes of one tree; the first is the root.
type Nodes []Node

// Node is a split, with left and right, or a leaf, with value. Left is for values up to the threshold.
type Node struct {
	Feature   int       `json:"feature,omitempty"` // index into Document.Features
	Threshold float64   `json:"threshold,omitempty"`
	Left      int       `json:"left,omitempty"`  // index of the child in the tree; 0 is none
	Right     int       `json:"right,omitempty"` // as Left
	Value     []float64 `json:"value,omitempty"` // probabilities by class; of boosting one number
}

// Ranges are the value ranges of int8. Values outside are clamped.
type Ranges struct {
	Inputs [][2]float64 `json:"inputs"` // by feature, before scaling
	Layers [][2]float64 `json:"layers"` // by layer, after its activation; the last is not used
}

// Rule is a one-line rule with which the model was compared.
type Rule struct {
	Rule     string  `json:"rule"` // such as dis > 0
	Accuracy float64 `json:"accuracy"`
}
