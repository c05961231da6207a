// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"regexp"
	"strings"
	"testing"
)

// idiom matches assembly without an instruction, or a mask in assembly, which hides a value from the compiler or the
// verifier.
var idiom = regexp.MustCompile(`asm volatile\("(|%0 [&^]= \w+|%0 &= %1)" : "\+r"`)

// Data planes hide values from the verifier with kerb/verifier.h, which documents the reasons.
func TestVerifierIdioms(t *testing.T) {
	const header = "bpf/include/kerb/verifier.h"
	for _, suffix := range []string{".c", ".h"} {
		for _, file := range files(t, suffix) {
			area, _, _ := strings.Cut(file, "/")
			if found := idiom.FindAllString(read(t, file), -1); (area == "bpf" || area == "modules") && file != header &&
				len(found) > 0 {
				t.Errorf("%s has %q: use a macro of %s", file, found, header)
			}
		}
	}
	if n := len(idiom.FindAllString(read(t, header), -1)); n != 4 {
		t.Errorf("%s has %d of the forms that are looked for, want 4", header, n)
	}
}
