// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// The manifest of a package in use is parsed again when its text has changed, and only then. Those of packages that are
// out of use are forgotten.
func TestManifestIsParsedOnce(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, ManifestName)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func() *Manifest {
		t.Helper()
		m, err := ReadManifest(dir)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	kept := func() (n int) {
		manifests.Range(func(any, any) bool { n++; return true })
		return n
	}
	before := kept()
	write(goodManifest)
	p := newPackage(read(), dir, map[string][]byte{}, nil)
	runtime.GC()
	if read() != p.manifest {
		t.Error("it is parsed again")
	}
	write(goodManifest + "directions: {services: [egress]}\n")
	if other := read(); other == p.manifest || len(other.Directions.Services) != 1 {
		t.Error("a change is not seen")
	}
	write("name: no manifest\n")
	if _, err := ReadManifest(dir); err == nil {
		t.Error("a manifest that became wrong is accepted")
	}
	runtime.KeepAlive(p)
	wait.Until(t, "manifests out of use to be forgotten", func() bool {
		runtime.GC()
		return kept() <= before
	})
}
