// SPDX-License-Identifier: Apache-2.0

// Package seed makes random tests repeatable: each logs its seed, and KERB_SEED repeats it.
package seed

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Variable is the environment variable that sets the seed of every random test of a run.
const Variable = "KERB_SEED"

// Of returns the seed of a test: the value of KERB_SEED, or a random one. It is logged, so that a failure shows how to
// repeat it.
func Of(t testing.TB) uint64 {
	t.Helper()
	n, err := parse(os.Getenv(Variable))
	if err != nil {
		t.Fatalf("%s: %v; give it a number from 0 to 2^64-1, as a failed test logs it", Variable, err)
	}
	t.Logf("seed %d; repeat with: %s=%d go test -run '^%s$'", n, Variable, n, t.Name())
	return n
}

// Rand returns the random numbers of the seed of a test.
func Rand(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Of(t), 0))
}

func parse(text string) (uint64, error) {
	if text == "" {
		return rand.Uint64(), nil
	}
	return strconv.ParseUint(text, 10, 64)
}
