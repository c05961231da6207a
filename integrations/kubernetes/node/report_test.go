// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch/watchtest"
)

// A status that the API server could not store, for example because etcd timed out, is written again within seconds:
// the waves of a rollout wait for it.
func TestStatusIsWrittenAgainSoon(t *testing.T) {
	var writes atomic.Int32
	stored := make(chan struct{})
	kube := watchtest.Client(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method != http.MethodPatch:
			w.WriteHeader(http.StatusNotFound)
		case writes.Add(1) == 1:
			w.WriteHeader(http.StatusInternalServerError)
		default:
			close(stored)
		}
	}))
	r := newReporter(kube, "n1", slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.run(ctx) }()
	r.set(api.KerbNodeStatus{Kernel: "6.1.0"})
	select {
	case <-stored:
	case <-time.After(20 * time.Second):
		t.Errorf("%d writes in 20 s", writes.Load())
	}
	cancel()
	<-ended
}

// If the API server stored a status but its response was lost, a change back to the earlier status is written, too.
func TestStatusAfterLostResponse(t *testing.T) {
	var mu sync.Mutex
	var stored struct {
		Status api.KerbNodeStatus `json:"status"`
	}
	writes := make(chan string, 100)
	kube := watchtest.Client(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.Method == http.MethodPatch {
			stored.Status = api.KerbNodeStatus{}
			if err := json.NewDecoder(r.Body).Decode(&stored); err != nil {
				t.Error(err)
			}
			if writes <- stored.Status.Kernel; stored.Status.Kernel == "lost" {
				w.WriteHeader(http.StatusInternalServerError)
			}
			return
		}
		_ = json.NewEncoder(w).Encode(stored)
	}))
	r := newReporter(kube, "n1", slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.run(ctx) }()
	for _, kernel := range []string{"first", "lost", "first"} {
		r.set(api.KerbNodeStatus{Kernel: kernel})
		select {
		case got := <-writes:
			if got != kernel {
				t.Errorf("%s is written, want %s", got, kernel)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s is not written", kernel)
		}
	}
	cancel()
	<-ended
}
