// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// unpacked returns the content of an archive of kerb doctor.
func unpacked(t *testing.T, file string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r io.Reader = bytes.NewReader(data)
	if strings.HasSuffix(file, ".gz") {
		if r, err = gzip.NewReader(r); err != nil {
			t.Fatal(err)
		}
	}
	out := map[string]string{}
	for all := tar.NewReader(r); ; {
		h, err := all.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(all)
		if err != nil {
			t.Fatal(err)
		}
		out[strings.TrimPrefix(h.Name, "kerb-bundle/")] = string(text)
	}
}

// A bundle has the running modules and the recorded changes, but no keys; without an agent it has the rest.
func TestBundle(t *testing.T) {
	n := newRunningNode(t)
	const key = "000102030405060708090a0b0c0d0e0f"
	keyFile := filepath.Join(n.Dir, "tunnel.key")
	if err := os.WriteFile(keyFile, []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	n.apply(module("fw", "firewall", "app=db", nil), module("tun", "tunnel", "app=web", map[string]any{
		"nodes": []any{map[string]any{"address": n.Lab.Gateway4().String(), "subnets": []string{"10.18.0.0/26"}}},
		"keys":  []any{map[string]any{"id": 1, "key": map[string]any{"fromFile": keyFile}}}}))
	file := filepath.Join(t.TempDir(), "kerb.tar.gz")
	r := n.kerb("doctor", "--bundle", file)
	if r.code != 0 || r.stdout != "" || !strings.Contains(r.stderr, "files in "+file) {
		t.Fatalf("kerb doctor --bundle: %+v", r)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the bundle is %v, %v", info, err)
	}
	got := unpacked(t, file)
	for name, words := range map[string]string{"README.txt": "holds no keys", "doctor.txt": " ok, ",
		"version.txt": "kerb ", "agent/status.json": `"modules": 2`, "agent/modules.json": keyFile, "agent/services.json": n.db.Outer(),
		"agent/chains.json": `"tc-ingress"`, "agent/changes.json": `"name": "fw"`, "agent/metrics.txt": "kerb_modules 2",
		"agent/packages.json": `"firewall"`, "system/kernel.txt": "Linux version", "system/mounts.txt": "bpf",
	} {
		if !strings.Contains(got[name], words) {
			t.Errorf("%s lacks %q:\n%.400s\nmissing: %s", name, words, got[name], got["missing.txt"])
		}
		if strings.Contains(got[name], key) {
			t.Errorf("%s has a key", name)
		}
	}
	var modules []v1.Module
	if err := json.Unmarshal([]byte(got["agent/modules.json"]), &modules); err != nil || len(modules) != 2 {
		t.Errorf("modules: %d, %v", len(modules), err)
	}

	n.refused(n.kerb("doctor", "--bundle", filepath.Join(t.TempDir(), "none", "kerb.tar")), 1, "no such file or directory")
	n.Kill()
	file = filepath.Join(t.TempDir(), "kerb.tar")
	if r := n.kerb("doctor", "--bundle", file); r.code != 0 {
		t.Fatalf("kerb doctor --bundle without an agent: %+v", r)
	}
	got = unpacked(t, file)
	if !strings.Contains(got["missing.txt"], "agent/status.json: ") || !strings.Contains(got["doctor.txt"], " ok, ") {
		t.Errorf("without an agent: %q", got)
	}
}
