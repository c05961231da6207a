// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTablesAreUpToDate(t *testing.T) {
	apps, err := scan("..")
	if err != nil {
		t.Fatal(err)
	}
	header, table, err := generate(apps)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]byte{"apps_gen.h": header, "apps_gen.go": table} {
		have, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(have), string(want)); diff != "" {
			t.Errorf("%s is out of date; run: go generate ./modules/responder\n%s", name, diff)
		}
	}
}

// A directory with a header of its name is an application; other headers in it are its own.
func TestScan(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{"apps/two/two.h", "apps/two/more.h", "apps/one/one.h", "apps/none/other.h"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	apps, err := scan(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"one", "two"}, apps); diff != "" {
		t.Error(diff)
	}
	header, table, err := generate(apps)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(header), "RSP_APP_TWO = 1,") || !strings.Contains(string(table), `{"two", two.App()},`) {
		t.Errorf("%s\n%s", header, table)
	}
}
