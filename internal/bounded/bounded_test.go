// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"errors"
	"testing"
	"time"
)

func TestAnswers(t *testing.T) {
	var c Calls
	wrong := errors.New("wrong")
	for range 2 * mostStuck {
		if n, err := Do(&c, time.Minute, func() (int, error) { return 7, wrong }); n != 7 || err != wrong {
			t.Fatalf("%d, %v", n, err)
		}
	}
}

// Those that wait for ever are limited; when they come back others can be made.
func TestStuck(t *testing.T) {
	var c Calls
	answer := make(chan struct{})
	call := func() (struct{}, error) { <-answer; return struct{}{}, nil }
	for range mostStuck {
		if _, err := Do(&c, time.Millisecond, call); !errors.Is(err, ErrSlow) {
			t.Fatal(err)
		}
	}
	if _, err := Do(&c, time.Minute, call); !errors.Is(err, ErrStuck) {
		t.Fatal(err)
	}
	close(answer)
	for ; c.waiting.Load() > 0; time.Sleep(time.Millisecond) {
	}
	if _, err := Do(&c, time.Minute, call); err != nil {
		t.Fatal(err)
	}
}
