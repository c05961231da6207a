// SPDX-License-Identifier: Apache-2.0

// Package app is what an application of the responder is in user space. Its directory apps/<name> holds a Go package with
// func App() app.App beside <name>.h; `go generate` lists both.
package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

// App turns the config of a listener into what the data plane needs.
type App interface {
	// Compile checks a listener. It has no effect. Errors are *sdk.ConfigError, with fields such as mode.
	Compile(l Listener) (Service, error)
}

// Listener is an entry of the config.
type Listener struct {
	Name   string
	Port   uint16
	Config json.RawMessage // the properties that are not every listener's
}

// Decode reads the config over defaults that are in to; unknown properties are refused.
func (l Listener) Decode(to any) error {
	dec := json.NewDecoder(bytes.NewReader(l.Config))
	dec.DisallowUnknownFields()
	if err := dec.Decode(to); err != nil {
		return &sdk.ConfigError{Field: "config", Reason: err.Error()}
	}
	return nil
}

// Words is how many words of config the data plane has for an application.
const Words = 8

// Shape is what the data plane knows of a listener beside its address.
type Shape struct {
	MinRequest, MaxRequest uint16        // bytes of payload; others pass
	Config                 [Words]uint32 // struct rsp_listener's config
	Reasons                []string      // names of the application's reasons to pass, at most 8
}

// Service is a listener, compiled. Its state is the elements number slot of the application's maps.
type Service interface {
	Shape() Shape
	// Fill prepares the maps of a new generation, as sdk.Compiled.Fill. fresh: the slot is new, its state has to be cleared;
	// else it is that of the running generation and has to stay.
	Fill(maps sdk.Maps, slot uint32, fresh bool) error
}

// Settler is a Service with settings. Of the same constant of two listeners the larger number, or true, counts, and of the
// same map the sum of the sizes.
type Settler interface {
	Settings() sdk.Settings
}

// Stateful is a Service with a state to be read, in JSON, and told of by the events of the module.
type Stateful interface {
	State(maps sdk.Maps, slot uint32) (any, error)
	// SetState takes over what is given of a state. Errors in it are *sdk.ConfigError.
	SetState(maps sdk.Maps, slot uint32, state json.RawMessage) error
}

// Updater is a Service with something to compute from its state: called first, at each interval, and where that is 0 when the
// state has changed.
type Updater interface {
	Update(maps sdk.Maps, slot uint32) error
	Interval() time.Duration
}

// Value is something that can be set while the module runs: kerb module set NAME LISTENER/KEY=VALUE.
type Value struct {
	Key    string         `json:"key"`
	Value  string         `json:"value"`
	Detail map[string]any `json:"detail,omitempty"`
}

// ErrNoValue is what a Valuer returns for a key that it does not have.
var ErrNoValue = errors.New("no such value")

// Valuer is a Service with values.
type Valuer interface {
	Values(maps sdk.Maps, slot uint32) ([]Value, error)
	// SetValue sets one. body is what was sent: {"value": "..."} and whatever else the application knows.
	SetValue(maps sdk.Maps, slot uint32, key string, body json.RawMessage) error
}

// Measurer is a Service with metrics of its own; a label listener is added.
type Measurer interface {
	Measure(maps sdk.Maps, slot uint32) ([]sdk.Sample, error)
}
