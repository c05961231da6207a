// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"net/http/httptest"
	"strings"
	"testing"
)

// A slow client loses values, and is notified of their number. Other clients lose none.
func TestSlowStreamClient(t *testing.T) {
	var s Stream[int]
	slow, fast := s.Open(), s.Open()
	for i := range StreamQueue + 7 {
		s.Send(i)
		if v := <-fast.Values; v != i {
			t.Fatalf("%d, want %d", v, i)
		}
	}
	if n := fast.Lost(); n != 0 {
		t.Errorf("the fast client lost %d", n)
	}
	fast.Close()
	s.End()
	w := httptest.NewRecorder()
	slow.Serve(w, httptest.NewRequest("GET", "/", nil), []int{-1})
	lines := strings.Split(strings.TrimSpace(w.Body.String()), "\n")
	if len(lines) != 1+1+StreamQueue || lines[0] != "-1" || lines[1] != `{"lost":7}` || lines[2] != "0" ||
		w.Header().Get("Content-Type") != "application/x-ndjson" {
		t.Errorf("%d lines: %.60q", len(lines), lines)
	}
	slow.Close()
	if s.HasClients() {
		t.Error("a client is left")
	}
	if v, open := <-s.Open().Values; open {
		t.Errorf("%d behind the end", v)
	}
}
