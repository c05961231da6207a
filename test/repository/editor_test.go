// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// With compile_flags.txt an editor finds all headers of the data planes.
func TestCompileFlags(t *testing.T) {
	if _, err := exec.LookPath("clang-19"); err != nil {
		t.Skip("needs clang-19")
	}
	sources := []string{"bpf/chain.bpf.c", "examples/ratelimit/ratelimit.bpf.c"}
	modules, err := filepath.Glob(root + "/modules/*/*.bpf.c")
	if err != nil || len(modules) == 0 {
		t.Fatal("no modules", err)
	}
	for _, source := range modules {
		sources = append(sources, source[len(root)+1:])
	}
	for _, source := range sources {
		cmd := exec.Command("clang-19", "@compile_flags.txt", "-Werror", "-fsyntax-only", source)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", source, err, out)
		}
	}
}
