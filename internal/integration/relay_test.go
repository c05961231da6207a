// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"
)

// Records keep level, message and attributes; what is no record is an error, and the first such line the reason of the
// end.
func TestRelay(t *testing.T) {
	var log bytes.Buffer
	plain := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}
	r := &relay{log: slog.New(slog.NewTextHandler(&log, plain))}
	text := `{"time":"2026-01-01T00:00:00Z","level":"WARN","msg":"open","address":"0.0.0.0:6000"}
{"level":"DEBUG","msg":"hidden"}
panic: it failed
{"msg":1}
`
	for _, b := range []byte(text) { // in pieces
		if _, err := r.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	want := `level=WARN msg=open address=0.0.0.0:6000
level=ERROR msg="output of an integration" line="panic: it failed"
level=ERROR msg="output of an integration" line="{\"msg\":1}"
`
	if log.String() != want {
		t.Errorf("got\n%swant\n%s", log.String(), want)
	}
	if r.first != "panic: it failed" {
		t.Errorf("first line %q", r.first)
	}
}

func TestRelayIsBounded(t *testing.T) {
	var log bytes.Buffer
	r := &relay{log: slog.New(slog.NewTextHandler(&log, nil))}
	for range 3 {
		fmt.Fprintf(r, "%0*d", maxLine-1, 0)
	}
	if len(r.rest) > 2*maxLine {
		t.Errorf("%d bytes are kept", len(r.rest))
	}
}

// Peers outside the agent's PID namespace have the number 0, as an integration that does not run.
func TestNameOfForeignProcess(t *testing.T) {
	s := NewSet([]Program{{Name: "oakestra"}}, slog.New(slog.DiscardHandler), func() {})
	if name := s.NameOf(0); name != "" {
		t.Errorf("process 0 is taken for %q", name)
	}
}
