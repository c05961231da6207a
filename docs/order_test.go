// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/pkgs"
)

// The table of orders has the built-in packages with hooks for packets, by their ranks.
func TestOrderOfPackages(t *testing.T) {
	document, err := os.ReadFile("resources.md")
	if err != nil {
		t.Fatal(err)
	}
	for row, c := range map[string]struct {
		onService bool
		direction chain.Direction
	}{
		"from a service": {true, chain.Egress}, "to a service": {true, chain.Ingress},
		"out of an interface of the node": {false, chain.Egress}, "into an interface of the node": {false, chain.Ingress},
	} {
		want := "| " + row + " | " + strings.Join(packagesInOrder(t, c.onService, c.direction), ", ") + " |"
		if !strings.Contains(string(document), want) {
			t.Errorf("resources.md lacks %q", want)
		}
	}
}

// meets reports whether packets of a direction meet the package on interfaces of services, or on those of the node.
func meets(t *testing.T, m *pkgs.Manifest, dir string, onService bool, direction chain.Direction) bool {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(dir, m.DataPlane))
	if err != nil {
		t.Fatal(err)
	}
	wanted := m.Directions.Interfaces
	if onService {
		wanted = m.Directions.Services
	}
	return strings.Contains(string(source), "KERB_"+strings.ToUpper(string(direction))+"(") &&
		(len(wanted) == 0 || slices.Contains(wanted, string(direction)))
}

// packagesInOrder names the packages of each rank, in the order in which packets meet them.
func packagesInOrder(t *testing.T, onService bool, direction chain.Direction) (out []string) {
	t.Helper()
	files, err := filepath.Glob("../modules/*/kerb.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var ranks [101][]string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m, err := pkgs.ParseManifest(file, text)
		if err != nil {
			t.Fatal(err)
		}
		if meets(t, m, filepath.Dir(file), onService, direction) {
			ranks[m.RankOn(onService)] = append(ranks[m.RankOn(onService)], m.Name)
		}
	}
	for _, names := range ranks {
		if len(names) == 0 {
			continue
		}
		if direction == chain.Ingress {
			slices.Reverse(names)
		}
		out = append(out, strings.Join(names, " and "))
	}
	if direction == chain.Ingress {
		slices.Reverse(out)
	}
	return out
}
