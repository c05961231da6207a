// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
)

// expired is an API server that forgets faster than it answers: each list is complete, and each watch that continues
// from it, and every third list, is answered by 410 Gone.
type expired struct{ lists, watches, refused int }

func (e *expired) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := func(code int, text string) (*http.Response, error) {
		return &http.Response{StatusCode: code, Header: http.Header{}, Request: r,
			Body: io.NopCloser(strings.NewReader(text + "\n"))}, nil
	}
	if r.URL.Query().Get("sendInitialEvents") == "" {
		e.watches++
		return answer(http.StatusGone, `{"code":410,"reason":"Expired"}`)
	}
	e.lists++
	if e.lists%3 == 0 {
		e.refused++
		return answer(http.StatusOK, line("ADDED", "part", "2", 3)+"\n"+gone)
	}
	return answer(http.StatusOK, line("ADDED", "a", "1", 3)+"\n"+endOfList(3))
}

// A server that answers 410 again and again, for an hour, is asked at most a few times a minute, is listed again each
// time, and no object is lost: a list that is cut off by 410 replaces nothing.
func TestStormOfGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, m := &expired{}, &mirror{}
		ctx, cancel := context.WithCancel(t.Context())
		go Follow[api.Object](ctx, &Client{base: "https://api", http: &http.Client{Transport: server}},
			Resource{Path: "/api/v1/pods"}, DefaultTimes, slog.New(slog.DiscardHandler), m.handler())
		time.Sleep(time.Hour)
		cancel()
		synctest.Wait()
		all := server.lists + server.watches
		// The least wait is half of MaxBackoff, after the first ones.
		if most := int(time.Hour/(DefaultTimes.MaxBackoff/2)) + 10; all > most || server.lists < 40 {
			t.Errorf("%d lists and %d watches in an hour, want at most %d in all", server.lists, server.watches, most)
		}
		if replaced, calls := m.count(); replaced != server.lists-server.refused || calls != replaced || m.names() != "a" {
			t.Errorf("%d complete lists of %d, %d calls, objects %s", replaced, server.lists-server.refused, calls, m.names())
		}
	})
}
