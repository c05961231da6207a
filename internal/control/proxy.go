// SPDX-License-Identifier: Apache-2.0

package control

import (
	"log/slog"
	"net/http"
	"net/http/httputil"
	"path"
	"strings"

	"github.com/kerb-edge/kerb/internal/fault"
	"github.com/kerb-edge/kerb/sdk"
)

// ServeHTTP hands a request on to the module's own routes. The path is the one below the module's. An error is returned,
// and nothing answered, when there is no control plane to ask.
func (p *Plane) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	if isReserved(r.URL.Path) {
		return &fault.NotFound{Kind: "path", Name: r.URL.Path}
	}
	now := p.now()
	if now == nil {
		return &fault.Unavailable{Reason: "control plane of module " + p.module + " does not run: " + p.State().Reason}
	}
	var failed error
	proxy := httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL.Scheme, pr.Out.URL.Host = "http", "control"
			pr.Out.Header.Del("Authorization") // the agent's secrets are none of the module's business
		},
		Transport:    now.transport,
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { failed = now.explain(err) },
		ErrorLog:     slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
	proxy.ServeHTTP(w, r)
	if failed != nil {
		return &fault.Unavailable{Reason: "control plane of module " + p.module + ": " + failed.Error()}
	}
	return nil
}

// isReserved tells the paths that only the agent may ask for, however they are spelled.
func isReserved(name string) bool {
	return strings.HasPrefix(path.Clean("/"+name)+"/", sdk.PathPrefix)
}
