// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/kerb-edge/kerb/modules/responder/app"
	"github.com/kerb-edge/kerb/sdk"
)

// Handler serves:
//
//	GET  listeners                  listeners with counters of packets
//	GET  state                      the states of listeners
//	GET  state/LISTENER             one
//	PUT  state/LISTENER             takes over what is given of it
//	GET  events                     states when they change, a JSON object a line; ?listener= for one only
//	GET  values                     what can be set
//	PUT  values/LISTENER/KEY        sets it: {"value": "..."}
//	     apps/NAME/...              an application's own
func (f *Running) Handler() http.Handler {
	mux := http.NewServeMux()
	serve := func(pattern string, do func(*http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { sdk.Answer(w)(do(r)) })
	}
	serve("GET /listeners", func(*http.Request) (any, error) { return f.report() })
	serve("GET /state", func(*http.Request) (any, error) { return f.states() })
	serve("GET /state/{listener}", f.getState)
	serve("PUT /state/{listener}", f.putState)
	serve("GET /values", func(*http.Request) (any, error) { return f.values() })
	serve("PUT /values/{listener}/{key...}", f.putValue)
	mux.HandleFunc("GET /events", f.events)
	for i, a := range apps {
		if own, ok := a.App.(app.Handler); ok {
			if all := f.ofApp(uint8(i), f.placed); len(all) > 0 {
				prefix := "/apps/" + a.name
				mux.Handle(prefix+"/", http.StripPrefix(prefix, own.Handler(f.appLive(all))))
			}
		}
	}
	return mux
}

const maxBody = 1 << 16

// State is that of one listener.
type State struct {
	Listener string `json:"listener"`
	App      string `json:"app"`
	State    any    `json:"state"`
}

// one finds a listener by its name.
func (f *Running) one(name string) (*listener, app.PlacedListener, error) {
	for i, l := range f.listeners {
		if l.Name == name {
			return l, f.placed[i], nil
		}
	}
	return nil, app.PlacedListener{}, sdk.NotFound(fmt.Sprintf("no listener %q", name))
}

// stateful returns the application of a listener, if it has state.
func (l *listener) stateful() (app.Stateful, error) {
	s, ok := apps[l.number].App.(app.Stateful)
	if !ok {
		return nil, sdk.NotFound(fmt.Sprintf("listener %s has no state: application %s is stateless", l.Name, l.App))
	}
	return s, nil
}

func (f *Running) state(l *listener, p app.PlacedListener) (*State, error) {
	s, err := l.stateful()
	if err != nil {
		return nil, err
	}
	state, err := s.State(f.live.Maps, p)
	return &State{l.Name, l.App, state}, err
}

// states returns the state of each listener whose application has one; the others are left out.
func (f *Running) states() ([]*State, error) {
	out := []*State{}
	for i, p := range f.placed {
		l := f.listeners[i]
		if _, ok := apps[l.number].App.(app.Stateful); !ok {
			continue
		}
		s, err := f.state(l, p)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

func (f *Running) getState(r *http.Request) (any, error) {
	l, p, err := f.one(r.PathValue("listener"))
	if err != nil {
		return nil, err
	}
	return f.state(l, p)
}

// putState sets a listener's state and returns it as read back from the data plane. Watchers are notified.
func (f *Running) putState(r *http.Request) (any, error) {
	l, p, err := f.one(r.PathValue("listener"))
	if err != nil {
		return nil, err
	}
	s, err := l.stateful()
	if err != nil {
		return nil, err
	}
	body, err := readBody(r)
	if err == nil {
		err = s.SetState(f.live.Maps, p, body)
	}
	if err != nil {
		return nil, err
	}
	f.watch.changed(p.Slot)
	return f.state(l, p)
}

func readBody(r *http.Request) (json.RawMessage, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if err == nil && !json.Valid(body) {
		err = errors.New("it is not JSON")
	}
	if err != nil {
		return nil, &sdk.ConfigError{Field: "body", Reason: err.Error()}
	}
	return body, nil
}

// ListedValue is a value with the path that it is set by.
type ListedValue struct {
	Path string `json:"path"` // LISTENER/KEY
	app.Value
}

// values returns the values of all listeners whose applications store any, with paths LISTENER/KEY.
func (f *Running) values() ([]ListedValue, error) {
	out := []ListedValue{}
	for i, p := range f.placed {
		l := f.listeners[i]
		s, ok := apps[l.number].App.(app.ValueStore)
		if !ok {
			continue
		}
		values, err := s.Values(f.live.Maps, p)
		if err != nil {
			return nil, err
		}
		for _, v := range values {
			out = append(out, ListedValue{l.Name + "/" + v.Key, v})
		}
	}
	return out, nil
}

// putValue sets one value and returns it as the application lists it afterwards. An application without values gives
// NotFound. Watchers are notified.
func (f *Running) putValue(r *http.Request) (any, error) {
	l, p, err := f.one(r.PathValue("listener"))
	if err != nil {
		return nil, err
	}
	s, ok := apps[l.number].App.(app.ValueStore)
	if !ok {
		return nil, sdk.NotFound(fmt.Sprintf("listener %s has no values: application %s offers none", l.Name, l.App))
	}
	body, err := readBody(r)
	key := r.PathValue("key")
	if err == nil {
		err = s.SetValue(f.live.Maps, p, key, body)
	}
	if err != nil {
		return nil, err
	}
	f.watch.changed(p.Slot)
	values, err := s.Values(f.live.Maps, p)
	for _, v := range values {
		if v.Key == strings.TrimPrefix(key, "/") {
			return ListedValue{l.Name + "/" + v.Key, v}, err
		}
	}
	return map[string]string{"path": l.Name + "/" + key}, err
}

// events streams states: all of them first, then each that has changed, as fast as the reader takes them and no faster.
func (f *Running) events(w http.ResponseWriter, r *http.Request) {
	wanted := []app.PlacedListener{}
	bySlot := map[uint32]*listener{}
	only := r.URL.Query().Get("listener")
	for i, p := range f.placed {
		l := f.listeners[i]
		if _, ok := apps[l.number].App.(app.Stateful); ok && (only == "" || only == l.Name) {
			wanted, bySlot[p.Slot] = append(wanted, p), l
		}
	}
	if only != "" && len(wanted) == 0 {
		sdk.Answer(w)(nil, sdk.NotFound(fmt.Sprintf("no listener %q with state", only)))
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	out, stream := json.NewEncoder(w), http.NewResponseController(w)
	_ = stream.Flush()
	for slot := range f.watch.subscribe(r.Context(), wanted) {
		l := bySlot[slot]
		s, err := f.state(l, l.placed(slot))
		if err != nil || out.Encode(s) != nil || stream.Flush() != nil {
			return
		}
	}
}
