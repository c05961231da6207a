// SPDX-License-Identifier: Apache-2.0

// Package ui serves the page of `kerb ui` to one user's browsers: the embedded files, the state of the node once a
// second, and the routes of the agent's API that the page uses. It listens on the loopback address, in the process of
// the command: the agent has no part in it but for answering requests.
package ui

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/capture"
)

// Request sends a request to the agent, as the user who runs the command.
type Request func(ctx context.Context, method, path string, body io.Reader) (*http.Response, error)

// Options say what is served.
type Options struct {
	Agent Request
	Write bool                 // the page may revert changes
	Used  func(nextURL string) // called when a browser has used an address, with one for the next browser
}

// Server is the page for the user who has its address. It ends with Close.
type Server struct {
	options Options
	origin  string // http://127.0.0.1:PORT
	local   string // localhost:PORT
	base    string // /RANDOM: cookies know no ports, and servers of other users on this machine do not know the path
	session string // value of the cookie
	sampler *sampler
	http    *http.Server

	mu    sync.Mutex
	token string // opens a session, once
}

// cookie is the name of the cookie that holds the session.
const cookie = "kerb-ui"

// Listen returns a server on a port of the loopback address, on any if it is 0.
func Listen(ctx context.Context, port int, o Options) (*Server, net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return nil, nil, fmt.Errorf("listen for browsers: %w", err)
	}
	port = l.Addr().(*net.TCPAddr).Port
	s := &Server{options: o, origin: "http://" + l.Addr().String(), local: fmt.Sprintf("localhost:%d", port),
		base: "/" + rand.Text(), session: rand.Text(), token: rand.Text(), sampler: newSampler(o.Agent)}
	s.http = &http.Server{Handler: s.guard(s.routes()), ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:    time.Minute, // other users of this machine may connect, too
		MaxHeaderBytes: 16 << 10,
		BaseContext:    func(net.Listener) context.Context { return ctx }}
	return s, l, nil
}

// Serve answers browsers until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { _ = s.http.Close() })()
	if err := s.http.Serve(l); ctx.Err() == nil {
		return fmt.Errorf("serve the page: %w", err)
	}
	return nil
}

// URL returns the address that opens a session, once.
func (s *Server) URL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.origin + "/?token=" + s.token
}

// routes has what the page uses, and nothing else of the agent's API.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.open)
	private := http.NewServeMux()
	for _, pattern := range reads {
		private.HandleFunc("GET "+pattern, s.pass)
	}
	private.HandleFunc("GET /v1/modules/{name}/{query...}", s.view)
	if s.options.Write {
		private.HandleFunc("POST /v1/changes/{name}/revert", s.pass)
	}
	private.HandleFunc("GET /v1/history", s.since)
	private.HandleFunc("GET /v1/flows", s.since)
	private.HandleFunc("POST /capture", writeCapture)
	private.HandleFunc("GET /stream", s.stream)
	private.HandleFunc("GET /page", s.page)
	private.HandleFunc("GET /{$}", asset("index.html"))
	for _, name := range []string{"app.js", "app.css"} {
		private.HandleFunc("GET /"+name, asset(name))
	}
	mux.Handle(s.base+"/", http.StripPrefix(s.base, private))
	return mux
}

// reads are routes of the agent that change nothing.
var reads = []string{"/v1/status", "/v1/chains", "/v1/services", "/v1/services/{name}", "/v1/modules",
	"/v1/modules/{name}", "/v1/virtualservices", "/v1/models", "/v1/sets", "/v1/packages", "/v1/changes",
	"/v1/changes/{name}", "/v1/events", "/v1/drops", "/v1/explain", "/v1/trace"}

// policy lets the page load its own files and ask this server, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"base-uri 'none'; frame-ancestors 'none'; form-action 'none'"

// guard refuses requests that do not come from the page, or from a user without its address.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if !s.isOwnRequest(r) {
			http.Error(w, "this request is not from the page of kerb ui", http.StatusForbidden)
			return
		}
		if r.URL.Path != "/" && !s.hasSession(r) {
			http.Error(w, "open the address that kerb ui has printed last: each opens the page in one browser",
				http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isOwnRequest reports whether the request is for this server by its own name (not a name that an attacker resolves to
// 127.0.0.1), and comes from its own page as far as the browser says.
func (s *Server) isOwnRequest(r *http.Request) bool {
	if host := "http://" + r.Host; host != s.origin && r.Host != s.local {
		return false
	}
	origin := r.Header.Get("Origin")
	if origin == "" && r.Method != http.MethodGet {
		return false
	}
	if origin != "" && origin != "http://"+r.Host {
		return false
	}
	site := r.Header.Get("Sec-Fetch-Site")
	return r.URL.Path == "/" || site == "" || site == "same-origin" || site == "none"
}

func (s *Server) hasSession(r *http.Request) bool {
	c, err := r.Cookie(cookie)
	return err == nil && equal(c.Value, s.session)
}

func equal(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// open exchanges the token for a session. The page that follows is opened by this answer, not by a redirect: after one
// from another site, browsers would not send the cookie.
func (s *Server) open(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	good := equal(r.URL.Query().Get("token"), s.token)
	if good {
		s.token = rand.Text()
	}
	s.mu.Unlock()
	if !good {
		http.Error(w, "this address was used before, or is not complete: kerb ui has printed another one",
			http.StatusForbidden)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: cookie, Value: s.session, Path: s.base + "/", HttpOnly: true,
		SameSite: http.SameSiteStrictMode})
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	// Without an icon browsers ask for /favicon.ico.
	fmt.Fprintf(w, `<!doctype html><link rel="icon" href="data:,"><meta http-equiv="refresh" content="0;url=%s/"><title>Kerb</title>`, s.base)
	if s.options.Used != nil {
		s.options.Used(s.URL())
	}
}

// page has what the page may do.
func (s *Server) page(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"write":%v}`, s.options.Write)
}

// writeCapture makes the packets that the page shows a file for Wireshark. It asks the agent for nothing.
func writeCapture(w http.ResponseWriter, r *http.Request) {
	var packets []v1alpha1.TracedPacket
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, mostPackets)).Decode(&packets); err != nil {
		http.Error(w, "not packets of a trace: "+err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-pcapng")
	out, err := capture.NewWriter(w)
	for _, p := range packets {
		if err == nil {
			err = out.Add(p)
		}
	}
	if err != nil {
		panic(http.ErrAbortHandler) // the browser must not take a part for the whole
	}
}

// mostPackets are the bytes of those that become one file.
const mostPackets = 16 << 20

// mediaTypes are the types of responses that the page gets. A module chooses those of its routes: as a script or a
// document, a response could use the session.
var mediaTypes = []string{"application/json", "application/x-ndjson", "application/problem+json"}

// What a view may take of a module's control plane, which may be slow or hostile.
const (
	viewTime = 10 * time.Second
	maxView  = 4 << 20
)

// view passes a query of a module that its package has a view of, and no other.
func (s *Server) view(w http.ResponseWriter, r *http.Request) {
	name, query := r.PathValue("name"), r.PathValue("query")
	if strings.ContainsFunc(name, notOfNames) {
		http.NotFound(w, r)
		return
	}
	response, _ := s.ask(r.Context(), w, http.MethodGet, "/v1/modules/"+name)
	if response == nil {
		return
	}
	defer response.Body.Close()
	var m v1alpha1.Module
	if json.NewDecoder(io.LimitReader(response.Body, maxPart)).Decode(&m) != nil || m.Status == nil ||
		!slices.ContainsFunc(m.Status.Views, func(v v1alpha1.View) bool { return v.Query == query }) {
		http.NotFound(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), viewTime)
	defer cancel()
	response, kind := s.ask(ctx, w, http.MethodGet, r.URL.EscapedPath())
	if response == nil {
		return
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxView+1))
	if err == nil && len(body) > maxView {
		err = fmt.Errorf("the module's answer has more than %d bytes: it is not shown", maxView)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(response.StatusCode)
	_, _ = w.Write(body) // the page has gone
}

// ask sends a request to the agent. Where the response is not of mediaTypes, or there is none, it answers, and returns
// nil.
func (s *Server) ask(ctx context.Context, w http.ResponseWriter, method, path string) (r *http.Response, kind string) {
	r, err := s.options.Agent(ctx, method, path, http.NoBody)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return nil, ""
	}
	kind = r.Header.Get("Content-Type")
	if media, _, _ := strings.Cut(kind, ";"); slices.Contains(mediaTypes, media) {
		return r, kind
	}
	r.Body.Close()
	http.Error(w, fmt.Sprintf("the response is of type %q, not JSON: it is not shown", kind), http.StatusBadGateway)
	return nil, ""
}

// pass sends the request to the agent and its answer to the page, as it comes.
func (s *Server) pass(w http.ResponseWriter, r *http.Request) {
	if name := r.PathValue("name"); strings.ContainsFunc(name, notOfNames) {
		http.NotFound(w, r)
		return
	}
	path := r.URL.EscapedPath()
	if r.URL.RawQuery != "" {
		path += "?" + r.URL.RawQuery
	}
	response, kind := s.ask(r.Context(), w, r.Method, path)
	if response == nil {
		return
	}
	defer response.Body.Close()
	copyOut(w, response, kind)
}

// since passes on lines of the last seconds, samples or sums of flows, and no other parameter: each answer ends. Why
// there are none is a line, as an error in between is: the page asks again, and browsers report each response that is
// an error.
func (s *Server) since(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path + "?since=" + url.QueryEscape(r.FormValue("since"))
	response, err := s.options.Agent(r.Context(), http.MethodGet, path, http.NoBody)
	if err == nil {
		defer response.Body.Close()
		if response.StatusCode == http.StatusOK {
			copyOut(w, response, "application/x-ndjson")
			return
		}
		var problem struct{ Detail string }
		if err = json.NewDecoder(response.Body).Decode(&problem); err == nil {
			err = errors.New(problem.Detail)
		}
	}
	_ = json.NewEncoder(w).Encode(v1alpha1.HistoryLine{Error: err.Error()})
}

// copyOut sends a response of the agent as it comes.
func copyOut(w http.ResponseWriter, response *http.Response, kind string) {
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(response.StatusCode)
	out := http.NewResponseController(w)
	part := make([]byte, 32<<10)
	for {
		_ = out.Flush() // also before the first packet of a trace
		n, err := response.Body.Read(part)
		_ = out.SetWriteDeadline(time.Now().Add(longest))
		if _, failed := w.Write(part[:n]); err != nil || failed != nil {
			return
		}
	}
}

// notOfNames reports whether names of resources, and numbers of changes, have no such character.
func notOfNames(r rune) bool {
	return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-'
}
