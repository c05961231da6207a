// SPDX-License-Identifier: Apache-2.0

package nearest_test

import (
	"testing"

	"github.com/kerb-edge/kerb/internal/nearest"
)

func TestTo(t *testing.T) {
	known := []string{"firewall", "proxy", "attach", "hook", "list", "get"}
	for word, want := range map[string]string{
		"firewal": "firewall", "Firewall": "firewall", "atach": "attach", "lsit": "list", "gte": "get", "hok": "hook",
		"tunnel": "", "x": "", "": "", "rules": "",
	} {
		if got := nearest.To(word, known); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
	if got := nearest.Hint("proxi", known); got != "; did you mean proxy?" {
		t.Errorf("got %q", got)
	}
}
