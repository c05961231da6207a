// SPDX-License-Identifier: Apache-2.0

package costs

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/pkttest"
	"github.com/kerb-edge/kerb/modules"
	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

const (
	file      = "verified.txt"
	release   = "6.12." // of the kernel on which the file was made
	tolerance = 2       // percent
)

//go:embed verified.txt
var verified string

// callsSuffix is the suffix of the names of helper call counts.
const callsSuffix = " calls"

// parse reads lines of a name, a number of instructions and, of executed ones, a number of helper calls.
func parse(t testing.TB, text string) map[string]int {
	t.Helper()
	costs := map[string]int{}
	for line := range strings.Lines(text) {
		var name string
		var n, calls int
		if strings.HasPrefix(line, "#") {
			continue
		}
		switch read, err := fmt.Sscan(line, &name, &n, &calls); {
		case read == 3:
			costs[name+callsSuffix] = calls
		case read != 2:
			t.Fatalf("%q: %v", line, err)
		}
		costs[name] = n
	}
	return costs
}

// worse reports whether a cost exceeds the one in the file by more than the tolerance.
func worse(now, then int) bool { return now*100 > then*(100+tolerance) }

func TestWorse(t *testing.T) {
	if worse(1020, 1000) || !worse(1021, 1000) || worse(1, 1000) || !worse(1, 0) {
		t.Error("more than 2% is worse, and nothing else")
	}
}

// TestVerified also prints the lines of the file, from which `make costs UPDATE=1` creates it.
func TestVerified(t *testing.T) {
	sdktest.NeedRoot(t)
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	if r := unix.ByteSliceToString(name.Release[:]); !strings.HasPrefix(r, release) {
		t.Skipf("%s has the numbers of Linux %s, this is %s: make costs", file, release, r)
	}
	limits := parse(t, verified)
	for _, f := range fixtures {
		for _, hook := range f.hooks {
			for _, dir := range directions {
				n := count(t, hook, dir, f.modules)
				if n == 0 {
					continue
				}
				key := fmt.Sprintf("%s/%s/%s", strings.TrimPrefix(f.name+"-chain", "chain-"), hook, dir)
				t.Logf("cost: %s %d", key, n)
				check(t, limits, key, n, "instructions verified")
			}
		}
	}
	for key := range limits {
		t.Errorf("%s has %s, which is no chain here", file, key)
	}
}

// check fails if a cost is worse than in the file.
func check(t testing.TB, limits map[string]int, key string, n int, what string) {
	t.Helper()
	if then, known := limits[key]; !known || worse(n, then) {
		t.Errorf("%s: %d %s, %d in the file. If it has to be: make costs UPDATE=1, and commit the file with the change "+
			"and a line \"Cost: why\" in the message", key, n, what, then)
	}
	delete(limits, key)
}

// count returns how many instructions the verifier processed to accept a chain, or 0 for one without programs in a
// direction.
func count(t testing.TB, hook string, dir chain.Direction, of []member) int {
	t.Helper()
	l := loadModules(t, hook, dir, of)
	if l == nil {
		return 0
	}
	defer l.Close()
	if l.Parts != 1 {
		t.Fatalf("%v: the chain has %d programs, but only the first would count", of, l.Parts)
	}
	return instructions(t, l.Program)
}

func instructions(t testing.TB, p *ebpf.Program) int {
	t.Helper()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	n, known := info.VerifiedInstructions()
	if !known {
		t.Fatal("the kernel does not say how many instructions it verified")
	}
	return int(n)
}

// member is a built-in module with a config.
type member struct{ module, config string }

// load returns a built-in package with a config, as the agent would deploy it.
func load(t testing.TB, of member) (dataplane.Module, sdk.Compiled) {
	t.Helper()
	name := of.module
	dir, err := fs.Sub(modules.Packages(), name)
	if err != nil {
		t.Fatal(err)
	}
	p, err := pkgs.OpenFS(dir, name)
	if err != nil {
		t.Fatal(err)
	}
	m := pkttest.ModuleOf(p)
	var given map[string]any
	if err := json.Unmarshal([]byte(of.config), &given); err != nil {
		t.Fatalf("config of %s: %v", name, err)
	}
	config, err := p.WithDefaults(given)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	compiled, err := modules.Controls()[name].Compile(text)
	if err != nil {
		t.Fatal(err)
	}
	m.Settings, m.Fill = compiled.Settings(), compiled.Fill
	return m, compiled
}

var reason = regexp.MustCompile(`(?m)^Cost: \S`)

// unexplained returns the chains that cost more after a commit than before, if its message does not state a reason.
func unexplained(before, after map[string]int, message string) (names []string) {
	for name, n := range after {
		if then, known := before[name]; known && n > then && !reason.MatchString(message) {
			names = append(names, name)
		}
	}
	return names
}

func TestUnexplained(t *testing.T) {
	less, more := map[string]int{"a": 1}, map[string]int{"a": 2, "new": 3}
	if got := unexplained(less, more, "a: b\n\nCosts"); len(got) != 1 || got[0] != "a" {
		t.Errorf("without a reason: %q", got)
	}
	if got := unexplained(less, more, "a: b\n\nCost: IPv6\n"); got != nil {
		t.Errorf("with a reason: %q", got)
	}
	if got := unexplained(more, less, "a: b"); got != nil {
		t.Errorf("cheaper: %q", got)
	}
}

// TestCommitsSayWhy checks the last 20 commits that changed a file. It cannot check the last commit of a shallow clone.
func TestCommitsSayWhy(t *testing.T) {
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", args...).Output()
		return string(out), err
	}
	for _, file := range []string{file, "executed.txt"} {
		commits, err := git("log", "-20", "--format=%H", "--", file)
		if err != nil {
			t.Skip("not in a git repository")
		}
		for _, c := range strings.Fields(commits) {
			before, err := git("show", c+"^:./"+file)
			if err != nil {
				continue // the first
			}
			after, err := git("show", c+":./"+file)
			if err != nil {
				continue // removed
			}
			message, err := git("log", "-1", "--format=%B", c)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range unexplained(parse(t, before), parse(t, after), message) {
				t.Errorf("commit %s: %s costs more, and no line \"Cost: why\" says why", c[:12], name)
			}
		}
	}
}
