// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"net/http"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
)

// A Lease that is not renewed for so long may be taken. Each process measures that with its own clock, from the moment
// in which it sees the Lease change: clocks of different nodes are not compared.
const (
	leaseTime  = 15 * time.Second
	renewEvery = 5 * time.Second
)

const (
	leaseName  = "kerb-kube-controller"
	leasesPath = "/apis/coordination.k8s.io/v1/namespaces/kerb-system/leases"
	leasePath  = leasesPath + "/" + leaseName
	microTime  = "2006-01-02T15:04:05.000000Z"
	noHolder   = ""
)

// lease is coordination.k8s.io/v1 Lease.
type lease struct {
	Metadata api.ObjectMeta `json:"metadata"`
	Spec     struct {
		Holder string `json:"holderIdentity"`
	} `json:"spec"`
}

// elector implements leader election with a Lease.
type elector struct {
	client   *watch.Client
	identity string
	version  string    // of the Lease of another process
	seen     time.Time // when that came
	until    time.Time // when another process may take it from this one
	other    bool      // another process has held it since turn read this
}

// leads reports whether no other process can hold the Lease.
func (e *elector) leads() bool { return time.Now().Before(e.until) }

// while calls do with a context that ends after most, and before another process can hold the Lease.
func (e *elector) while(ctx context.Context, most time.Duration, do func(context.Context)) {
	end := time.Now().Add(most)
	if e.until.Before(end) {
		end = e.until
	}
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	do(ctx)
}

// try acquires or renews the Lease, unless another process holds it.
func (e *elector) try(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, renewEvery)
	defer cancel()
	began := time.Now()
	var l lease
	err := e.client.Get(ctx, leasePath, &l)
	if watch.IsStatus(err, http.StatusNotFound) {
		err = e.client.Create(ctx, leasesPath, map[string]any{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
			"metadata": map[string]any{"name": leaseName}, "spec": e.spec(e.identity)}, nil)
		return e.took(err, began)
	}
	if err != nil {
		return err
	}
	e.other = e.other || l.Spec.Holder != e.identity // also after the other process has released it
	if l.Spec.Holder != e.identity && l.Spec.Holder != noHolder {
		if l.Metadata.ResourceVersion != e.version {
			e.version, e.seen = l.Metadata.ResourceVersion, began
		}
		if time.Since(e.seen) < leaseTime {
			return nil
		}
	}
	return e.took(e.write(ctx, l.Metadata.ResourceVersion, e.identity), began)
}

// took notes that the Lease is this process's from a moment on, unless another one was faster.
func (e *elector) took(err error, began time.Time) error {
	if watch.IsStatus(err, http.StatusConflict) {
		return nil
	}
	if err == nil {
		e.until = began.Add(leaseTime)
	}
	return err
}

// release releases the Lease, so that another process can acquire it immediately.
func (e *elector) release(ctx context.Context) {
	var l lease
	if e.client.Get(ctx, leasePath, &l) == nil && l.Spec.Holder == e.identity {
		_ = e.write(ctx, l.Metadata.ResourceVersion, noHolder) // otherwise it ends by itself
	}
	e.until = time.Time{}
}

func (e *elector) write(ctx context.Context, version, holder string) error {
	return e.client.Merge(ctx, leasePath, map[string]any{"metadata": map[string]any{"resourceVersion": version},
		"spec": e.spec(holder)}, nil)
}

func (e *elector) spec(holder string) map[string]any {
	return map[string]any{"holderIdentity": holder, "leaseDurationSeconds": int(leaseTime / time.Second),
		"renewTime": time.Now().UTC().Format(microTime)}
}
