// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/client"
)

// agent is a server that echoes requests.
func agent(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if r.URL.Path == "/v1/none" {
		http.Error(w, "none", http.StatusNotFound)
		return
	}
	if r.URL.Path == "/v1/length" {
		http.Error(w, fmt.Sprint(r.ContentLength, len(body)), http.StatusTeapot)
		return
	}
	h := r.Header
	seen := []string{r.Method, r.URL.RequestURI(), h.Get("Authorization"), h.Get("Content-Type"), string(body)}
	_ = json.NewEncoder(w).Encode(seen)
}

func onSocket(t *testing.T) *client.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(agent)}}
	s.Start()
	t.Cleanup(s.Close)
	return client.New(path)
}

func TestCall(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(agent))
	defer s.Close()
	trusted := x509.NewCertPool()
	trusted.AddCert(s.Certificate())
	for name, c := range map[string]struct {
		*client.Client
		auth string
	}{
		"socket": {onSocket(t), ""},
		"https":  {client.NewHTTPS(s.URL, "secret", &tls.Config{RootCAs: trusted}), "Bearer secret"},
	} {
		var got []string
		err := c.Call(t.Context(), http.MethodPut, "/v1/x?y=1", map[string]int{"a": 1}, &got)
		want := []string{"PUT", "/v1/x?y=1", c.auth, "application/json", `{"a":1}`}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
		if err := c.Call(t.Context(), http.MethodDelete, "/v1/x", nil, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		err = c.Call(t.Context(), http.MethodGet, "/v1/none", nil, &got)
		var status *client.StatusError
		if !errors.As(err, &status) || status.Status != 404 || err.Error() != "GET /v1/none: 404 Not Found: none" {
			t.Errorf("%s: %v", name, err)
		}
		body, err := c.Stream(t.Context(), "/v1/events")
		if err != nil {
			t.Fatal(err)
		}
		got = nil
		if err := json.NewDecoder(body).Decode(&got); err != nil || got[1] != "/v1/events" || got[2] != c.auth {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		body.Close()
	}
}

// A small body is sent with its length, since the agent queues requests of unknown length. A large one is streamed
// without length.
func TestLengthOfPost(t *testing.T) {
	c := onSocket(t)
	for size, want := range map[int]string{0: "0 0", 5: "5 5", 64 << 10: "65536 65536", 64<<10 + 1: "-1 65537"} {
		body := iotest.HalfReader(strings.NewReader(strings.Repeat("x", size)))
		err := c.Post(t.Context(), "/v1/length", body)
		var status *client.StatusError
		if !errors.As(err, &status) || strings.TrimSpace(string(status.Body)) != want {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	if err := c.Post(t.Context(), "/v1/x", iotest.ErrReader(fs.ErrClosed)); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("a body that cannot be read: %v", err)
	}
}

func TestNobodyListens(t *testing.T) {
	err := client.New(filepath.Join(t.TempDir(), "s")).Call(t.Context(), http.MethodGet, "/v1/status", nil, nil)
	var dial *client.DialError
	if !errors.As(err, &dial) || !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestDetail(t *testing.T) {
	for body, want := range map[string]string{
		`{"type":"urn:kerb:invalid","detail":"a reason"}`: "a reason",
		"no JSON": "GET /v1/x: 404 Not Found: no JSON",
		"{}":      "GET /v1/x: 404 Not Found: {}",
	} {
		e := &client.StatusError{Method: "GET", Path: "/v1/x", Status: 404, Body: []byte(body)}
		if got := e.Detail(); got != want {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
}
