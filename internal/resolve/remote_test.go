// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/internal/integration/link"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/sdk"
)

// TestRemote follows a resolver in another process, which is not there at first, ends, and starts again.
func TestRemote(t *testing.T) {
	r := NewRemote("test", []netip.Prefix{netip.MustParsePrefix("10.30.0.0/16")})
	table := NewTable(quiet, "", r)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { _ = table.Run(ctx) })
	var mu sync.Mutex
	var sent []string
	process := func() (end func()) {
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.Serve(ctx, func(q link.Request) error {
				data, err := json.Marshal(q)
				mu.Lock()
				defer mu.Unlock()
				sent = append(sent, string(data))
				return err
			})
		}()
		return func() { cancel(); <-done }
	}
	expect := func(what string, want ...string) {
		t.Helper()
		wait.Until(t, what, func() bool {
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(sent, want) {
				return false
			}
			sent = nil
			return true
		}, func() any { mu.Lock(); defer mu.Unlock(); return cmp.Diff(want, sent) })
	}
	p := follow(t, table)
	look := func(addr string) {
		p.subscription.Handle(sdk.Requests{Resolve: []netip.Addr{netip.MustParseAddr(addr)}})
	}
	look("10.30.0.1")
	look("10.99.0.1") // outside of the ranges
	end := process()
	expect("what was looked up before", `{"lookup":["10.30.0.1"]}`)
	r.Take(link.Result{Put: &Record{Name: "test.a", Spec: plain("10.30.0.1", "10.18.0.1"), Keep: true}})
	look("10.30.0.2")
	expect("a lookup", `{"lookup":["10.30.0.2"]}`)
	r.Take(link.Result{NotFound: netip.MustParseAddr("10.30.0.2")})
	end()
	look("10.30.0.3")
	end = process()
	expect("what the next process starts with", `{"use":["test.a"],"lookup":["10.30.0.3"]}`)
	p.subscription.Handle(sdk.Requests{Release: []string{"test.a"}})
	look("10.30.0.5")
	expect("a lookup, and no release of what is to be kept", `{"lookup":["10.30.0.5"]}`)
	p.sync().expect("what is to be kept", p.targets("test.a"), "i0=10.18.0.1@")
	r.Take(link.Result{Put: &Record{Name: "test.a", Spec: plain("10.30.0.1", "10.18.0.1")}})
	expect("a release of what is not to be kept", `{"release":["test.a"]}`)
	p.sync().expect("what is not to be kept", p.names(), "")
	wait.Until(t, "no answer in time", func() bool {
		p.sync()
		return slices.Contains(p.unknown, netip.MustParseAddr("10.30.0.3"))
	})
	r.Take(link.Result{Put: &Record{Name: "test.b", Spec: plain("10.30.0.4")}})
	r.Take(link.Result{Delete: "test.b"})
	p.sync().expect("what is gone", p.names(), "")
	end()
}
