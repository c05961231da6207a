// SPDX-License-Identifier: Apache-2.0

// Package serve serves HTTP on Unix sockets and TCP, with the credentials and limits that each needs. The agent's API
// and the integrations use it.
package serve

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

const (
	readTimeout  = 30 * time.Second // for the whole request
	idleTimeout  = 2 * time.Minute
	closeTimeout = 5 * time.Second // for requests under way when the server stops
)

// Serve serves a handler on all endpoints until ctx ends or one of them fails, and closes them. A request may take as
// long as work.
func Serve(ctx context.Context, handler http.Handler, work time.Duration, log *slog.Logger,
	endpoints ...Endpoint) error {
	servers := make([]*http.Server, len(endpoints))
	failed := make(chan error, len(endpoints))
	var serving sync.WaitGroup
	for i, e := range endpoints {
		servers[i] = e.server(handler, work, log)
		serving.Go(func() { failed <- servers[i].Serve(e) })
	}
	defer serving.Wait() // they close their listeners, which removes the socket
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	for _, h := range servers {
		if h.Shutdown(ending) != nil {
			err = errors.Join(err, h.Close())
		}
	}
	return err
}

func (e Endpoint) server(handler http.Handler, work time.Duration, log *slog.Logger) *http.Server {
	h := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      work + readTimeout, // a client that stops reading must not keep a stream running
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ConnContext:       e.connContext,
	}
	e.protect(h, log)
	return h
}
