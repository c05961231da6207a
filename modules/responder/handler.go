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
//	GET  listeners                  what is answered, and what became of packets
//	GET  state                      the states of listeners
//	GET  state/LISTENER             one
//	PUT  state/LISTENER             takes over what is given of it
//	GET  events                     states when they change, a JSON object a line; ?listener= for one only
//	GET  values                     what can be set
//	PUT  values/LISTENER/KEY        sets it: {"value": "..."}
//	     apps/NAME/...              an application's own
func (f *Responder) Handler(live sdk.Live) http.Handler {
	h := &handler{f, live, f.watchOf(live)}
	mux := http.NewServeMux()
	serve := func(pattern string, do func(*http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { sdk.Answer(w)(do(r)) })
	}
	serve("GET /listeners", func(*http.Request) (any, error) { return f.report(live.Maps) })
	serve("GET /state", func(*http.Request) (any, error) { return h.states() })
	serve("GET /state/{listener}", h.getState)
	serve("PUT /state/{listener}", h.putState)
	serve("GET /values", func(*http.Request) (any, error) { return h.values() })
	serve("PUT /values/{listener}/{key...}", h.putValue)
	mux.HandleFunc("GET /events", h.events)
	placed, err := f.place(live.Maps)
	for i, a := range apps {
		if own, ok := a.App.(app.Handler); ok && err == nil {
			if all := f.ofApp(uint8(i), placed); len(all) > 0 {
				prefix := "/apps/" + a.name
				mux.Handle(prefix+"/", http.StripPrefix(prefix, own.Handler(f.appLive(live, all))))
			}
		}
	}
	return mux
}

type handler struct {
	*Responder
	live  sdk.Live
	watch *watch
}

const maxBody = 1 << 16

// State is that of one listener.
type State struct {
	Listener string `json:"listener"`
	App      string `json:"app"`
	State    any    `json:"state"`
}

// one finds a listener by its name.
func (h *handler) one(name string) (*listener, app.Placed, error) {
	placed, err := h.place(h.live.Maps)
	if err != nil {
		return nil, app.Placed{}, err
	}
	for i, l := range h.listeners {
		if l.Name == name {
			return l, placed[i], nil
		}
	}
	return nil, app.Placed{}, sdk.NotFound(fmt.Sprintf("no listener %q", name))
}

func (h *handler) state(l *listener, p app.Placed) (*State, error) {
	s, ok := apps[l.number].App.(app.Stateful)
	if !ok {
		return nil, sdk.NotFound(fmt.Sprintf("listener %s has no state: application %s is stateless", l.Name, l.App))
	}
	state, err := s.State(h.live.Maps, p)
	return &State{l.Name, l.App, state}, err
}

func (h *handler) states() ([]*State, error) {
	placed, err := h.place(h.live.Maps)
	out := []*State{}
	for i, p := range placed {
		l := h.listeners[i]
		if _, ok := apps[l.number].App.(app.Stateful); !ok {
			continue
		}
		s, err := h.state(l, p)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, err
}

func (h *handler) getState(r *http.Request) (any, error) {
	l, p, err := h.one(r.PathValue("listener"))
	if err != nil {
		return nil, err
	}
	return h.state(l, p)
}

func (h *handler) putState(r *http.Request) (any, error) {
	l, p, err := h.one(r.PathValue("listener"))
	if err != nil {
		return nil, err
	}
	s, ok := apps[l.number].App.(app.Stateful)
	if !ok {
		return nil, sdk.NotFound(fmt.Sprintf("listener %s has no state: application %s is stateless", l.Name, l.App))
	}
	body, err := readBody(r)
	if err != nil {
		return nil, err
	}
	if err := s.SetState(h.live.Maps, p, body); err != nil {
		return nil, err
	}
	h.watch.changed(p.Slot)
	return h.state(l, p)
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

func (h *handler) values() ([]ListedValue, error) {
	placed, err := h.place(h.live.Maps)
	out := []ListedValue{}
	for i, p := range placed {
		l := h.listeners[i]
		s, ok := apps[l.number].App.(app.Valuer)
		if !ok {
			continue
		}
		values, err := s.Values(h.live.Maps, p)
		if err != nil {
			return nil, err
		}
		for _, v := range values {
			out = append(out, ListedValue{l.Name + "/" + v.Key, v})
		}
	}
	return out, err
}

func (h *handler) putValue(r *http.Request) (any, error) {
	l, p, err := h.one(r.PathValue("listener"))
	if err != nil {
		return nil, err
	}
	s, ok := apps[l.number].App.(app.Valuer)
	if !ok {
		return nil, sdk.NotFound(fmt.Sprintf("listener %s has no values: application %s offers none", l.Name, l.App))
	}
	body, err := readBody(r)
	if err != nil {
		return nil, err
	}
	key := r.PathValue("key")
	if err := s.SetValue(h.live.Maps, p, key, body); err != nil {
		return nil, err
	}
	h.watch.changed(p.Slot)
	values, err := s.Values(h.live.Maps, p)
	for _, v := range values {
		if v.Key == strings.TrimPrefix(key, "/") {
			return ListedValue{l.Name + "/" + v.Key, v}, err
		}
	}
	return map[string]string{"path": l.Name + "/" + key}, err
}

// events streams states: all of them first, then each that has changed, as fast as the reader takes them and no faster.
func (h *handler) events(w http.ResponseWriter, r *http.Request) {
	placed, err := h.place(h.live.Maps)
	if err != nil {
		sdk.Answer(w)(nil, err)
		return
	}
	wanted := []app.Placed{}
	bySlot := map[uint32]*listener{}
	only := r.URL.Query().Get("listener")
	for i, p := range placed {
		l := h.listeners[i]
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
	for slot := range h.watch.subscribe(r.Context(), wanted) {
		l := bySlot[slot]
		s, err := h.state(l, l.placed(slot))
		if err != nil || out.Encode(s) != nil || stream.Flush() != nil {
			return
		}
	}
}
