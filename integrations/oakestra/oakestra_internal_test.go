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
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// When a module's answer breaks off, so does the answer to the client: it must not look complete.
func TestAnswerBreaksOff(t *testing.T) {
	dir := t.TempDir()
	socket, err := net.Listen("unix", filepath.Join(dir, "agent"))
	if err != nil {
		t.Fatal(err)
	}
	agent := &httptest.Server{Listener: socket, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/modules" {
			fmt.Fprintf(w, `[{"kind":%q,"metadata":{"name":"oakestra-0"}}]`, v1.KindModule)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream") // forwarded as it comes
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
