// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

func TestWanted(t *testing.T) {
	tests := []string{"a_test.go"}
	for _, c := range []struct {
		p    goPackage
		want bool
	}{
		{goPackage{Name: "dataplane", Match: []string{"./internal/..."}, TestGoFiles: tests}, true},
		{goPackage{Name: "dataplane", Match: []string{"./internal/..."}, XTestGoFiles: tests}, true},
		{goPackage{Name: "dataplane", Match: []string{"./internal/dataplane"}}, false},
		{goPackage{Name: "main", Match: []string{"./modules/..."}, TestGoFiles: tests}, false},
		{goPackage{Name: "main", Match: []string{"./modules/...", "./modules/gen"}, TestGoFiles: tests}, true},
	} {
		if c.p.wanted() != c.want {
			t.Errorf("%+v: wanted is %v, want %v", c.p, !c.want, c.want)
		}
	}
}
