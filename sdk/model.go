// SPDX-License-Identifier: Apache-2.0

package sdk

import "encoding/json"

// ModelUser is a Running of a package with capability models. Whenever a map set starts, it receives all models, in
// several calls if there are many, and then differences. Calls are sequential. After an error the agent sends all
// models again shortly afterwards. A model that cannot be used is not an error: it is listed in the answer's Refused,
// and the previous version keeps running.
type ModelUser interface {
	Models(update ModelUpdate) (ModelAnswer, error)
}

// ModelUpdate is a change of the models.
type ModelUpdate struct {
	// MapSet is the map set that the update is for.
	MapSet string `json:"generation"`
	// Reset marks the first part of all models. Known models stay in use until Complete.
	Reset bool `json:"reset,omitempty"`
	// Complete marks the last part. Models that were not put since Reset no longer exist.
	Complete bool `json:"complete,omitempty"`

	Put    []Model  `json:"put,omitempty"`    // new or changed
	Remove []string `json:"remove,omitempty"` // by name
}

// Model is a model as control planes receive it.
type Model struct {
	Name string `json:"name"`
	// Generation counts the changes of the model, from 1.
	Generation int64           `json:"generation"`
	Document   json.RawMessage `json:"document"` // in the format kerb-model/1, already validated
}

// ModelAnswer is the result of one update by model name. Models that are in neither list are not used.
type ModelAnswer struct {
	Using   []string          `json:"using,omitempty"`   // run on packets now
	Refused map[string]string `json:"refused,omitempty"` // should, but cannot: why
}
