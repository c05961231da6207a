// SPDX-License-Identifier: Apache-2.0

// Package coap answers CoAP GET requests (RFC 7252) in the kernel, for resources whose values are set over the API, or
// by the server in user space through a feed. All other requests are the server's.
package coap

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/kerb-edge/kerb/modules/responder/app"
	"github.com/kerb-edge/kerb/sdk"
)

// App returns the application.
func App() app.App { return coap{} }

type coap struct{}

var (
	_ app.SettingsProvider = coap{}
	_ app.Filler           = coap{}
	_ app.Runner           = coap{}
	_ app.ValueStore       = coap{}
	_ app.Handler          = coap{}
	_ app.ReasonNamer      = coap{}
)

// writing is held while values change: there is one writer at a time.
var writing sync.Mutex

// Compile implements app.App.
func (coap) Compile(l app.Listener) (app.Service, error) { return compile(l) }

// Shape implements app.Service.
func (l *Listener) Params() app.Params {
	shape := app.Params{MinRequest: 4, MaxRequest: MaxRequest, LongReplies: true}
	if l.duplicates {
		shape.Config[0] = 1 // COAP_CONFIG_DUPLICATES
	}
	return shape
}

// Reasons implements app.ReasonNamer, in the order of enum coap_why.
func (coap) Reasons() []string {
	return []string{"no_get", "option", "unknown_resource", "no_value", "not_acceptable", "too_long", "changed"}
}

// Settings implements app.SettingsProvider.
func (coap) Settings(all []app.Service) sdk.Settings {
	names, resources, exchanges := 0, 0, 1
	for _, s := range all {
		l := s.(*Listener)
		resources += len(l.resources)
		names += len(l.resources) + len(l.hosts)
		if l.duplicates {
			exchanges = maxExchanges
		}
	}
	shape := sha256.New()
	for _, s := range all {
		l := s.(*Listener)
		fmt.Fprintf(shape, "%q %s\n", l.name, l.config)
	}
	return sdk.Settings{
		Shape:     fmt.Sprintf("coap %x", shape.Sum(nil)),
		Constants: map[string]any{"coap_duplicates": exchanges > 1},
		MaxEntries: map[string]uint32{mapNames: uint32(max(1, names)), mapVersions: uint32(max(1, resources)),
			mapValues: uint32(max(2, 2*resources)), mapExchanges: uint32(exchanges)},
	}
}

// Fill implements app.Filler. The maps are of one shape: a change of values has filled ones.
func (coap) Fill(maps sdk.Maps, all []app.PlacedListener) error {
	fresh, err := fillSecret(maps)
	if err != nil || !fresh {
		return err
	}
	t, err := openTable(maps)
	if err != nil {
		return err
	}
	defer t.close()
	writing.Lock()
	defer writing.Unlock()
	first := uint32(0)
	for _, p := range all {
		l := p.Service.(*Listener)
		if p.Fresh {
			err = errors.Join(err, t.forget(p.Slot))
		}
		err = errors.Join(err, t.fill(l, p.Slot, first))
		first += uint32(len(l.resources))
	}
	return err
}

// secret mirrors struct coap_secret.
type secret [16]byte

// fillSecret writes a key of Echo values, unless there is one: values made with another one are challenged again.
func fillSecret(maps sdk.Maps) (fresh bool, err error) {
	var key secret
	if err := maps.Lookup(mapSecrets, uint32(0), &key); err != nil || key != (secret{}) {
		return false, err
	}
	if _, err := rand.Read(key[:]); err != nil {
		return false, fmt.Errorf("random key: %w", err)
	}
	return true, maps.Put(mapSecrets, uint32(0), key)
}

// fill enters a listener, whose resources are numbered from first on.
func (t *table) fill(l *Listener, slot, first uint32) (err error) {
	for i, r := range l.resources {
		n := newName(slot, 0, r.path)
		err = errors.Join(err, t.names.Put(n, first+uint32(i)))
		if err == nil {
			err = t.refresh(n, r)
		}
	}
	for _, host := range l.hosts {
		err = errors.Join(err, t.names.Put(newName(slot, 1, []byte(host)), uint32(0)))
	}
	if err != nil {
		return fmt.Errorf("fill map %s: %w", mapNames, err)
	}
	return nil
}

// settled is when the requests that a map set has begun to answer before the next one took over have ended.
const settled = time.Second

// Run implements app.Runner: what was set while this map set was filled is set in it too, and what requests to the
// one before it still set.
func (coap) Run(ctx context.Context, live app.Live) {
	for _, wait := range []time.Duration{0, settled} {
		if !sdk.Pause(ctx, wait) {
			return
		}
		if err := refresh(live); err != nil {
			slog.Error("responder: values that were set last", "error", err)
		}
	}
}

func refresh(live app.Live) error {
	t, err := openTable(live.Maps)
	if err != nil {
		return err
	}
	defer t.close()
	writing.Lock()
	defer writing.Unlock()
	for _, p := range live.All {
		for _, r := range p.Service.(*Listener).resources {
			err = errors.Join(err, t.refresh(newName(p.Slot, 0, r.path), r))
		}
	}
	return err
}

// Values implements app.ValueStore.
func (coap) Values(maps sdk.Maps, p app.PlacedListener) ([]app.Value, error) {
	t, err := openTable(maps)
	if err != nil {
		return nil, err
	}
	defer t.close()
	var out []app.Value
	for _, r := range p.Service.(*Listener).resources {
		n := newName(p.Slot, 0, r.path)
		resource, err := t.number(n)
		if err != nil {
			return nil, err
		}
		v, err := t.get(resource)
		if err != nil {
			return nil, err
		}
		out = append(out, v.report(r.name))
	}
	return out, nil
}

// report returns a value as a reply would have it now.
func (v *Value) report(key string) app.Value {
	now := time.Duration(sdk.Monotonic())
	if v == nil || v.Expires != 0 && v.Expires <= now {
		return app.Value{Key: key, Detail: map[string]any{"answered": false}}
	}
	detail := map[string]any{"answered": true, "etag": fmt.Sprintf("%x", v.ETag), "maxAge": v.MaxAge,
		"expires": v.Expires != 0}
	if v.Expires != 0 {
		detail["maxAge"] = uint32((v.Expires - now) / time.Second)
	}
	text := string(v.Data)
	if !utf8.ValidString(text) {
		text, detail["base64"] = base64.StdEncoding.EncodeToString(v.Data), true
	}
	return app.Value{Key: key, Value: text, Detail: detail}
}

// Update is a value to be set.
type Update struct {
	Value  *string `json:"value"` // null takes back what was set
	Base64 bool    `json:"base64"`
	// MaxAge in seconds is how long the value is fresh: then requests pass to the server. Without it the value stays, and
	// Max-Age is that of the config.
	MaxAge *uint32 `json:"maxAge"`
}

// setting is nil for a value that is taken back.
func (u *Update) setting() (*setting, error) {
	if u.Value == nil {
		return nil, nil
	}
	data := []byte(*u.Value)
	if u.Base64 {
		var err error
		if data, err = base64.StdEncoding.DecodeString(*u.Value); err != nil {
			return nil, &sdk.ConfigError{Field: "value", Reason: err.Error()}
		}
	}
	if len(data) > MaxValue {
		return nil, &sdk.ConfigError{Field: "value", Reason: errValueLength(len(data)).Error()}
	}
	lease := time.Duration(0)
	if u.MaxAge != nil {
		if lease = time.Duration(*u.MaxAge) * time.Second; lease == 0 {
			return nil, &sdk.ConfigError{Field: "maxAge", Reason: "a value that is never fresh is not set; null takes it back"}
		}
	}
	return newSetting(data, lease), nil
}

// SetValue implements app.ValueStore.
func (coap) SetValue(maps sdk.Maps, p app.PlacedListener, key string, body json.RawMessage) error {
	var u Update
	if err := app.Decode(body, &u); err != nil {
		return err
	}
	t, err := openTable(maps)
	if err != nil {
		return err
	}
	defer t.close()
	return t.update(p, key, &u)
}

// update sets the value of a resource of the listener. A path that is no CoAP path is a ConfigError; an unknown one
// returns app.ErrNoValue.
func (t *table) update(p app.PlacedListener, path string, u *Update) error {
	segments, err := ParsePath(strings.TrimPrefix(path, "/"))
	if err != nil {
		return &sdk.ConfigError{Field: "path", Reason: fmt.Sprintf("%q %v", path, err)}
	}
	r := p.Service.(*Listener).byPath[string(encodePath(segments))]
	if r == nil {
		return fmt.Errorf("listener %s has no resource %q: %w", p.Name, path, app.ErrNoValue)
	}
	s, err := u.setting()
	if err != nil {
		return err
	}
	writing.Lock()
	defer writing.Unlock()
	return t.set(newName(p.Slot, 0, r.path), r, s)
}
