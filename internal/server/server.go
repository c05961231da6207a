// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/config"
	"github.com/kerb-edge/kerb/internal/promtext"
	"github.com/kerb-edge/kerb/internal/serve"
)

// Limits of a request.
const (
	maxBody     = 32 << 20        // 10,000 firewall rules are about 2 MiB
	largeBody   = 1 << 20         // decoded it takes many times this size,
	largeAtOnce = 2               // so that others wait
	maxPending  = 128 << 20       // of all large bodies that are being read or waiting
	workTimeout = 5 * time.Minute // an apply on hundreds of services, on a slow node
)

// Server is the API over one Backend.
type Server struct {
	backend Backend
	log     *slog.Logger
	mux     *http.ServeMux
	doc     *huma.OpenAPI // while it is made
	handler http.Handler
	large   chan struct{} // requests with large bodies in progress
	pending atomic.Int64  // bytes of large bodies that are being read or waiting

	documents sync.Mutex // see serveDocument

	mu      sync.Mutex
	guarded []serve.Endpoint // the ones that require credentials
}

// New makes the API over backend.
func New(backend Backend, log *slog.Logger) *Server {
	s := newServer(backend, log)
	s.doc = nil // with the schemas of all bodies, it is a fifth of an idle agent's heap
	s.mux.HandleFunc("GET /openapi.json", s.serveDocument("application/openapi+json", (*huma.OpenAPI).MarshalJSON))
	s.mux.HandleFunc("GET /openapi.yaml", s.serveDocument("application/openapi+yaml", (*huma.OpenAPI).YAML))
	s.mux.Handle("/v1/modules/{name}/{path...}", http.HandlerFunc(s.serveModule))
	s.mux.HandleFunc("GET /metrics", s.serveMetrics)
	s.mux.HandleFunc("GET /healthz", s.serveHealth)
	s.mux.HandleFunc("/v1/modules/{name}", s.serveUnknown) // else it is redirected to the slash below it
	s.mux.HandleFunc("/", s.serveUnknown)
	s.handler = s.limit(s.mux)
	return s
}

// newServer creates the operations, and the document that describes them.
func newServer(backend Backend, log *slog.Logger) *Server {
	s := &Server{backend: backend, log: log, mux: http.NewServeMux(), large: make(chan struct{}, largeAtOnce)}
	s.doc = &huma.OpenAPI{OpenAPI: "3.1.0", Components: &huma.Components{Schemas: newRegistry()}, Info: &huma.Info{
		Title: "Kerb node agent", Version: strings.TrimPrefix(v1alpha1.APIVersion, "kerb.dev/"),
		Description: "Desired state of the node, its status, and the routes of its modules. " +
			"Served on the Unix socket /run/kerb/kerb.sock."}}
	s.addRoutes()
	return s
}

// OpenAPI creates the OpenAPI 3.1 document again.
func (s *Server) OpenAPI() *huma.OpenAPI { return newServer(s.backend, s.log).doc }

// serveDocument creates the document for each request, one at a time: it takes megabytes for a moment.
func (s *Server) serveDocument(mediaType string, text func(*huma.OpenAPI) ([]byte, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		s.documents.Lock()
		data, err := text(s.OpenAPI())
		s.documents.Unlock()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", mediaType)
		_, _ = w.Write(data) // the client may have left
	}
}

// ServeHTTP serves the API.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Serve serves all endpoints until ctx ends or one of them fails, and closes them.
func (s *Server) Serve(ctx context.Context, endpoints ...serve.Endpoint) error {
	for _, e := range endpoints {
		s.observe(e)
	}
	if err := serve.Serve(ctx, s, workTimeout, s.log, endpoints...); err != nil {
		return fmt.Errorf("API: %w", err)
	}
	return nil
}

// limit limits the resources of a request, and keeps the agent alive if a handler panics.
func (s *Server) limit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		if isFeed(r) || isFollowed(r) {
			unlimited(w)
		} else {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, workTimeout)
			defer cancel()
			r.Body = http.MaxBytesReader(w, r.Body, maxBody)
			defer s.await(ctx, r)()
		}
		defer s.recover(w, r)
		start := time.Now()
		next.ServeHTTP(w, r.WithContext(ctx))
		s.log.Debug("request", "method", r.Method, "path", r.URL.Path, "duration", time.Since(start))
	})
}

// await reads the body of a request that is large, or of unknown length, and if it is large then waits for its turn: a
// client that sends slowly does not delay others. The caller calls end when the request is done.
func (s *Server) await(ctx context.Context, r *http.Request) (end func()) {
	if 0 <= r.ContentLength && r.ContentLength < largeBody {
		return func() {}
	}
	data, err := io.ReadAll(&accounted{r.Body, &s.pending})
	r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(data), failing{err}))
	forget := func() { s.pending.Add(-int64(len(data))) }
	if len(data) < largeBody {
		return forget
	}
	select {
	case s.large <- struct{}{}:
		return func() { forget(); <-s.large }
	case <-ctx.Done():
		r.Body = http.NoBody
		return forget
	}
}

// accounted is a body whose bytes count against maxPending.
type accounted struct {
	io.Reader
	pending *atomic.Int64
}

func (a *accounted) Read(p []byte) (int, error) {
	n, err := a.Reader.Read(p)
	if a.pending.Add(int64(n)) > maxPending {
		return n, &apierrors.Unavailable{Reason: fmt.Sprintf("large requests that wait take more than %d MiB "+
			"together; try again", maxPending>>20)}
	}
	return n, err
}

// failing is the end of a body that could not be read completely, or io.EOF.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) {
	if f.err == nil {
		return 0, io.EOF
	}
	return 0, f.err
}

// observe adds an endpoint to status and metrics.
func (s *Server) observe(e serve.Endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.RequiresAuth() {
		s.guarded = append(s.guarded, e)
	}
}

// conditions returns the conditions of the server's own endpoints.
func (s *Server) conditions() (out []v1alpha1.Condition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.guarded {
		out = append(out, e.Condition())
	}
	return out
}

// isFeed reports whether r is a request to a module with a body of lines that the client sends as they occur.
func isFeed(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/v1/modules/") && r.Header.Get("Content-Type") == "application/x-ndjson"
}

// isFollowed reports whether r is a request for samples or events without an end.
func isFollowed(r *http.Request) bool {
	switch r.URL.Path {
	case "/v1/history", "/v1/events", "/v1/flows":
		return r.URL.Query().Get("follow") != ""
	}
	return false
}

// unlimited removes the time limits of a request, if possible.
func unlimited(w http.ResponseWriter) {
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Time{})
	_ = c.SetWriteDeadline(time.Time{})
}

func (s *Server) recover(w http.ResponseWriter, r *http.Request) {
	reason := recover()
	if reason == nil {
		return
	}
	if reason == http.ErrAbortHandler { // a module's stream ended because its reader disconnected: not an error
		panic(reason)
	}
	s.log.Error("panic in a request", "method", r.Method, "path", r.URL.Path, "panic", reason,
		"stack", string(debug.Stack()))
	writeProblem(w, fmt.Errorf("internal error; the agent's log has the details: %v", reason))
}

// serveModule forwards requests below a module to its control plane.
func (s *Server) serveModule(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	http.StripPrefix("/v1/modules/"+name, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.backend.ServeModule(w, r, name); err != nil {
			writeProblem(w, err)
		}
	})).ServeHTTP(w, r)
}

func (s *Server) serveHealth(w http.ResponseWriter, r *http.Request) {
	if _, err := s.backend.Status(r.Context()); err != nil {
		writeProblem(w, &apierrors.Unavailable{Reason: err.Error()})
		return
	}
	fmt.Fprintln(w, "ok")
}

// serveUnknown answers unknown paths, and methods that a path does not support.
func (s *Server) serveUnknown(w http.ResponseWriter, r *http.Request) {
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodPost, http.MethodPatch, http.MethodDelete} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := s.mux.Handler(other); strings.HasPrefix(pattern, method+" ") {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		writeProblem(w, &apierrors.NotFound{Kind: "path", Name: r.URL.Path})
		return
	}
	list := strings.Join(allowed, ", ")
	w.Header().Set("Allow", list)
	writeProblem(w, newProblem(typeInvalid, http.StatusMethodNotAllowed, r.URL.Path+" has only "+list))
}

// serveMetrics answers a scrape, compressed if the client accepts that. Errors of a metric are logged, and the other
// metrics are served.
func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	all := promtext.Set{Protobuf: wantsProtobuf(r.Header.Get("Accept"))}
	s.backend.Collect(&all)
	s.collect(&all)
	all.Process()
	data, err := all.Encode()
	if err != nil {
		s.log.Warn("some metrics are omitted", "error", err)
	}
	w.Header().Set("Content-Type", all.ContentType())
	w.Header().Set("Vary", "Accept, Accept-Encoding")
	var out io.Writer = w
	if accepted := r.Header.Get("Accept-Encoding"); strings.Contains(accepted, "gzip") &&
		!strings.Contains(accepted, "gzip;q=0") {
		w.Header().Set("Content-Encoding", "gzip")
		packed := gzip.NewWriter(w)
		defer packed.Close()
		out = packed
	}
	_, _ = out.Write(data) // fails if the client is gone
}

// wantsProtobuf reports whether a client prefers protobuf, like Prometheus when it scrapes native histograms. Clients
// that accept anything get the text format.
func wantsProtobuf(accept string) bool {
	protobuf, text := 0.0, 0.0
	for accepted := range strings.SplitSeq(accept, ",") {
		kind, params, err := mime.ParseMediaType(accepted)
		if err != nil {
			continue
		}
		quality := 1.0
		if q, err := strconv.ParseFloat(params["q"], 64); err == nil {
			quality = q
		}
		switch {
		case kind == "application/vnd.google.protobuf":
			if params["encoding"] == "delimited" && params["proto"] == "io.prometheus.client.MetricFamily" {
				protobuf = max(protobuf, quality)
			}
		case strings.HasPrefix(kind, "text/"):
			text = max(text, quality)
		}
	}
	return protobuf > 0 && protobuf >= text
}

// collect adds the metrics of the server's own endpoints.
func (s *Server) collect(out *promtext.Set) {
	open, refused, failed := s.counts()
	out.Gauge("kerb_api_connections", "Open connections of the API's TCP endpoint.", open)
	out.Counter("kerb_api_connections_refused_total",
		"Connections of the API's TCP endpoint closed at the limit of one address.", refused)
	out.Counter("kerb_api_authentication_failures_total",
		"Requests and TLS handshakes of the API's TCP endpoint without valid credentials.", failed)
}

// counts returns the counters of all TCP endpoints.
func (s *Server) counts() (open, refused, failed float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.guarded {
		o, r, f := e.Stats()
		open, refused, failed = open+o, refused+r, failed+f
	}
	return open, refused, failed
}

// Listen opens all configured listeners: the socket, and TCP if configured.
func Listen(c config.Config) ([]serve.Endpoint, error) {
	socket, err := serve.ListenUnix(c.Paths.Socket(), c.SocketGroup)
	if err != nil || c.TCP == nil {
		return []serve.Endpoint{{Listener: socket}}, err
	}
	tcp, err := serve.ListenTCP(*c.TCP)
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	c.Reloads.Subscribe(func(next config.Config) error {
		if next.TCP == nil {
			return nil // the listener stays open until a restart
		}
		return tcp.Reload(*next.TCP)
	})
	return []serve.Endpoint{{Listener: socket}, tcp}, nil
}

// Run opens the listeners of c, calls ready, and serves backend until ctx ends.
func Run(ctx context.Context, c config.Config, backend Backend, log *slog.Logger, ready func()) error {
	endpoints, err := Listen(c)
	if err != nil {
		return err
	}
	ready()
	return New(backend, log).Serve(ctx, endpoints...)
}
