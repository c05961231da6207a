// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// An agent whose modules select no cgroup does not wake up to examine them.
func TestCgroupsAreWatchedIfSelected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		wake, paths, looks := make(chan struct{}, 1), map[string]bool{}, 0
		go WatchCgroups(ctx, wake, func() (*Sockets, map[string]bool) {
			looks++
			return nil, paths
		}, func() { t.Error("a cgroup has changed") })
		for _, c := range []struct {
			any   bool
			looks int
		}{{false, 1}, {true, 61}, {false, 1}} {
			if c.any {
				paths["/selected"] = true
			} else {
				delete(paths, "/selected")
			}
			looks = 0
			wake <- struct{}{}
			time.Sleep(time.Minute + cgroupPeriod/2)
			synctest.Wait()
			if looks != c.looks {
				t.Errorf("selected %v: %d looks in a minute, want %d", c.any, looks, c.looks)
			}
		}
	})
}

// Of services in one network namespace the one that a trace is about is named, or else always the same.
func TestServicesInOneNamespace(t *testing.T) {
	var none *Sockets
	if got := none.ServicesByNetns(""); len(got) != 0 {
		t.Errorf("without modules on sockets: %v", got)
	}
	some := &Sockets{Cookies: map[string]uint64{"c": 1, "b": 1, "a": 1, "d": 2}}
	for preferred, want := range map[string]string{"": "a", "a": "a", "b": "b", "c": "c", "d": "a"} {
		if got := some.ServicesByNetns(preferred); got[1] != want || got[2] != "d" {
			t.Errorf("%q: %v", preferred, got)
		}
	}
}
