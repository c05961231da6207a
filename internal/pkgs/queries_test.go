// SPDX-License-Identifier: Apache-2.0

package pkgs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/pkgs"
)

var servedPath = regexp.MustCompile(`"GET /([a-z]+)[/"]|serve\("/?([a-z]+)"`)

// The paths that built-in control planes serve are those that their manifests list.
func TestQueriesOfBuiltins(t *testing.T) {
	manifests, err := filepath.Glob("../../modules/*/" + pkgs.ManifestName)
	if err != nil || len(manifests) < 8 {
		t.Fatalf("%d manifests, %v", len(manifests), err)
	}
	for _, path := range manifests {
		dir := filepath.Dir(path)
		m, err := pkgs.ReadManifest(dir)
		if err != nil {
			t.Fatal(err)
		}
		var served, listed []string
		sources, _ := filepath.Glob(filepath.Join(dir, "*.go"))
		for _, source := range sources {
			text, err := os.ReadFile(source)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(source, "_test.go") || !strings.Contains(string(text), "http.NewServeMux") {
				continue
			}
			for _, match := range servedPath.FindAllStringSubmatch(string(text), -1) {
				served = append(served, match[1]+match[2])
			}
		}
		for name := range m.Queries {
			listed = append(listed, name)
		}
		slices.Sort(served)
		slices.Sort(listed)
		if served = slices.Compact(served); !slices.Equal(served, listed) {
			t.Errorf("%s serves %v and lists %v", m.Name, served, listed)
		}
	}
}
