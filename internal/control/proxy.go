// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"path"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/sdk"
)

// ServeHTTP forwards a request to the module's own routes. The path is the one below the module's. If there is no
// control plane to forward to, it returns an error, and writes no answer.
func (p *Supervisor) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	if isReserved(r.URL.Path) {
		return &apierrors.NotFound{Kind: "path", Name: r.URL.Path}
	}
	now := p.ready(r.Context())
	if now == nil {
		return &apierrors.Unavailable{Reason: "control plane of module " + p.module + " does not run: " + p.State().Reason}
	}
	var failed error
	proxy := httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL.Scheme, pr.Out.URL.Host = "http", "control"
			pr.Out.Header.Del("Authorization") // the module must not see the agent's secrets
		},
		Transport:    now.transport,
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { failed = now.explain(err) },
		ErrorLog:     slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
	proxy.ServeHTTP(w, r)
	if failed != nil {
		return &apierrors.Unavailable{Reason: "control plane of module " + p.module + ": " + failed.Error()}
	}
	return nil
}

// patience is how long a request waits for a control plane that is just starting, for example after a start of the
// agent.
const patience = 3 * time.Second

// ready returns the run once it works on its map set, after a while in whatever state it is, or nil if there is none.
func (p *Supervisor) ready(ctx context.Context) *run {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		p.mu.Lock()
		s, progress, r := p.state, p.progress, p.run
		p.mu.Unlock()
		if s.Started && r != nil || s.Restarts > 0 {
			return r
		}
		select {
		case <-progress:
		case <-ctx.Done():
			return r
		}
	}
}

// isReserved reports whether a path is reserved for the agent, in any spelling.
func isReserved(name string) bool {
	return strings.HasPrefix(path.Clean("/"+name)+"/", sdk.PathPrefix)
}

// Query requests one of the module's own routes, with parameters, and decodes the answer. An error in the parameters is
// an *apierrors.Invalid.
func (p *Supervisor) Query(ctx context.Context, route string, answer any) error {
	r := p.ready(ctx)
	if r == nil {
		return &apierrors.Unavailable{Reason: "control plane of module " + p.module + " does not run: " + p.State().Reason}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://control/"+route, http.NoBody)
	if err != nil {
		return err
	}
	res, err := r.transport.RoundTrip(req)
	if err != nil {
		return &apierrors.Unavailable{Reason: "control plane of module " + p.module + ": " + r.explain(err).Error()}
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, sdk.MaxBody))
	if err != nil {
		return r.explain(err)
	}
	if res.StatusCode != http.StatusOK {
		var problem struct{ Detail string }
		_ = json.Unmarshal(data, &problem)
		if res.StatusCode == http.StatusBadRequest && problem.Detail != "" {
			return &apierrors.Invalid{Reason: problem.Detail}
		}
		return &apierrors.Unavailable{Reason: "module " + p.module + " answered with " + res.Status + " " + problem.Detail}
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return fmt.Errorf("answer of module %s: %w", p.module, err)
	}
	return nil
}
