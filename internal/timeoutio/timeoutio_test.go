// SPDX-License-Identifier: Apache-2.0

package timeoutio

import (
	"errors"
	"testing"
	"time"
)

func TestCallsReturn(t *testing.T) {
	var l Limiter
	wrong := errors.New("wrong")
	for range 2 * maxBlocked {
		if n, err := Do(&l, time.Minute, func() (int, error) { return 7, wrong }); n != 7 || err != wrong {
			t.Fatalf("%d, %v", n, err)
		}
	}
}

// Blocked calls are limited; new ones are possible when they have returned.
func TestBlockedCalls(t *testing.T) {
	var l Limiter
	answer := make(chan struct{})
	call := func() (struct{}, error) { <-answer; return struct{}{}, nil }
	for range maxBlocked {
		if _, err := Do(&l, time.Millisecond, call); !errors.Is(err, ErrTimeout) {
			t.Fatal(err)
		}
	}
	if _, err := Do(&l, time.Minute, call); !errors.Is(err, ErrTooManyBlocked) {
		t.Fatal(err)
	}
	close(answer)
	for ; l.running.Load() > 0; time.Sleep(time.Millisecond) {
	}
	if _, err := Do(&l, time.Minute, call); err != nil {
		t.Fatal(err)
	}
}
