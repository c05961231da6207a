// SPDX-License-Identifier: Apache-2.0

package suggest_test

import (
	"testing"

	"github.com/kerb-edge/kerb/internal/suggest"
)

func TestClosest(t *testing.T) {
	known := []string{"firewall", "proxy", "attach", "hook", "list", "get"}
	for word, want := range map[string]string{
		"firewal": "firewall", "Firewall": "firewall", "atach": "attach", "lsit": "list", "gte": "get", "hok": "hook",
		"tunnel": "", "x": "", "": "", "rules": "",
	} {
		if got := suggest.Closest(word, known); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
	if got := suggest.DidYouMean("proxi", known); got != "; did you mean proxy?" {
		t.Errorf("got %q", got)
	}
}
