// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"strings"
	"testing"
)

// `go generate` works on every architecture that Kerb is built on: no directive names one.
func TestGenerateIsPortable(t *testing.T) {
	for _, file := range files(t, ".go") {
		for line := range strings.Lines(read(t, file)) {
			if strings.HasPrefix(line, "//go:generate ") && (strings.Contains(line, "x86") || strings.Contains(line, "amd64")) {
				t.Errorf("%s: %s", file, line)
			}
		}
	}
}
