// SPDX-License-Identifier: Apache-2.0

// Package metrics serves the metrics of kerb-kube-node and kerb-kube-controller like the agent's: only if a port is
// configured, over TLS, to clients with a token that permits nothing else. It does not need the API server.
package metrics

import (
	"context"
	"flag"
	"log/slog"
	"net/http"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/events"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
	"github.com/kerb-edge/kerb/internal/promtext"
	"github.com/kerb-edge/kerb/internal/serve"
	"github.com/kerb-edge/kerb/internal/version"
)

// work is how long a scrape may take.
const work = 10 * time.Second

// Flags defines the flags of a listener, which has no address by default.
func Flags(f *flag.FlagSet) *serve.TCP {
	c := &serve.TCP{}
	f.StringVar(&c.Address, "metrics", "", "host:port of GET /metrics, by TLS; default is none")
	f.StringVar(&c.Certificate, "metrics-certificate", "", "PEM file with the certificate of --metrics")
	f.StringVar(&c.Key, "metrics-key", "", "PEM file with its key")
	f.StringVar(&c.MetricsTokenFile, "metrics-token", "", "file with the bearer token that clients of --metrics send")
	return c
}

// Serve serves metrics until the context ends, unless c has no address. It logs errors, since the program works without
// metrics.
func Serve(ctx context.Context, c serve.TCP, collect func(*promtext.Set), log *slog.Logger) {
	if c.Address == "" {
		return
	}
	l, err := serve.ListenTCP(c)
	if err != nil {
		log.Error("metrics are not served: correct the flags --metrics, and start again", "error", err)
		return
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		var all promtext.Set
		collect(&all)
		all.Gauge("kerb_kube_build_info", "The version of the program.", 1, "version", version.Version())
		all.Process()
		data, err := all.Encode()
		if err != nil {
			log.Warn("some metrics are omitted", "error", err)
		}
		w.Header().Set("Content-Type", all.ContentType())
		_, _ = w.Write(data) // fails if the client is gone
	})
	if err := serve.Serve(ctx, mux, work, log, l); err != nil && ctx.Err() == nil {
		log.Error("metrics are no longer served", "error", err)
	}
}

// API adds the counters of a client of the API server and of a recorder of Events.
func API(out *promtext.Set, s watch.Stats, e events.Counts) {
	for r, n := range s.Requests {
		out.Counter("kerb_kube_api_requests_total", "Requests to the API server, by the code of its answer; error is none.",
			float64(n), "method", r.Method, "code", r.Code)
	}
	for resource, w := range s.Watches {
		out.Counter("kerb_kube_watch_lists_total", "Complete lists of a resource: one at the start, others when the API "+
			"server had forgotten too much.", float64(w.Lists), "resource", resource)
		out.Counter("kerb_kube_watch_errors_total", "Watches of a resource that were interrupted.", float64(w.Errors),
			"resource", resource)
		if !w.Last.IsZero() {
			Time(out, "kerb_kube_watch_last_event_timestamp_seconds", "Time of the last object or bookmark of a resource. "+
				"The API server sends one about every minute. Before the first one, the start of the first request.",
				w.Last, "resource", resource)
		}
	}
	for result, n := range map[string]int{"written": e.Written, "dropped": e.Dropped} {
		out.Counter("kerb_kube_events_total", "Events of Kubernetes that were written, or dropped to limit their number.",
			float64(n), "result", result)
	}
}

// Time adds a time, in seconds since 1970.
func Time(out *promtext.Set, name, help string, at time.Time, labels ...string) {
	out.Gauge(name, help, float64(at.UnixMilli())/1e3, labels...)
}

// Is returns the value of a boolean gauge.
func Is(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
