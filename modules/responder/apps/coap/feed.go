// SPDX-License-Identifier: Apache-2.0

package coap

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/kerb-edge/kerb/modules/responder/app"
	"github.com/kerb-edge/kerb/sdk"
)

const maxLine = 16 << 10 // bytes of a line of a feed

// line of a feed.
type line struct {
	Listener string `json:"listener"` // may be left out if there is one only
	Path     string `json:"path"`
	Update
}

// Handler implements app.Handler:
//
//	PUT feed   values as they come: a JSON object a line with path and what values/LISTENER/PATH takes
//
// It ends when the sender has no more, at the first line that is wrong, or when the config changes: then the sender
// connects again, and says all values again. Lines before the end are taken.
func (coap) Handler(live app.Live) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /feed", func(w http.ResponseWriter, r *http.Request) {
		n, err := takeFeed(live, w, r)
		status := http.StatusOK
		answer := map[string]any{"set": n}
		if err != nil {
			endReading(w) // else the server would wait for the rest before it answers
			status = statusOf(err)
			answer = map[string]any{"title": http.StatusText(status), "status": status,
				"detail": fmt.Sprintf("after %d values: %v", n, err)}
			w.Header().Set("Content-Type", "application/problem+json")
		} else {
			w.Header().Set("Content-Type", "application/json")
		}
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(answer) // the client has disconnected
	})
	return mux
}

var errEnded = errors.New("the module's config has changed: connect again, and send all values")

func statusOf(err error) int {
	var wrong *sdk.ConfigError
	switch {
	case errors.As(err, &wrong), errors.Is(err, bufio.ErrTooLong):
		return http.StatusBadRequest
	case errors.Is(err, app.ErrNoValue):
		return http.StatusNotFound
	case errors.Is(err, errEnded):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// takeFeed applies one update per line of the request's body until it ends, and returns how many it applied. It stops
// at the first line with an error, and returns errEnded if live ended meanwhile.
func takeFeed(live app.Live, w http.ResponseWriter, r *http.Request) (n int, err error) {
	t, err := openTable(live.Maps)
	if err != nil {
		return 0, err
	}
	defer t.close()
	ended := endWith(live, w, r)
	lines := bufio.NewScanner(r.Body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var l line
		err := app.Decode(lines.Bytes(), &l)
		if err == nil {
			err = t.take(live.All, &l)
		}
		if err != nil {
			return n, err
		}
		n++
	}
	select {
	case <-ended:
		return n, errEnded
	default:
		return n, lines.Err()
	}
}

// endWith ends the reading of a request's body when the map set ends, and reports it.
func endWith(live app.Live, w http.ResponseWriter, r *http.Request) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		for range live.Watch(r.Context()) {
		}
		if r.Context().Err() == nil {
			close(ended)
			endReading(w)
		}
	}()
	return ended
}

// endReading makes reads of the request's body fail from now on.
func endReading(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0)) // fails only if the connection has ended already
}

func (t *table) take(all []app.PlacedListener, l *line) error {
	if l.Listener == "" && len(all) > 1 {
		return &sdk.ConfigError{Field: "listener", Reason: "several exist; name one"}
	}
	for _, p := range all {
		if l.Listener == "" || l.Listener == p.Name {
			return t.update(p, l.Path, &l.Update)
		}
	}
	return fmt.Errorf("no listener %q: %w", l.Listener, app.ErrNoValue)
}
