// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// A node has at most MaxSets sets.
func TestMostSets(t *testing.T) {
	all := Set{}
	for i := range MaxSets + 1 {
		if err := CheckElements(all, "s0"); err != nil {
			t.Fatalf("%d sets: %v", i, err)
		}
		all.Put(ObjectOf(v1alpha1.Set{Metadata: v1alpha1.ObjectMeta{Name: fmt.Sprint("s", i)}}))
	}
	if err := CheckElements(all, "s0"); err == nil || !strings.Contains(err.Error(), "901 sets, and can have 900") {
		t.Errorf("one too many: %v", err)
	}
}
