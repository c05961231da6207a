// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/kubefleet"
)

// watches are plain watches of ClusterModules, each on a separate connection: the cost of the API server to deliver a
// change to as many clients.
type watches struct {
	*cluster
	number int

	mu     sync.Mutex
	seen   map[string][]time.Time // by mark
	failed error
}

func newWatches(ctx context.Context, n int) (*watches, error) {
	c, err := open(watchPrefix)
	if err != nil {
		return nil, err
	}
	w := &watches{cluster: c, number: n, seen: map[string][]time.Time{}}
	return w, c.CloseOn(w.start(ctx))
}

func (w *watches) start(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	w.Later(func() error { cancel(); running.Wait(); return nil })
	const first = "first"
	if err := w.apply(first); err != nil {
		return err
	}
	for range w.number {
		running.Go(func() {
			if err := w.watch(ctx); ctx.Err() == nil {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.failed = errors.Join(w.failed, err)
			}
		})
	}
	return w.await(ctx, first)
}

func (w *watches) apply(mark string) error {
	return kubefleet.Apply(w.api, "web", "{package: {name: firewall}, config: {mark: "+mark+"}, attach: {pods: {}}}")
}

// watch records the first time of each mark, until the context ends.
func (w *watches) watch(ctx context.Context) error {
	client := w.api.Client()
	defer client.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.api.URL+
		"/apis/kerb.dev/v1alpha1/clustermodules?watch=1&resourceVersion=0&timeoutSeconds=3600", nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("watch: the server replied %s", answer.Status)
	}
	last := ""
	for events := json.NewDecoder(answer.Body); ; {
		var event struct {
			Object struct {
				Spec struct{ Config struct{ Mark string } }
			}
		}
		if err := events.Decode(&event); err != nil {
			return fmt.Errorf("watch: the connection was closed: %w", errors.Join(err, io.ErrUnexpectedEOF))
		}
		if mark := event.Object.Spec.Config.Mark; mark != last {
			last = mark
			w.arrive(mark)
		}
	}
}

func (w *watches) arrive(mark string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[mark] = append(w.seen[mark], time.Now())
}

func (w *watches) arrived(mark string) ([]time.Time, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.seen[mark]), w.failed
}

func (w *watches) await(ctx context.Context, mark string) error {
	return kubefleet.Await(ctx, mark+" is with all watches", func() (bool, error) {
		at, err := w.arrived(mark)
		return len(at) >= w.number, err
	})
}

func (w *watches) server() *cluster { return w.cluster }

func (w *watches) change(ctx context.Context, mark string) (took []time.Duration, err error) {
	began := time.Now()
	if err := w.apply(mark); err != nil {
		return nil, err
	}
	if err := w.await(ctx, mark); err != nil {
		return nil, err
	}
	all, err := w.arrived(mark)
	for _, at := range all {
		took = append(took, at.Sub(began))
	}
	return took, err
}

func (w *watches) settle(context.Context) error { return nil }

func (w *watches) memory() ([]bench.Sample, error) { return nil, nil }
