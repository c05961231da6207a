// SPDX-License-Identifier: Apache-2.0

package seed

import "testing"

func TestSeedIsRepeatable(t *testing.T) {
	t.Setenv(Variable, "16250801253556215813")
	if n := Of(t); n != 16250801253556215813 {
		t.Errorf("seed %d", n)
	}
	if a, b := Rand(t).Uint64(), Rand(t).Uint64(); a != b {
		t.Errorf("the same seed gives %d and %d", a, b)
	}
	t.Setenv(Variable, "")
	if a, b := Of(t), Of(t); a == b {
		t.Errorf("two runs have the same seed, %d", a)
	}
}

func TestBadSeed(t *testing.T) {
	for _, text := range []string{"-1", "0x10", "seven", "18446744073709551616"} {
		if n, err := parse(text); err == nil {
			t.Errorf("%q is seed %d", text, n)
		}
	}
}
