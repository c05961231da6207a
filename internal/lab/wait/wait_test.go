// SPDX-License-Identifier: Apache-2.0

package wait

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// failing records the error of a failed test.
type failing struct {
	testing.TB
	text string
}

func (f *failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	f.text = fmt.Sprintf(format, args...)
	panic(f)
}

func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		Until(t, "two seconds have passed", func() bool { return time.Since(begin) >= 2*time.Second })
		if took := time.Since(begin); took > 2*time.Second+pause {
			t.Errorf("it returned after %v", took)
		}
	})
}

func TestUntilFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, n := &failing{TB: t}, 0
		defer func() {
			const want = "waited 1m0s, and still not: there are none\nlast seen: 12002\nlast seen: {n:7}"
			if recover() != f || f.text != want {
				t.Errorf("the error is %q, want %q", f.text, want)
			}
		}()
		Until(f, "there are none", func() bool { n++; return false },
			func() any { return n }, func() any { return struct{ n int }{7} })
	})
}
