// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestBuild(t *testing.T) {
	if _, err := exec.LookPath("clang-19"); err != nil {
		t.Skip("needs clang-19")
	}
	stem := filepath.Join(t.TempDir(), "parse")
	if err := os.WriteFile(stem+".bpf.c", []byte("#include <kerb/module.h>\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, hook := range []string{".XDP", ".TC"} {
		if err := build(stem + hook + ".o"); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []string{stem + ".o", stem + ".TC", stem + ".SKB.o"} {
		if err := build(bad); err == nil || !strings.Contains(err.Error(), "names like") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
