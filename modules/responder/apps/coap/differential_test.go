// SPDX-License-Identifier: Apache-2.0

package coap

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/seed"
	"github.com/kerb-edge/kerb/sdk"
)

// Data plane and model must give the same answers, byte by byte, to random and corrupted requests. KERB_MUTATIONS sets
// the number (4,000 by default).
func TestAgainstModel(t *testing.T) {
	n, first := 4000, seed.Of(t)
	if v, err := strconv.Atoi(os.Getenv("KERB_MUTATIONS")); err == nil {
		n = v
	}
	for _, hook := range hooks {
		t.Run(hook.name, func(t *testing.T) {
			d := loadWith(t, hook, fuzzConfig(), amplification)
			compare(t, d, rand.New(rand.NewPCG(first, 1)), n)
		})
	}
}

// fuzzPaths have all lengths with different encodings.
var fuzzPaths = [][]string{nil, {"", ""}, {"a"}, {"a", ""}, {"sensors", "temp"}, {strings.Repeat("x", 12)},
	{strings.Repeat("x", 13)},
	{"a", strings.Repeat("b", 20), "c"}, {strings.Repeat("z", 62)}, {"a/b", "c"},
	{"1", "2", "3", "4", "5", "6", "7", "8", "9"}}

func fuzzConfig() map[string]any {
	var resources []any
	for i, p := range fuzzPaths {
		r := map[string]any{"path": formatPath(p)}
		if i%3 > 0 {
			r["contentFormat"] = []any{"application/json", 0, 300}[i%3]
		}
		if i%4 > 0 {
			r["maxAge"] = []string{"0s", "1s", "300s", "70000s", "20000000s"}[i%5]
		}
		resources = append(resources, r)
	}
	return map[string]any{"resources": resources, "hosts": []string{"sensor.example"}, "duplicates": true}
}

func compare(t *testing.T, d *device, r *rand.Rand, n int) {
	g := &generator{Rand: r, model: d.model, paths: fuzzPaths, ids: 50}
	verdicts := map[Verdict]int{}
	for i := range n {
		if r.IntN(30) == 0 {
			d.setRandom(t, g)
		}
		from := netip.MustParseAddrPort(pick(g, "192.0.2.1:1000", "192.0.2.1:1001", "192.0.2.2:1000", "[2001:db8::1]:1000",
			"[2001:db8::2]:1000"))
		g.proof = d.model.proof(from.Addr(), coarseClock(t)>>echoShift-time.Duration(r.IntN(3)))
		verdicts[d.check(t, i, from, serverOf(from), g.datagram())]++
		if t.Failed() {
			return
		}
	}
	t.Logf("%d requests: %d answered, %d passed, %d ignored", n, verdicts[Reply], verdicts[Pass], verdicts[Ignore])
	if verdicts[Reply] < n/10 || verdicts[Pass] < n/10 {
		t.Error("the generator misses what it should meet")
	}
}

// check sends a request. It queries the model at the earliest time that the data plane may have seen, and if the
// answers differ, at later times until now.
func (d *device) check(t *testing.T, i int, from, to netip.AddrPort, datagram []byte) Verdict {
	t.Helper()
	at := coarseClock(t)
	got, verdict := d.send(t, from, to, datagram)
	for now := time.Duration(sdk.Monotonic()); at < now; at = min(at+time.Millisecond, now) {
		if want, v := d.model.clone().Decide(from, to, datagram, at); v == verdict && bytes.Equal(got, want) {
			break
		}
	}
	want, wantVerdict := d.model.Decide(from, to, datagram, at)
	if verdict != wantVerdict || !bytes.Equal(got, want) {
		t.Errorf("request %d from %v: %x\ngot  %v %x\nwant %v %x", i, from, datagram, verdict, got, wantVerdict, want)
	}
	if len(got) > maxHead+MaxValue {
		t.Errorf("a reply of %d bytes", len(got))
	}
	return verdict
}

// coarseClock returns the clock of bpf_ktime_get_coarse_ns, which lags by a tick, or more if ticks are late.
func coarseClock(t *testing.T) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}

// clone returns a copy of the model, whose decisions do not change the original.
func (m *Model) clone() *Model {
	c := *m
	c.Duplicates = false
	return &c
}

func (v Verdict) String() string { return [...]string{"pass", "reply", "ignore"}[v] }

// setRandom changes or removes a random value.
func (d *device) setRandom(t *testing.T, g *generator) {
	path := formatPath(pick(g, g.paths...))
	size := pick(g, 0, 1, 2, 5, 15, 16, 17, 63, 64, 65, 200, 1023, 1024)
	switch g.IntN(6) {
	case 0:
		d.set(t, path, nil, 0)
	case 1:
		d.set(t, path, g.bytes(size), time.Duration(1+g.IntN(3))*100*time.Millisecond)
	case 2:
		d.set(t, path, g.bytes(size), time.Duration(1+g.IntN(100000))*time.Second)
	default:
		d.set(t, path, fmt.Append(nil, g.IntN(100)), 0)
	}
}
