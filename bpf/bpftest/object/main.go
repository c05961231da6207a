// SPDX-License-Identifier: Apache-2.0

// Command object compiles the objects that it is given by name, for tests on machines without a compiler:
// testdata/parse.XDP.o is testdata/parse.bpf.c for XDP. The flags are those that package bpftest compiles with, on
// every architecture.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kerb-edge/kerb/bpf/bpftest"
)

func main() {
	for _, object := range os.Args[1:] {
		if err := build(object); err != nil {
			fmt.Fprintln(os.Stderr, "object:", err)
			os.Exit(1)
		}
	}
}

func build(object string) error {
	stem := strings.TrimSuffix(object, ".o")
	hook := bpftest.Hook(strings.TrimPrefix(filepath.Ext(stem), "."))
	if stem == object || !slices.Contains(bpftest.Hooks, hook) {
		return fmt.Errorf("%s: give names like testdata/parse.XDP.o or testdata/parse.TC.o", object)
	}
	return bpftest.CompileObject(strings.TrimSuffix(stem, filepath.Ext(stem))+".bpf.c", object, hook)
}
