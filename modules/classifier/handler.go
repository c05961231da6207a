// SPDX-License-Identifier: Apache-2.0

package classifier

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/kerb-edge/kerb/sdk"
)

// Handler serves:
//
//	GET    sources            what is known of sources; ?limit=n, 1000 by default
//	GET    blocked            sources that something is done to
//	DELETE blocked            frees all
//	DELETE blocked/SOURCE     frees one
//	GET    models             the models that run
//	GET    agreement          what the shadow model says alongside the live one
//	GET    stats              counters
//	GET    fuse               whether the model has done more than it may
//	PUT    fuse               {"state": "intact"} frees all and lets it act again
//	GET    events             verdicts as they come, a JSON object a line
//	GET    values             the fuse and what is done to sources, for kerb module set
//	PUT    values/fuse        {"value": "intact"}
//	PUT    values/blocked/SOURCE   {"value": "none"}
func (w *running) Handler() http.Handler {
	mux := http.NewServeMux()
	serve := func(pattern string, do func(*http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(to http.ResponseWriter, r *http.Request) { sdk.Answer(to)(do(r)) })
	}
	serve("GET /sources", w.getSources)
	serve("GET /blocked", func(*http.Request) (any, error) { return w.blocked() })
	serve("DELETE /blocked", func(*http.Request) (any, error) { return w.free("") })
	serve("DELETE /blocked/{source...}", func(r *http.Request) (any, error) { return w.free(r.PathValue("source")) })
	serve("GET /models", func(*http.Request) (any, error) { return w.models(), nil })
	serve("GET /agreement", func(*http.Request) (any, error) { return w.agreement() })
	serve("GET /stats", func(*http.Request) (any, error) { return w.stats() })
	serve("GET /fuse", func(*http.Request) (any, error) { return w.fuseReport(), nil })
	serve("PUT /fuse", w.putFuse)
	serve("GET /values", func(*http.Request) (any, error) { return w.values() })
	serve("PUT /values/{path...}", w.putValue)
	mux.HandleFunc("GET /events", w.serveEvents)
	serve("/", func(r *http.Request) (any, error) {
		return nil, sdk.NotFound(fmt.Sprintf("no %s %s; known are sources, blocked, models, agreement, stats, fuse, "+
			"events, values", r.Method, r.URL.Path))
	})
	return mux
}

func (w *running) getSources(r *http.Request) (any, error) {
	const usual, most = 1000, 100000
	limit := usual
	if text := r.URL.Query().Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, wrong("limit", "%q is no number from 1", text)
		}
		limit = min(n, most)
	}
	return w.sources(limit)
}

// free frees the sources of a name, all if it is empty.
func (w *running) free(name string) (any, error) {
	n, err := w.unblock(func(s source, _ *block) bool { return name == "" || s.String() == name })
	if err == nil && n == 0 && name != "" {
		err = sdk.NotFound(fmt.Sprintf("nothing is done to a source %s", name))
	}
	return map[string]int{"freed": n}, err
}

func (w *running) models() map[string]*loaded {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]*loaded{}
	for i, role := range roles {
		if w.loaded[i] != nil {
			out[roleNames[role]] = w.loaded[i]
		}
	}
	return out
}

func (w *running) putFuse(r *http.Request) (any, error) {
	var body struct{ State string }
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	return w.setFuse(body.State)
}

func (w *running) setFuse(state string) (any, error) {
	if state != "intact" {
		return nil, wrong("fuse", "%q is not intact, which is all that it can be set to", state)
	}
	err := w.resetFuse()
	return w.fuseReport(), err
}

func decode(r *http.Request, v any) error {
	const most = 1 << 12
	if err := json.NewDecoder(http.MaxBytesReader(nil, r.Body, most)).Decode(v); err != nil {
		return wrong("body", "%v", err)
	}
	return nil
}

// ListedValue is what kerb module values shows.
type ListedValue struct {
	Path  string `json:"path"`
	Value string `json:"value"`
}

func (w *running) values() ([]ListedValue, error) {
	out := []ListedValue{{"fuse", w.fuseReport().State}}
	all, err := w.blocked()
	for _, b := range all {
		out = append(out, ListedValue{"blocked/" + b.Source, b.Action})
	}
	return out, err
}

// putValue accepts two paths: fuse, which takes the fuse's new setting, and blocked/SOURCE, which takes only "none" and
// frees that source.
func (w *running) putValue(r *http.Request) (any, error) {
	var body struct{ Value string }
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	path := r.PathValue("path")
	if path == "fuse" {
		return w.setFuse(body.Value)
	}
	source, ok := strings.CutPrefix(path, "blocked/")
	switch {
	case !ok:
		return nil, sdk.NotFound(fmt.Sprintf("no value %s", path))
	case body.Value != "none":
		return nil, wrong("value", "%q is not none, which frees the source", body.Value)
	}
	return w.free(source)
}

// Agreement is the answer of GET agreement: evaluations by what the two models say.
type Agreement struct {
	BothHarmless uint64  `json:"bothHarmless"`
	BothPositive uint64  `json:"bothPositive"`
	OnlyLive     uint64  `json:"onlyLive"`
	OnlyShadow   uint64  `json:"onlyShadow"`
	SameClass    uint64  `json:"sameClass"`
	Share        float64 `json:"share"` // of evaluations in which both say the same; 1 if there are none
}

// agreement compares the live model with the shadow model over all verdicts that both gave. Share counts agreement on
// harmless or not, and is 1 before the first verdict. Without a shadow model it returns NotFound.
func (w *running) agreement() (*Agreement, error) {
	c, err := w.counts()
	if err != nil {
		return nil, err
	}
	if w.config.Shadow == "" {
		return nil, sdk.NotFound("the config names no shadow model")
	}
	out := &Agreement{c[countBothHarmless], c[countBothPositive], c[countOnlyLive], c[countOnlyShadow], c[countSameClass],
		1}
	if all := out.BothHarmless + out.BothPositive + out.OnlyLive + out.OnlyShadow; all > 0 {
		out.Share = float64(out.BothHarmless+out.BothPositive) / float64(all)
	}
	return out, nil
}
