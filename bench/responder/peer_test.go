// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/bench"
)

const testToken = "0123456789abcdef"

// servedPeer starts a peer in the client's namespace of a place, and returns the experiment on the server's side.
func servedPeer(t *testing.T) (*experiment, *place) {
	t.Helper()
	e := newExperiment(t)
	e.run.Rounds, e.run.Scale = 1, 1e-3
	p, err := openPlace("direct", "kbrpeer", e.tools)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.lab.Close(); err != nil {
			t.Error(err)
		}
	})
	c := &contender{place: p, protocol: "speed"}
	if err := c.attach("", "pass"); err != nil { // a veth accepts frames of XDP_TX only if this end has a program
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	var listener net.Listener
	err = p.client.Do(func() error {
		nic, err := net.InterfaceByName(p.peerNIC)
		if err != nil {
			return err
		}
		addrs, err := nic.Addrs()
		if err != nil {
			return err
		}
		listener, err = net.Listen("tcp4", netip.MustParsePrefix(addrs[0].String()).Addr().String()+":0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: newPeer(testToken, e.tools, p.client.Command)}
	go s.Serve(listener)
	t.Cleanup(func() { s.Close() })
	e.remote = &remote{ns: p.server, at: listener.Addr().String(), token: testToken, note: e.run.Note}
	return e, p
}

// Every config answers a client on another machine, here a namespace, and reports the published metric.
func TestPeer(t *testing.T) {
	e, p := servedPeer(t)
	for _, load := range []string{"published/4", "routed/16"} {
		if err := e.runLoad(t.Context(), load); err != nil {
			t.Fatal(err)
		}
	}
	r := e.run.Report()
	for _, config := range remoteConfigs {
		if c, ok := r.Find(config, "published/4", "thread_mean", "p50"); !ok || !(c.Value > 0) {
			t.Errorf("%s: %+v", config, c)
		}
	}
	notes := strings.Join(r.Notes, "\n")
	for _, want := range []string{"routed/16 is left out: --peer supports", "the client is on " + e.remote.at} {
		if !strings.Contains(notes, want) {
			t.Errorf("no %q in\n%s", want, notes)
		}
	}
	if len(r.Unsound) > 0 {
		t.Error(r.Unsound)
	}
	if at, err := e.remote.place(); err != nil || at.nic != p.nic || at.address != p.address {
		t.Errorf("the server is at %+v: %v", at, err)
	}
	e.remote.token = "another token, no"
	_, err := e.remote.ask(peerRequest{Mode: "ask", Protocol: "speed", Port: port, Threads: 1, Number: 1})
	if err == nil || !strings.Contains(err.Error(), "the token differs") {
		t.Errorf("with another token: %v", err)
	}
}

// A peer rejects clients without the token, and requests that no benchmark sends.
func TestPeerRefuses(t *testing.T) {
	h := newPeer(testToken, &tools{}, nil) // an accepted request would panic
	good := `{"mode":"ask","protocol":"speed","port":7007,"threads":1,"milliseconds":1,"number":1}`
	for body, want := range map[string]string{
		`{"mode":"cost"}`: "modes are ask and offer",
		strings.Replace(good, `"speed"`, `"tcp"`, 1):                          "modes are ask and offer",
		strings.Replace(good, "7007", "0", 1):                                 "want a port",
		strings.Replace(good, "7007", "65536", 1):                             "want a port",
		strings.Replace(good, `"threads":1`, `"threads":0`, 1):                "1 to 1000 threads",
		strings.Replace(good, `"threads":1`, `"threads":1001`, 1):             "1 to 1000 threads",
		strings.Replace(good, `"milliseconds":1`, `"milliseconds":-1`, 1):     "at most 10m",
		strings.Replace(good, `"milliseconds":1`, `"milliseconds":600001`, 1): "at most 10m",
		strings.Replace(good, `"number":1`, `"number":1e8`, 1):                "0 to 1e+07",
		strings.Replace(good, `"number":1`, `"number":-1`, 1):                 "0 to 1e+07",
		strings.Replace(good, `"mode"`, `"to":"192.0.2.1","mode"`, 1):         "unknown field",
		"{" + strings.Repeat(" ", maxRequestSize):                             "too large",
		"":   "EOF",
		good: "IPv4 only",
	} {
		r := httptest.NewRequest(http.MethodPost, askPath, strings.NewReader(body))
		r.RemoteAddr = "[2001:db8::1]:1234"
		for token, want := range map[string]string{testToken: want, testToken + "0": "the token", "": "the token"} {
			r.Header.Set("Authorization", "Bearer "+token)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if got := w.Body.String(); w.Code < 400 || !strings.Contains(got, want) {
				t.Errorf("%.80s, token %q: %d %q, want %q", body, token, w.Code, got, want)
			}
			r.Body = io.NopCloser(bytes.NewReader([]byte(body)))
		}
	}
}

func TestPeerIsBusy(t *testing.T) {
	p := &peer{token: testToken, tools: &tools{}}
	p.running.Lock()
	r := httptest.NewRequest(http.MethodPost, askPath,
		strings.NewReader(`{"mode":"ask","protocol":"speed","port":7007,"threads":1}`))
	r.Header.Set("Authorization", "Bearer "+testToken)
	w := httptest.NewRecorder()
	if p.ServeHTTP(w, r); w.Code != http.StatusConflict {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestReadToken(t *testing.T) {
	for text, good := range map[string]bool{testToken + "\n": true, "short\n": false, "": false,
		testToken + "\n" + testToken: false} {
		path := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if token, err := readToken(path); (err == nil) != good || good && token != testToken {
			t.Errorf("%q: %q, %v", text, token, err)
		}
	}
	cmd := bench.Command()
	cmd.SetArgs([]string{"responder", "--quick", "--peer", "127.0.0.1:1"})
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), "token") {
		t.Errorf("--peer without a token: %v", err)
	}
	flags.peer = "" // for other tests of this process
}
