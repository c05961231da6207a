// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/apply/fake"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/plan"
)

// atOnce is how many attach points are changed at once.
const atOnce = 8

// many is desired on many interfaces.
func many(k *fake.Kernel, interfaces int, members ...string) plan.Desired {
	points := map[chain.Point]chain.Spec{}
	for i := 1; i <= interfaces; i++ {
		k.Interfaces[i] = true
		points[tc(i)] = chainOf(chain.OnTCIngress, members...)
	}
	return desired(points)
}

// meeting is a kernel in which the first attachments, or detachments, wait for each other, as they wait for a lock that
// others have.
type meeting struct {
	*fake.Kernel
	mu             sync.Mutex
	here, most, of int
	met            chan struct{}
	alone          bool // they did not meet
}

func newMeeting(k *fake.Kernel, of int) *meeting {
	return &meeting{Kernel: k, of: of, met: make(chan struct{})}
}

func (m *meeting) meet() (leave func()) {
	m.mu.Lock()
	m.here++
	if m.most = max(m.most, m.here); m.here == m.of {
		m.of = 0
		time.AfterFunc(100*time.Millisecond, func() { close(m.met) }) // more than that may come, too, if they are let
	}
	m.mu.Unlock()
	select {
	case <-m.met:
	case <-time.After(20 * time.Second):
		m.mu.Lock()
		if m.of > 0 { // the others need not wait as long
			m.alone, m.of = true, 0
			close(m.met)
		}
		m.mu.Unlock()
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.here--
	}
}

func (m *meeting) Attach(p chain.Point, c chain.Spec) error {
	defer m.meet()()
	return m.Kernel.Attach(p, c)
}

func (m *meeting) Detach(p chain.Point) error {
	defer m.meet()()
	return m.Kernel.Detach(p)
}

// Points are attached, replaced and detached together, not more than a few at once.
func TestPointsChangeTogether(t *testing.T) {
	k := fake.New()
	first, second := many(k, 3*atOnce, "a1"), many(k, 3*atOnce, "a2")
	for _, want := range []plan.Desired{first, second, {}} {
		m := newMeeting(k, atOnce)
		if _, err := apply.Converge(m, want, strict(), slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		if m.alone || m.most != atOnce {
			t.Errorf("%d points at once, want %d", m.most, atOnce)
		}
		checkRuns(t, k, want, nil)
	}
}

// Whichever of them fails, no others begin, and all that were changed become what they were, in the opposite order.
func TestFailureAmongMany(t *testing.T) {
	const interfaces = 2 * atOnce
	for name, kind := range map[string]string{"attach": "", "replace": "a1", "detach": "a1"} {
		for n := 1; n <= interfaces; n++ {
			k := fake.New()
			was, want := plan.Desired{}, many(k, interfaces, "a2")
			if kind != "" {
				was = many(k, interfaces, kind)
			}
			if name == "detach" {
				want = plan.Desired{}
			}
			if _, err := converge(k, was, strict()); err != nil {
				t.Fatal(err)
			}
			before := observe(t, k)
			var changed, undone []string
			k.OnCall = func(call string) {
				what, point, _ := strings.Cut(call, " ")
				if fields := strings.Fields(call); what == "attach" {
					point = fields[len(fields)-1]
				} else if what != "detach" {
					return
				}
				if slices.Contains(changed, point) {
					undone = append(undone, point)
					return
				}
				if changed = append(changed, point); len(changed) == n {
					k.FailAt = k.Calls
				}
			}
			_, err := converge(k, want, strict())
			if k.OnCall = nil; !errors.Is(err, fake.ErrInjected) {
				t.Errorf("%s %d: %v", name, n, err)
			}
			if len(changed) >= n+atOnce || len(undone) != len(changed)-1 {
				t.Errorf("%s %d: %d begun, %d undone", name, n, len(changed), len(undone))
			}
			if !slices.IsSortedFunc(undone, func(a, b string) int { return byIfindex(b, a) }) {
				t.Errorf("%s %d: undone in the order %q", name, n, undone)
			}
			if diff := cmp.Diff(before, observe(t, k)); diff != "" {
				t.Errorf("%s %d: before (-), after its failure (+):\n%s", name, n, diff)
			}
		}
	}
}

// byIfindex orders the names of points, which begin with the ifindex.
func byIfindex(a, b string) int {
	number := func(point string) int {
		text, _, _ := strings.Cut(point, "_")
		n, _ := strconv.Atoi(text)
		return n
	}
	return number(a) - number(b)
}
