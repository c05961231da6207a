// SPDX-License-Identifier: Apache-2.0

package classbench

import (
	"slices"
	"testing"
)

func TestRulesAreReproducibleAndDistinct(t *testing.T) {
	for _, kind := range Kinds {
		for _, v4 := range []bool{true, false} {
			rules, err := Rules(kind, 1000, v4)
			if err != nil || len(rules) != 1000 {
				t.Fatalf("%s: %d rules, %v", kind, len(rules), err)
			}
			if again, _ := Rules(kind, 1000, v4); !slices.Equal(rules, again) {
				t.Errorf("%s: different the second time", kind)
			}
			seen := map[Rule]bool{}
			for _, r := range rules {
				if r.Src.IsValid() && r.Src.Addr().Is4() != v4 || r.Protocol == Any && r.DstPort != AnyPort {
					t.Fatalf("%s: %+v", kind, r)
				}
				r.Allow = false
				if seen[r] {
					t.Fatalf("%s: %+v twice", kind, r)
				}
				seen[r] = true
			}
		}
	}
	if _, err := Rules("other", 1, true); err == nil {
		t.Error("an unknown kind")
	}
}
