// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The Makefile builds the same objects in every directory: chains, and programs of benches.
func TestBuildIsReproducible(t *testing.T) {
	objects := []string{"bpf/chain.tc.o", "bpf/chain.xdp.o", "bench/chain/bare.bpf.o"}
	first, second := makeIn(t, "one", objects), makeIn(t, "another/place", objects)
	for i, name := range objects {
		if !bytes.Equal(first[i], second[i]) {
			t.Errorf("%s: two directories give two objects", name)
		}
	}
}

// makeIn builds objects in a copy of the sources.
func makeIn(t *testing.T, dir string, objects []string) (out [][]byte) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), dir)
	for _, source := range append([]string{"Makefile"}, sources(t)...) {
		data, err := os.ReadFile(filepath.Join("..", source))
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, source)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("make", append([]string{"-s"}, objects...)...)
	cmd.Dir = dir
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	for _, name := range objects {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, data)
	}
	return out
}

func sources(t *testing.T) (out []string) {
	for _, pattern := range []string{"bpf/chain*.[ch]", "bpf/include/kerb/*.h", "bench/chain/bare*"} {
		found, err := filepath.Glob(filepath.Join("..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			out = append(out, path[len("../"):])
		}
	}
	return out
}
