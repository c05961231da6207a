// SPDX-License-Identifier: Apache-2.0

package coap

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/modules/responder/app"
)

// live returns the control plane's view of the device; ended ends its map set.
func (d *device) live() (l app.Live, ended func()) {
	done := make(chan uint32)
	return app.Live{Maps: d.maps, All: d.placed(), Watch: func(ctx context.Context) <-chan uint32 {
		out := make(chan uint32)
		go func() {
			defer close(out)
			select {
			case <-ctx.Done():
			case <-done:
			}
		}()
		return out
	}}, func() { close(done) }
}

// payload returns the payload of the answer to a GET, or "" if it passes to the server.
func (d *device) payload(t *testing.T, id uint16, segments ...string) string {
	t.Helper()
	reply, verdict := d.send(t, client, serverOf(client),
		(&Message{Code: GET, ID: id, Options: path(segments...)}).Bytes())
	if verdict != Reply {
		return ""
	}
	m, err := Read(reply)
	if err != nil {
		t.Fatal(err)
	}
	return string(m.Payload)
}

// Values are set while the feed continues; it ends with an error, or with the map set.
func TestFeed(t *testing.T) {
	d := load(t, hooks[0], casesConfig())
	live, end := d.live()
	server := httptest.NewServer(coap{}.Handler(live))
	defer server.Close()
	feed := func() (io.WriteCloser, <-chan string) {
		r, w := io.Pipe()
		answer := make(chan string, 1)
		go func() {
			req, _ := http.NewRequest("PUT", server.URL+"/feed", r)
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				answer <- err.Error()
				return
			}
			defer res.Body.Close()
			text, _ := io.ReadAll(res.Body)
			answer <- res.Status + " " + string(text)
		}()
		return w, answer
	}
	id := uint16(0)
	becomes := func(want string, segments ...string) {
		t.Helper()
		for until := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
			id++
			got := d.payload(t, id, segments...)
			if got == want {
				return
			}
			if time.Now().After(until) {
				t.Fatalf("%v is %q, want %q", segments, got, want)
			}
		}
	}

	w, answer := feed()
	io.WriteString(w, `{"path": "sensors/temp", "value": "22", "maxAge": 100}`+"\n")
	becomes("22", "sensors", "temp")
	io.WriteString(w, "\n"+`{"path": "nothing", "value": "AAEC", "base64": true}`+"\n")
	becomes("\x00\x01\x02", "nothing")
	io.WriteString(w, `{"path": "nothing", "value": null}`+"\n")
	becomes("", "nothing")
	w.Close()
	if got := <-answer; !strings.HasPrefix(got, "200") || !strings.Contains(got, `"set":3`) {
		t.Errorf("the end of a feed is answered %s", got)
	}
	for line, want := range map[string]string{
		`{"path": "other", "value": "x"}`:                                 "404",
		`{"path": "plain", "value": "x", "listener": "other"}`:            "404",
		`{"path": "plain", "walue": "x"}`:                                 "400",
		`{"path": "plain", "value": "x", "maxAge": 0}`:                    "400",
		`{"path": "plain", "value": "?", "base64": true}`:                 "400",
		`{"path": "%zz", "value": "x"}`:                                   "400",
		`{"path": "plain", "value": "` + strings.Repeat("x", 1025) + `"}`: "400",
		strings.Repeat("x", maxLine+1):                                    "400",
	} {
		w, answer := feed()
		go io.WriteString(w, line+"\n")
		if got := <-answer; !strings.HasPrefix(got, want) {
			t.Errorf("%.60s is answered %.200s, want %s", line, got, want)
		}
		w.Close()
	}

	w, answer = feed()
	defer w.Close()
	io.WriteString(w, `{"path": "plain", "value": "last"}`+"\n")
	becomes("last", "plain")
	end()
	if got := <-answer; !strings.HasPrefix(got, "503") || !strings.Contains(got, "connect again") {
		t.Errorf("a feed whose map set has ended is answered %s", got)
	}
}

// Values persist in the next map set, with their remaining time; those of a removed listener are removed.
func TestSettingsOutliveTheConfig(t *testing.T) {
	d := load(t, hooks[0], casesConfig())
	p := d.placed()[0]
	if err := (coap{}).SetValue(d.maps, p, "sensors/temp", json.RawMessage(`{"value": "23", "maxAge": 100}`)); err != nil {
		t.Fatal(err)
	}
	refill := func(fresh bool) []app.Value {
		t.Helper()
		p.Fresh = fresh
		if err := d.maps[mapSecrets].Put(uint32(0), secret{}); err != nil { // as in the maps of a new map set
			t.Fatal(err)
		}
		if err := (coap{}).Fill(d.maps, []app.PlacedListener{p}); err != nil {
			t.Fatal(err)
		}
		values, err := coap{}.Values(d.maps, p)
		if err != nil {
			t.Fatal(err)
		}
		return values
	}
	if got := refill(false)[0]; got.Key != "sensors/temp" || got.Value != "23" || got.Detail["maxAge"].(uint32) > 100 ||
		got.Detail["expires"] != true {
		t.Errorf("kept: %+v", got)
	}
	if got := refill(true)[0]; got.Value != "21.5" {
		t.Errorf("another listener's: %+v", got)
	}
	if err := (coap{}).SetValue(d.maps, p, "other", json.RawMessage(`{"value": "1"}`)); !errors.Is(err, app.ErrNoValue) {
		t.Errorf("an unknown resource: %v", err)
	}
}
