// SPDX-License-Identifier: Apache-2.0

// Package wait provides waiting for conditions in tests, instead of sleeping.
package wait

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Patience is the timeout for operations that usually take a few seconds at most, also on a busy or emulated machine.
const Patience = time.Minute

const pause = 5 * time.Millisecond

// Until polls ok until it returns true, and otherwise fails the test after Patience. The error says what the test
// waited for, and what each function of seen returned last.
func Until(t testing.TB, what string, ok func() bool, seen ...func() any) {
	t.Helper()
	until(t, Patience, what, ok, seen)
}

func until(t testing.TB, patience time.Duration, what string, ok func() bool, seen []func() any) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(pause) {
		if time.Now().After(end) {
			t.Fatalf("waited %v, and still not: %s%s", patience, what, last(seen))
		}
	}
}

func last(seen []func() any) string {
	var text strings.Builder
	for _, see := range seen {
		fmt.Fprintf(&text, "\nlast seen: %+v", see())
	}
	return text.String()
}
