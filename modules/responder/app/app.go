// SPDX-License-Identifier: Apache-2.0

// Package app is what an application of the responder is in user space. Its directory apps/<name> holds a Go package of
// that name with func App() app.App alongside <name>.h; `go generate` lists both.
package app

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/kerb-edge/kerb/sdk"
)

// App turns the config of its listeners into what the data plane needs. What else it can do is declared by the optional
// interfaces below; all of them get the listeners of this application in the order of the config.
type App interface {
	// Compile checks one listener. It has no effect. Errors are *sdk.ConfigError, with fields such as mode.
	Compile(l Listener) (Service, error)
}

// Listener is an entry of the config.
type Listener struct {
	Name     string
	Port     uint16
	MaxReply uint16          // bytes of payload: longer replies are not sent
	Config   json.RawMessage // an object with the properties that are not every listener's
}

// Decode reads an object over the defaults in to. Errors are *sdk.ConfigError; a property that is not known is one.
func Decode[T any](text []byte, to *T) error {
	if len(text) == 0 {
		return sdk.ConfigErrorf("config", "is empty")
	}
	_, err := sdk.DecodeConfig(text, to)
	return err
}

// Words is how many words of config the data plane has for a listener's application.
const Words = 8

// Params are what the data plane knows of a listener besides its address.
type Params struct {
	MinRequest, MaxRequest uint16        // bytes of payload; others pass
	Config                 [Words]uint32 // struct rsp_listener's config
	LongReplies            bool          // replies may be longer than their requests
}

// Service is a listener, compiled.
type Service interface {
	Params() Params
}

// PlacedListener is a listener with its map index: its state is element Slot of the application's maps.
type PlacedListener struct {
	Name    string
	Port    uint16
	Slot    uint32
	Fresh   bool // in Fill: the slot was another listener's or unused, its state has to be cleared; else it has to stay
	Service Service
}

// SettingsProvider is an App with settings of the data plane.
type SettingsProvider interface {
	Settings(all []Service) sdk.Settings
}

// Filler is an App with maps to be filled, as sdk.Compiled.Fill.
type Filler interface {
	Fill(maps sdk.Maps, all []PlacedListener) error
}

// Live is what an App works with while packets meet its listeners.
type Live struct {
	Maps sdk.Maps
	All  []PlacedListener
	// Watch sends the slots of listeners whose state has changed (rsp_changed), each once for as long as it is not
	// received, until ctx ends. When something is received, what was counted up to then can be read.
	Watch func(ctx context.Context) <-chan uint32
}

// Runner is an App with background work. Run returns when ctx ends.
type Runner interface {
	Run(ctx context.Context, live Live)
}

// Stateful is an App whose listeners have a state to be read, as JSON: by GET state, and by GET events when it changes.
type Stateful interface {
	State(maps sdk.Maps, p PlacedListener) (any, error)
	// SetState takes over what is given of a state. Errors in it are *sdk.ConfigError.
	SetState(maps sdk.Maps, p PlacedListener, state json.RawMessage) error
}

// Value is something that can be set while the module runs: kerb module set NAME LISTENER/KEY=VALUE.
type Value struct {
	Key    string         `json:"key"`
	Value  string         `json:"value"`
	Detail map[string]any `json:"detail,omitempty"`
}

// ErrNoValue is returned by a ValueStore for an unknown key.
var ErrNoValue error = sdk.NotFound("no such value")

// ValueStore is an App with values that can be set while the module runs.
type ValueStore interface {
	Values(maps sdk.Maps, p PlacedListener) ([]Value, error)
	// SetValue sets one. body is what was sent: {"value": "..."} and whatever else the application knows.
	SetValue(maps sdk.Maps, p PlacedListener, key string, body json.RawMessage) error
}

// Handler is an App with routes of its own, served under apps/<name>/ of the module's.
type Handler interface {
	Handler(live Live) http.Handler
}

// ReasonNamer is an App with names of its reasons to pass a packet, numbered from 0; at most 8.
type ReasonNamer interface {
	Reasons() []string
}
