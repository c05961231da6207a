// SPDX-License-Identifier: Apache-2.0

package sdk

import "encoding/json"

// ModelUser is a Running of a package with capability models. After each start of a map set it receives all models,
// in several calls if there are many, and then differences. Calls come one at a time. After an error the agent sends
// all of them again, a moment later; a model that cannot be used is not an error but in the answer's Refused: what ran
// before runs on.
type ModelUser interface {
	Models(update ModelUpdate) (ModelAnswer, error)
}

// ModelUpdate is a change of the models.
type ModelUpdate struct {
	// MapSet is the one that this is for.
	MapSet string `json:"generation"`
	// Reset: the first part of all models. What is known already stays in use until Complete.
	Reset bool `json:"reset,omitempty"`
	// Complete: the last part. What was not put since Reset no longer exists.
	Complete bool `json:"complete,omitempty"`

	Put    []Model  `json:"put,omitempty"`    // new or changed
	Remove []string `json:"remove,omitempty"` // by name
}

// Model is one as control planes see it.
type Model struct {
	Name string `json:"name"`
	// Generation counts its changes, from 1.
	Generation int64           `json:"generation"`
	Document   json.RawMessage `json:"document"` // of the format kerb-model/1, valid by itself
}

// ModelAnswer is the result of one update, by name of the model. Models that are in neither are not used.
type ModelAnswer struct {
	Using   []string          `json:"using,omitempty"`   // run on packets now
	Refused map[string]string `json:"refused,omitempty"` // should, but cannot: why
}
