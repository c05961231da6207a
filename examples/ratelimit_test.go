// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/sdk/sdktest"
)

func loadRatelimit(t *testing.T, hook string, rate, burst int) *sdktest.Module {
	t.Helper()
	return sdktest.Load(t, sdktest.Options{Dir: "ratelimit", Hook: hook,
		Config: fmt.Sprintf(`{"rate": %d, "burst": %d}`, rate, burst)})
}

// passed sends n datagrams from the service and returns how many the module passed.
func passed(t *testing.T, m *sdktest.Module, n int) (count int) {
	t.Helper()
	frame := sdktest.Frame(t, sdktest.Fields{Src: netip.MustParseAddr("10.0.0.7"), Dst: netip.MustParseAddr("192.0.2.1"),
		UDP: &sdktest.Ports{Src: 40000, Dst: 53}, Payload: "hello"})
	for range n {
		switch r := m.Run("egress", frame); {
		case r.Verdict == "next":
			count++
		case r.Verdict != "drop" || r.Reason != "over_limit":
			t.Fatalf("verdict %s, reason %q", r.Verdict, r.Reason)
		}
	}
	return count
}

// After the burst, packets are dropped until new tokens are credited, at most a burst.
func TestRatelimit(t *testing.T) {
	for _, hook := range []string{"xdp", "tc"} {
		t.Run(hook, func(t *testing.T) {
			const rate, burst = 20, 10 // a token every 50 ms
			m := loadRatelimit(t, hook, rate, burst)
			earned := func(since time.Time) int { return int(time.Since(since)*rate/time.Second) + 1 }
			begun, total := time.Now(), 0
			for _, step := range []struct {
				after time.Duration
				least int
			}{{0, burst}, {time.Second / 4, 5}, {time.Second, burst}} { // the last credits 20, of which the bucket holds 10
				time.Sleep(step.after)
				at := time.Now()
				got := passed(t, m, 3*burst)
				total += got
				if got < step.least || got > burst+earned(at) || total > burst+earned(begun) {
					t.Errorf("%v later %d packets pass, at least %d are due and at most %d, and in all %d of %d", step.after,
						got, step.least, burst+earned(at), total, burst+earned(begun))
				}
			}
		})
	}
}

// The maximum rate and burst do not overflow: a full bucket stays full.
func TestRatelimitAtItsHighest(t *testing.T) {
	m := loadRatelimit(t, "tc", 10_000_000, 1_000_000)
	m.CheckVerified(50000)
	first := passed(t, m, 10)
	time.Sleep(50 * time.Millisecond) // the bucket fills
	if n := first + passed(t, m, 10); n != 20 {
		t.Errorf("%d of 20 packets pass", n)
	}
}
