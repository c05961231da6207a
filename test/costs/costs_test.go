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
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

const (
	file      = "verified.txt"
	release   = "6.12." // of the kernel whose numbers the file has
	tolerance = 2       // percent
)

//go:embed verified.txt
var verified string

// chains are those of the file; "" is the chain without modules.
var chains = []struct{ module, config string }{
	{"", ""}, {"counter", "{}"}, {"firewall", `{"extensionHeaders": "deny"}`},
}

// parse reads lines of a name and a number of instructions.
func parse(t testing.TB, text string) map[string]int {
	t.Helper()
	costs := map[string]int{}
	for line := range strings.Lines(text) {
		var name string
		var n int
		if strings.HasPrefix(line, "#") {
			continue
		}
		if _, err := fmt.Sscan(line, &name, &n); err != nil {
			t.Fatalf("%s: %q: %v", file, line, err)
		}
		costs[name] = n
	}
	return costs
}

// worse reports whether a cost is above the one of the file by more than the tolerance.
func worse(now, then int) bool { return now*100 > then*(100+tolerance) }

func TestWorse(t *testing.T) {
	if worse(1020, 1000) || !worse(1021, 1000) || worse(1, 1000) || !worse(1, 0) {
		t.Error("more than 2% is worse, and nothing else")
	}
}

// TestVerified also prints the lines of the file, from which `make costs UPDATE=1` makes it again.
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
	for _, c := range chains {
		for hook, sides := range pkttest.Sides {
			for _, dir := range []chain.Direction{chain.Egress, chain.Ingress} {
				key := fmt.Sprintf("%s/%s/%s", strings.TrimPrefix(c.module+"-chain", "-"), hook, dir)
				n := count(t, sides[dir], dir, c.module, c.config)
				t.Logf("cost: %s %d", key, n)
				if then, known := limits[key]; !known || worse(n, then) {
					t.Errorf("%s: %d instructions verified, %d in %s. If it has to be: make costs UPDATE=1, and commit "+
						"the file with the change and a line \"Cost: why\" in the message", key, n, then, file)
				}
				delete(limits, key)
			}
		}
	}
	for key := range limits {
		t.Errorf("%s has %s, which is no chain here", file, key)
	}
}

// count returns how many instructions the verifier walked to accept a chain of one module, or of none.
func count(t testing.TB, side chain.Side, dir chain.Direction, module, config string) int {
	t.Helper()
	var members []dataplane.Module
	if module != "" {
		members = append(members, load(t, module, config))
	}
	l, err := dataplane.Load(side, dir, members...)
	sdktest.Explain(t, err)
	defer l.Close()
	if l.Parts != 1 {
		t.Fatalf("%s: the chain has %d programs, but only the first would count", module, l.Parts)
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

// load returns a built-in package with a config.
func load(t testing.TB, name, config string) dataplane.Module {
	t.Helper()
	dir, err := fs.Sub(modules.Packages(), name)
	if err != nil {
		t.Fatal(err)
	}
	p, err := pkgs.OpenFS(dir, name)
	if err != nil {
		t.Fatal(err)
	}
	m := pkttest.ModuleOf(p)
	if !json.Valid([]byte(config)) {
		t.Fatalf("config of %s: %s", name, config)
	}
	compiled, err := modules.Controls()[name].Compile(json.RawMessage(config))
	if err != nil {
		t.Fatal(err)
	}
	m.Settings, m.Fill = compiled.Settings(), compiled.Fill
	return m
}

var reason = regexp.MustCompile(`(?m)^Cost: \S`)

// unexplained returns the chains that cost more after a commit than before, if its message does not say why.
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

// TestCommitsSayWhy judges the last 20 commits that changed the file. Of the last commit of a shallow clone it knows
// nothing.
func TestCommitsSayWhy(t *testing.T) {
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", args...).Output()
		return string(out), err
	}
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
