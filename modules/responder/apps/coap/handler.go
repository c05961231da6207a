// SPDX-License-Identifier: Apache-2.0

package coap

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// FeedType is the content type of a feed.
const FeedType = "application/x-ndjson"

const maxLine = 16 << 10 // bytes of a line of a feed, of the body of a value

// Update is a value to be set: a line of a feed, or the body of a PUT, where the path is in the URL.
type Update struct {
	Listener string  `json:"listener"` // may be empty if only one has the path
	Path     string  `json:"path"`
	Value    *string `json:"value"` // null takes the value back
	Base64   bool    `json:"base64"`
	// MaxAge in seconds is how long the value is fresh. Without it the value stays, and Max-Age is that of the config.
	MaxAge *uint32 `json:"maxAge"`
}

func (v *Values) apply(u *Update) error {
	if u.Value == nil {
		return v.Unset(u.Listener, u.Path)
	}
	data := []byte(*u.Value)
	if u.Base64 {
		var err error
		if data, err = base64.StdEncoding.DecodeString(*u.Value); err != nil {
			return fmt.Errorf("value: %w", err)
		}
	}
	lease := time.Duration(0)
	if u.MaxAge != nil {
		if lease = time.Duration(*u.MaxAge) * time.Second; lease == 0 {
			return errors.New("maxAge: a value that is never fresh is not set; take it back with null")
		}
	}
	return v.Set(u.Listener, u.Path, data, lease)
}

// Handler serves, until ctx ends:
//
//	GET    values          all resources with their values
//	GET    values/<path>   the bytes of one
//	PUT    values/<path>   sets it: as JSON {"value", "base64", "maxAge", "listener"}, else the body is the value
//	DELETE values/<path>   takes back what was set
//	PUT    values          a feed: such JSON with "path", one in each line, taken as they come
func (v *Values) Handler(ctx context.Context) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /values", func(w http.ResponseWriter, _ *http.Request) { answer(w, v.List(), nil) })
	mux.HandleFunc("GET /values/{path...}", v.serveValue)
	mux.HandleFunc("PUT /values/{path...}", func(w http.ResponseWriter, r *http.Request) {
		u, err := readUpdate(w, r)
		if err == nil {
			err = v.apply(u)
		}
		answer(w, nil, err)
	})
	mux.HandleFunc("DELETE /values/{path...}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, nil, v.Unset(r.URL.Query().Get("listener"), pathOf(r)))
	})
	mux.HandleFunc("PUT /values", func(w http.ResponseWriter, r *http.Request) { v.serveFeed(ctx, w, r) })
	return mux
}

// pathOf is the path below values/ as it was written: %2F is no slash.
func pathOf(r *http.Request) string { return strings.TrimPrefix(r.URL.EscapedPath(), "/values/") }

func readUpdate(w http.ResponseWriter, r *http.Request) (*Update, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxLine))
	if err != nil {
		return nil, err
	}
	u := &Update{}
	if r.Header.Get("Content-Type") != "application/json" {
		text := base64.StdEncoding.EncodeToString(body)
		u.Value, u.Base64 = &text, true
	} else if err := decode(body, u); err != nil {
		return nil, err
	}
	u.Path = pathOf(r)
	if u.Listener == "" {
		u.Listener = r.URL.Query().Get("listener")
	}
	return u, nil
}

func decode(text []byte, u *Update) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	return dec.Decode(u)
}

func (v *Values) serveValue(w http.ResponseWriter, r *http.Request) {
	listener, path := r.URL.Query().Get("listener"), pathOf(r)
	segments, err := ParsePath(path)
	if err != nil {
		answer(w, nil, err)
		return
	}
	for _, one := range v.List() {
		if one.Path == formatPath(segments) && (listener == "" || listener == one.Listener) && one.Set {
			w.Header().Set("Content-Type", "application/octet-stream")
			_, _ = w.Write(one.Value) // the reader has gone: nobody to tell
			return
		}
	}
	answer(w, nil, fmt.Errorf("%s has no value: %w", path, ErrNoResource))
}

// serveFeed takes values as they come, until the sender has no more or the generation ends: then the sender connects again,
// and says all values anew. What was taken before a bad line stays.
func (v *Values) serveFeed(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	stop := context.AfterFunc(ctx, func() {
		_ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0)) // ends the reading below
	})
	defer stop()
	lines := bufio.NewScanner(r.Body)
	lines.Buffer(nil, maxLine)
	n := 0
	for lines.Scan() {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		u := &Update{}
		err := decode(lines.Bytes(), u)
		if err == nil {
			err = v.apply(u)
		}
		if err != nil {
			answer(w, nil, fmt.Errorf("after %d values: %w", n, err))
			return
		}
		n++
	}
	if ctx.Err() != nil {
		answer(w, nil, errRestart)
		return
	}
	answer(w, map[string]int{"set": n}, lines.Err())
}

var errRestart = errors.New("the module's configuration has changed: connect again, and send all values")

// answer writes a value, nothing, or an error as problem+json (RFC 9457).
func answer(w http.ResponseWriter, v any, err error) {
	if err == nil && v == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		status := http.StatusBadRequest
		switch {
		case errors.Is(err, ErrNoResource):
			status = http.StatusNotFound
		case errors.Is(err, ErrAmbiguous):
			status = http.StatusConflict
		case errors.Is(err, errNotRunning), errors.Is(err, errRestart):
			status = http.StatusServiceUnavailable
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(status)
		v = map[string]any{"title": http.StatusText(status), "status": status, "detail": err.Error()}
	}
	_ = json.NewEncoder(w).Encode(v) // the reader has gone: nobody to tell
}
