// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTableIsUpToDate(t *testing.T) {
	want, err := generate("..")
	if err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile(filepath.Join("..", output))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(have), string(want)); diff != "" {
		t.Errorf("modules/%s is out of date; run: go generate ./modules\n%s", output, diff)
	}
}

func TestGenerate(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"alpha": "package alpha\nfunc Control() sdk.Control { return nil }\n",
		"b-c":   "package bc\nfunc Control() sdk.Control { return nil }\n",
		"other": "package other\nfunc Control(x int) sdk.Control { return nil }\nfunc (t) Control() sdk.Control { " +
			"return nil }\n",
	} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "control.go"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := generate(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"alpha": alpha.Control(),`, `bc "github.com/kerb-edge/kerb/modules/b-c"`,
		`"b-c":   bc.Control(),`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "other") {
		t.Errorf("a directory without control plane is listed:\n%s", text)
	}
}

func TestAnotherDirectoryIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := run(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory without %s: %v", source, err)
	}
	if _, err := os.Stat(filepath.Join(dir, output)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s was written: %v", output, err)
	}
}
