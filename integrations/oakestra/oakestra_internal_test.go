// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// When a module's response is aborted, so is the response to the client: it must not look complete.
func TestAnswerBreaksOff(t *testing.T) {
	dir := t.TempDir()
	socket, err := net.Listen("unix", filepath.Join(dir, "agent"))
	if err != nil {
		t.Fatal(err)
	}
	agent := &httptest.Server{Listener: socket,
		Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/modules" {
				fmt.Fprintf(w, `[{"kind":%q,"metadata":{"name":"oakestra-0"}}]`, v1.KindModule)
				return
			}
			w.Header().Set("Content-Type", "text/event-stream") // forwarded without buffering
			fmt.Fprint(w, "half of")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		})}}
	agent.Start()
	defer agent.Close()
	l := &Listener{agent: newAgent(socket.Addr().String()), log: slog.New(slog.DiscardHandler)}
	l.state.Modules = []module{{Name: "packetCounter"}}
	s := httptest.NewServer(l.handler())
	defer s.Close()
	answer, err := http.Get(s.URL + "/ebpf/0/anything")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if body, err := io.ReadAll(answer.Body); err == nil {
		t.Errorf("%d %q looks complete", answer.StatusCode, body)
	}
}

func TestServiceNames(t *testing.T) {
	longest := strings.Repeat("n", 64)
	for name, good := range map[string]bool{
		"app.ns.web.ns": true, "a.b.c." + longest: true, longest + ".b.c.d": true, "a.b.c.n" + longest: false,
		"n" + longest + ".b.c.d": false,
		"a.b.c":                  false, "a.b.c.d.e": false, "a..c.d": false, "a.b.c.d/": false,
	} {
		if err := (deployment{Name: name}).check(); (err == nil) != good {
			t.Errorf("name %q: %v", name, err)
		}
	}
}

// A name that is not a valid label value, or too long for one, is converted to a unique label value.
func TestLabelValues(t *testing.T) {
	longest := strings.Repeat("n", 63)
	for name, same := range map[string]bool{"web": true, "a.b-c_d": true, longest: true, longest + "n": false,
		"web-": false, "_web": false} {
		got := labelValue(name)
		if (got == name) != same || len(got) > 63 || !plainLabel.MatchString(got) {
			t.Errorf("name %q has label %q", name, got)
		}
	}
	if a, b := labelValue(longest+"a"), labelValue(longest+"b"); a == b {
		t.Errorf("two names have one label, %q", a)
	}
}
