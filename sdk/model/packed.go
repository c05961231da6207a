// SPDX-License-Identifier: Apache-2.0

package model

import "encoding/binary"

// Decision mirrors struct kerb_decision.
type Decision struct {
	Version uint32 // of the model that decided
	Class   uint32 // index in its classes
	Score   int32  // Q15
	Slot    uint32
}

// ScoreOne is a score of 1.
const ScoreOne = 1 << 15

// kind mirrors enum kerb_model_kind.
type kind uint8

const (
	exact kind = 1 + iota
	packed
	small
	trees
)

// activation mirrors enum kerb_model_activation.
type activation uint8

const (
	clamped activation = iota
	leaky
	sigmoid
	tanh
)

// input mirrors struct kerb_model_input.
type input struct {
	Add, Mul int64
	Feature  uint16
	Shift    uint8
	_        [5]uint8
}

// layer mirrors struct kerb_model_layer.
type layer struct {
	At                           uint32
	Inputs, Stride               uint16
	Rows, Neurons                uint16
	Activation                   activation
	Shift, PostShift             uint8
	_                            uint8
	Offset                       int64
	Limit                        uint64
	Slope                        int64
	PostMul, PostAdd, PostOffset int64
	PostLimit                    uint64
}

// header mirrors struct kerb_model up to its words.
type header struct {
	Version              uint32
	Kind                 kind
	Output               output
	Outputs, Layers      uint8
	Inputs, Trees, Depth uint16
	Vectors, ScoreShift  uint8
	WordsUsed            uint32
	_                    uint32
	Threshold, ScoreMul  int64
	InputOffset          int64
	InputLimit           uint64
	Base                 [MaxClasses]int64
	Input                [MaxWidth]input
	Layer                [MaxLayers]layer
}

// Limits and constants of the C headers.
const (
	wordsBehind = 192 // a value has KERB_MODEL_WORDS + wordsBehind words
	packedShift = 24
	lane        = 21
	laneMask    = 1<<lane - 1
	lanesZero   = 1<<20 | 1<<41 | 1<<62
	abreast     = 5

	wordsPerInput = 2 // of a row

	smallLayers, smallWidth = 4, 4

	nodeFeature = 22
	nodeLeft    = 0x3fff8
	never       = MaxFeatures * 8 // offset of the pseudo feature of leaves
)

// Packed is a model in the format of the data plane.
type Packed struct {
	header
	words []uint64
}

// Version returns the version of the model.
func (p *Packed) Version() uint32 { return p.header.Version }

// ValueSize is the size of a value of map models.
var ValueSize = binary.Size(header{}) + 8*(MaxWords+wordsBehind)

// Bytes returns the value of map models.
func (p *Packed) Bytes() []byte {
	out := make([]byte, 0, ValueSize)
	out, err := binary.Append(out, binary.NativeEndian, &p.header)
	if err != nil { // the type is constant
		panic(err)
	}
	for _, w := range p.words {
		out = binary.NativeEndian.AppendUint64(out, w)
	}
	return out[:ValueSize]
}

// Cost is the cost of one inference, and the space that the model takes in the data plane.
type Cost struct {
	Words           int // of MaxWords
	Multiplications int // of weights; three packed ones count as one
	Steps           int // from node to node
}

// Cost returns the cost of the model.
func (p *Packed) Cost() Cost {
	c := Cost{Words: len(p.words), Steps: (int(p.Trees) + abreast - 1) / abreast * abreast * int(p.Depth)}
	for _, l := range p.Layer[:p.Layers] {
		c.Multiplications += int(l.Inputs) * int(l.Rows) * wordsPerInput
	}
	return c
}

// perWord returns the number of neurons whose weights share a word.
func (p *Packed) perWord() int {
	if p.Kind == packed {
		return 3
	}
	return 1
}

// versionOf returns the version in a value of map models.
func versionOf(value []byte) uint32 { return binary.NativeEndian.Uint32(value) }
