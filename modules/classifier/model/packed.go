// SPDX-License-Identifier: Apache-2.0

package model

// Decision mirrors struct cls_decision.
type Decision struct {
	Version uint32
	Class   uint32
	Score   int32 // Q15
	Slot    uint32
}

// ScoreOne is a score of 1.
const ScoreOne = 1 << 15

// input mirrors struct cls_input.
type input struct {
	Add     int64
	Mul     int32
	Shift   uint8
	Feature uint8
	_       uint16
}

// layer mirrors struct cls_layer.
type layer struct {
	Inputs, Rows, Lanes uint16
	Activation, Shift   uint8
	Slope               int32
	PostShift           uint32
	PostMul, PostAdd    int64
	Offset              int64
	Limit               uint64
}

// header mirrors struct cls_model up to its words.
type header struct {
	Version                       uint32
	Kind, Output, Outputs, Layers uint8
	Inputs, Trees, Depth          uint16
	Vectors, ScoreShift           uint8
	WordsUsed                     uint32
	_                             uint32
	Threshold                     int64
	ScoreMul                      int64
	InputOffset                   int64
	InputLimit                    uint64
	Base                          [MaxClasses]int64
	Input                         [MaxWidth]input
	Layer                         [MaxLayers]layer
}
