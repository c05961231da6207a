// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
)

// A status that the API server could not store, as while etcd times out, is written again within seconds: the waves of
// a rollout wait for it.
func TestStatusIsWrittenAgainSoon(t *testing.T) {
	var writes atomic.Int32
	stored := make(chan struct{})
	kube := kubeClient(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method != http.MethodPatch:
			w.WriteHeader(http.StatusNotFound)
		case writes.Add(1) == 1:
			w.WriteHeader(http.StatusInternalServerError)
		default:
			close(stored)
		}
	})
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
