// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/modules"
	"github.com/kerb-edge/kerb/sdk"
)

func newPreparer(t *testing.T) *Preparer {
	return &Preparer{Log: slog.New(slog.DiscardHandler), Base: t.Context(), Catalog: pkgs.NewCatalog(modules.Packages(),
		modules.Controls()),
		Observe: func() (chain.State, error) { return chain.State{}, nil }}
}

// testModule is a module of one of the data plane's test packages, for all services.
func testModule(t *testing.T, pkg string) v1.Module {
	t.Helper()
	dir, err := filepath.Abs("../dataplane/testdata/" + pkg)
	if err != nil {
		t.Fatal(err)
	}
	return v1.Module{Metadata: v1.ObjectMeta{Name: "m"},
		Spec: v1.ModuleSpec{Package: dir, Attach: v1.Attach{Services: "*"}}}
}

// All mistakes in a spec are reported, with their fields.
func TestMistakes(t *testing.T) {
	for name, c := range map[string]struct {
		pkg    string
		change func(*v1.ModuleSpec)
		fields []string
	}{
		"none":     {"spin", func(*v1.ModuleSpec) {}, nil},
		"nothing":  {"spin", func(s *v1.ModuleSpec) { s.Attach.Services = "" }, []string{"spec.attach"}},
		"selector": {"spin", func(s *v1.ModuleSpec) { s.Attach.Services = "a=(," }, []string{"spec.attach.services"}},
		"package":  {"no-such", func(*v1.ModuleSpec) {}, []string{"spec.package"}},
		"hook":     {"spin", func(s *v1.ModuleSpec) { s.Hook = "sockets" }, []string{"spec.hook"}},
		"cgroups": {"spin", func(s *v1.ModuleSpec) { s.Attach.Cgroups = []string{"/x"} },
			[]string{"spec.attach.cgroups"}},
		"config": {"spin", func(s *v1.ModuleSpec) { s.Config = map[string]any{"steps": 4001} },
			[]string{"spec.config.steps"}},
		"sockets, closed": {"sockets", func(s *v1.ModuleSpec) { s.FailurePolicy = v1.FailClosed },
			[]string{"spec.failurePolicy"}},
		"sockets, interface": {"sockets", func(s *v1.ModuleSpec) { s.Attach.Interfaces = []string{"eth9"} },
			[]string{"spec.attach.interfaces"}},
		"several": {"spin", func(s *v1.ModuleSpec) {
			s.Attach.Services, s.Budget, s.Config = "", v1.Budget{Memory: "1X", Latency: "soon"}, map[string]any{"steps": -1}
		}, []string{"spec.attach", "spec.budget.memory", "spec.budget.latency", "spec.config.steps"}},
	} {
		m := testModule(t, c.pkg)
		c.change(&m.Spec)
		_, err := newPreparer(t).All([]v1.Module{m}, nil, false)
		var fields []string
		for _, one := range apierrors.Invalids(err) {
			fields = append(fields, one.Field)
		}
		if !slices.Equal(fields, c.fields) {
			t.Errorf("%s: mistakes in %v, want %v: %v", name, fields, c.fields, err)
		}
	}
}

// What plans and budgets know of a module follows from its package, config and spec.
func TestPrepared(t *testing.T) {
	p, m := newPreparer(t), testModule(t, "spin")
	first, err := p.All([]v1.Module{m}, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	d := first["m"]
	if d.Package != "spin" || d.Member.ID != d.Dataplane.ID || !d.Entries[chain.TC][chain.Egress] || d.Sockets {
		t.Errorf("%+v", d.Module)
	}
	if got := d.Dataplane.Settings.Constants["steps"]; got == nil || string(d.Config) != `{"steps":4000}` {
		t.Errorf("the default of the config: %v, %s", got, d.Config)
	}
	if hooks := d.AttachedHooks(); !slices.Equal(hooks, []chain.Hook{chain.TC}) {
		t.Errorf("on a veth it runs on %v", hooks)
	}
	m.Spec.Config = map[string]any{"steps": 1}
	second, err := p.All([]v1.Module{m}, first, false)
	if err != nil {
		t.Fatal(err)
	}
	other := second["m"]
	if other.Member.ID == d.Member.ID || other.Candidate().Key == d.Candidate().Key {
		t.Errorf("another config: map sets %s and %s", d.Member.ID, other.Member.ID)
	}
	if other.Pkg != d.Pkg {
		t.Error("a package that has not changed is parsed again")
	}
}

// A module that was accepted earlier and cannot run stands in chains by the policy of the module, of its package, or of
// what runs in the kernel.
func TestUnavailable(t *testing.T) {
	p := newPreparer(t)
	for pkg, closed := range map[string]bool{"counter": false, "firewall": true, "accelerator": false, "gone": true} {
		m := v1.Module{Metadata: v1.ObjectMeta{Name: "m"}, Spec: v1.ModuleSpec{Package: pkg}} // selects nothing
		if d := p.Accepted(m); d.Err == nil || !d.CannotRun || d.Member.FailClosed != closed {
			t.Errorf("%s: %v, fails closed: %t", pkg, d.Err, d.Member.FailClosed)
		}
	}
	d := p.Accepted(v1.Module{Spec: v1.ModuleSpec{Package: "tunnel"}})
	if d.Rank == nil || d.Rank(true) != 60 || d.Rank(false) != 25 {
		t.Error("the module does not stand where its package does")
	}
	gone := v1.Module{Metadata: v1.ObjectMeta{Name: "m"}, Spec: v1.ModuleSpec{Package: "gone"}}
	p.Observe = func() (chain.State, error) {
		return chain.State{Chains: []chain.Pinned{{Spec: chain.Spec{Members: []chain.Member{{Name: "m"}}}}}}, nil
	}
	if p.Accepted(gone).Member.FailClosed {
		t.Error("the module that runs in the kernel fails open")
	}
	gone.Spec.FailurePolicy = v1.FailClosed
	d = p.Accepted(gone)
	if !d.Member.FailClosed {
		t.Error("the operator's policy is closed")
	}
	if p.Again(d) != nil {
		t.Error("the package is still gone")
	}
	gone.Spec = testModule(t, "pass").Spec
	d.Resource = gone
	if again := p.Again(d); again == nil || again.Err != nil {
		t.Errorf("the package is back: %+v", again)
	}
}

func TestCgroupPaths(t *testing.T) {
	m := testModule(t, "sockets")
	m.Spec.Attach.Cgroups = []string{"/no/such/cgroup"}
	if _, err := newPreparer(t).All([]v1.Module{m}, nil, false); err == nil ||
		!strings.Contains(err.Error(), "spec.attach.cgroups[0]") {
		t.Errorf("a cgroup that does not exist: %v", err)
	}
	d := newPreparer(t).Accepted(m)
	if d.Err != nil {
		t.Fatal(d.Err)
	}
	if got := d.CgroupPaths("/root"); !slices.Equal(got, []string{"/no/such/cgroup", "/root"}) {
		t.Errorf("%v", got)
	}
	known := map[string]*Module{"m": d}
	if _, err := newPreparer(t).All([]v1.Module{m}, known, false); err != nil {
		var invalid *apierrors.Invalid
		t.Errorf("a cgroup that was there before may have gone: %v %t", err, errors.As(err, &invalid))
	}
}

// The manifest's rules reach the data plane, which knows them by the same words.
func TestMigrationRules(t *testing.T) {
	rules := map[string]string{"a": pkgs.MigrateDiscard, "b": pkgs.MigrateExtend, "c": pkgs.MigrateControl}
	d := &Module{Pkg: &pkgs.Package{Manifest: pkgs.Manifest{Maps: pkgs.MapRoles{Migrate: rules}}}}
	want := map[string]string{"a": dataplane.MigrateDiscard, "b": dataplane.MigrateExtend, "c": dataplane.MigrateControl}
	if got := d.dataplaneModule(sdk.Settings{}).Migrate; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A config that is wrong as a whole is reported as the field spec.config.
func TestConfigErrorOfNoField(t *testing.T) {
	d := &Module{}
	for field, want := range map[string]string{"": "spec.config", "rules[0].port": "spec.config.rules[0].port"} {
		var invalid *apierrors.Invalid
		if err := d.configError(&sdk.ConfigError{Field: field, Reason: "missing rules"}); !errors.As(err, &invalid) ||
			invalid.Field != want {
			t.Errorf("%v, want field %s", err, want)
		}
	}
}

// tunableModule is a prepared module of a package with tunables.
func tunableModule(t *testing.T, budget v1.Budget, settings sdk.Settings, config string) *Module {
	t.Helper()
	p, m := newPreparer(t), testModule(t, "tunable")
	m.Spec.Budget = budget
	all, err := p.All([]v1.Module{m}, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	d := all["m"]
	d.Config = json.RawMessage(config)
	d.Dataplane = d.dataplaneModule(settings)
	d.describe(settings)
	return d
}

// The answer to compile and what is read of it after a restart are of one map set.
func TestShapeAfterRestart(t *testing.T) {
	answered := sdk.Settings{Constants: map[string]any{}, MaxEntries: map[string]uint32{}, Idle: []string{},
		Tunables: map[string]any{"length": int64(9)}}
	text, err := json.Marshal(answered)
	if err != nil {
		t.Fatal(err)
	}
	var kept sdk.Settings
	if err := json.Unmarshal(text, &kept); err != nil {
		t.Fatal(err)
	}
	before, after := tunableModule(t, v1.Budget{}, answered, "{}"), tunableModule(t, v1.Budget{}, kept, "{}")
	if before.Dataplane.ID != after.Dataplane.ID || before.Values != after.Values {
		t.Errorf("map set %s, after a restart %s", before.Dataplane.ID, after.Dataplane.ID)
	}
}

// Values that the operator's budget may reject are measured. A direction that is no longer idle is a change of program.
func TestValuesAreAdmitted(t *testing.T) {
	length := func(budget v1.Budget, n int, idle ...string) *Module {
		return tunableModule(t, budget, sdk.Settings{Tunables: map[string]any{"length": n}, Idle: idle},
			fmt.Sprintf(`{"length":%d}`, n))
	}
	for latency, measured := range map[string]bool{"": false, "1us": true} {
		one, other := length(v1.Budget{Latency: latency}, 1), length(v1.Budget{Latency: latency}, 2)
		if !other.SameProgram(one) || (one.Candidate().Key != other.Candidate().Key) != measured {
			t.Errorf("budget %q: measured as %s and %s", latency, one.Candidate().Key, other.Candidate().Key)
		}
	}
	if idle := length(v1.Budget{}, 1, "egress"); length(v1.Budget{}, 2).SameProgram(idle) {
		t.Error("the program of a direction that was idle is not verified")
	}
}

// A module that was accepted runs on when another build needs more memory for it than its budget.
func TestMemoryOfAcceptedModule(t *testing.T) {
	p, m := newPreparer(t), testModule(t, "tunable")
	m.Spec.Budget.Memory = "1Ki"
	if _, err := p.All([]v1.Module{m}, nil, false); err == nil {
		t.Error("a change over the budget is accepted")
	}
	if d := p.Accepted(m); d.Err != nil {
		t.Error(d.Err)
	}
}
