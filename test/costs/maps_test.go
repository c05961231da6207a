// SPDX-License-Identifier: Apache-2.0

package costs

import (
	_ "embed"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkttest"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// mostMaps is the kernel's limit of maps used by a program (MAX_USED_MAPS). A chain with more is split.
const mostMaps = 64

//go:embed maps.txt
var mapsOfModules string

// TestMaps also prints the lines of the file, from which `make costs UPDATE=1` creates it. It loads chains of one
// module. A module adds its own maps to a chain with others, which a chain of three modules verifies.
func TestMaps(t *testing.T) {
	needKernel(t)
	limits := parse(t, mapsOfModules)
	used := map[string]map[string]int{} // by hook and direction, then by module or, if empty, for the chain itself
	for _, f := range fixtures {
		for _, hook := range f.hooks {
			for _, dir := range directions {
				l := loadModules(t, hook, dir, f.modules)
				if l == nil {
					continue
				}
				n, of := mapsOf(t, l.Program), hook+"/"+string(dir)
				l.Close()
				checkMaps(t, limits, f.name+"/"+of, n)
				if used[of] == nil {
					used[of] = map[string]int{}
				}
				used[of][f.name] = n
			}
		}
	}
	for _, of := range keysOf(used) {
		chainOnly := used[of]["chain"] + 1 // with modules it also has the table for its timed copy
		sum := func(names []string) int {
			n := chainOnly
			for _, name := range names {
				n += used[of][name] - chainOnly
			}
			return n
		}
		if n, known := used[of]["counter-firewall-proxy"]; known && n != sum([]string{"counter", "firewall", "proxy"}) {
			t.Errorf("%s: the maps of three modules are %d, of each %v: the combinations below are wrong", of, n, used[of])
		}
		for _, names := range combinations(used[of]) {
			if n := sum(names); n > mostMaps {
				checkMaps(t, limits, "split/"+of+"/"+strings.Join(names, "+"), n)
			}
		}
	}
	for key := range limits {
		t.Errorf("maps.txt has %s, which is no chain here, or is not split any more", key)
	}
}

// A chain of more than 64 maps is split into several programs, and one of 64 is not.
func TestMoreMapsThanAProgramMayUse(t *testing.T) {
	needKernel(t)
	fits := []member{{"counter", "{}"}, {"firewall", firewallConfig}, {"proxy", proxyConfig}}
	for _, of := range []struct {
		modules []member
		parts   int
	}{{fits, 1}, {append(fits, member{"tunnel", tunnelConfig}), 2}} {
		l := loadModules(t, "tc", chain.Egress, of.modules)
		if l.Parts != of.parts {
			t.Errorf("%v: %d programs instead of %d", of.modules, l.Parts, of.parts)
		}
		l.Close()
	}
}

// loadModules returns nil for modules without programs in a direction.
func loadModules(t testing.TB, hook string, dir chain.Direction, of []member) *dataplane.Loaded {
	t.Helper()
	var members []dataplane.Module
	for _, m := range of {
		module, _ := load(t, m)
		members = append(members, module)
	}
	if !runsOn(t, chain.Hook(hook), dir, members) {
		return nil
	}
	l, err := dataplane.Load(pkttest.Sides[hook][dir], dir, members...)
	sdktest.Explain(t, err)
	return l
}

func mapsOf(t testing.TB, p *ebpf.Program) int {
	t.Helper()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	ids, _ := info.MapIDs()
	return len(ids)
}

// checkMaps tolerates no difference: one more map may split a chain.
func checkMaps(t testing.TB, limits map[string]int, key string, n int) {
	t.Helper()
	t.Logf("maps: %s %d", key, n)
	if then, known := limits[key]; !known || n > then {
		t.Errorf("%s: %d maps, %d in the file; a program uses at most %d. If it has to be: make costs UPDATE=1", key, n, then,
			mostMaps)
	}
	delete(limits, key)
}

func keysOf[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// combinations returns all pairs and triples of modules.
func combinations(used map[string]int) (all [][]string) {
	var names []string
	for _, name := range keysOf(used) {
		if name != "chain" && !strings.Contains(name, "-") {
			names = append(names, name)
		}
	}
	for i, a := range names {
		for j, b := range names[i+1:] {
			all = append(all, []string{a, b})
			for _, c := range names[i+1:][j+1:] {
				all = append(all, []string{a, b, c})
			}
		}
	}
	return all
}
