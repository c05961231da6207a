// SPDX-License-Identifier: Apache-2.0

package models

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/watch"
	"github.com/kerb-edge/kerb/sdk"
)

func document(version int) string {
	return fmt.Sprintf(
		`{"format": "kerb-model/1", "name": "x", "version": %d, "extractor": "own", "kind": "logistic", "features": ["f", "g"],
		"classes": ["a", "b"], "layers": [{"weights": [[1, 2]], "bias": [0], "activation": "sigmoid"}]}`, version)
}

func modelOf(name string, generation int64, document string) v1.Model {
	return v1.Model{Metadata: v1.ObjectMeta{Name: name, Generation: generation}, Spec: v1.ModelSpec{Document: document}}
}

func newTable(t *testing.T) *Table {
	t.Helper()
	return NewTable(slog.New(slog.DiscardHandler))
}

// take responds to a subscription's next update, and returns the update as a control plane receives it.
func take(t *testing.T, f *Subscription, answer sdk.ModelAnswer, err error) (got sdk.ModelUpdate) {
	t.Helper()
	u, more := f.Next()
	if !more {
		t.Fatal("there is no update")
	}
	u.MapSet = "g"
	data, marshalErr := json.Marshal(u)
	if marshalErr != nil || len(data) > sdk.MaxBody {
		t.Fatalf("%v, %d bytes", marshalErr, len(data))
	}
	if err := json.Unmarshal(data, &got); err != nil || got.MapSet != "g" {
		t.Fatalf("%v: %s", err, data[:min(len(data), 200)])
	}
	*u.Response().(*sdk.ModelAnswer) = answer
	f.Ack(u, err)
	return got
}

func expectReady(t *testing.T, table *Table, name, want string) {
	t.Helper()
	c := table.Status(name).Conditions[0]
	if got := fmt.Sprint(c.Status, " ", c.Reason, " ", c.Message); !strings.HasPrefix(got, want) {
		t.Errorf("%s is %q, want %q", name, got, want)
	}
}

func TestTable(t *testing.T) {
	table := newTable(t)
	table.Apply([]v1.Model{modelOf("a", 1, document(1)), modelOf("b", 1, document(2))}, nil)
	expectReady(t, table, "a", "True NotUsed")
	f := table.Subscribe("guard")
	expectReady(t, table, "a", "False Pending module guard")
	if u := take(t, f, sdk.ModelAnswer{Using: []string{"a"}}, nil); !u.Reset || !u.Complete || len(u.Put) != 2 ||
		string(u.Put[0].Document) == "" {
		t.Errorf("%+v", u)
	}
	expectReady(t, table, "a", "True InUse")
	expectReady(t, table, "b", "True NotUsed")
	if s := table.Status("a"); len(s.Modules) != 1 || s.Modules[0] != "guard" || s.Summary.Version != 1 ||
		s.Summary.Shape != "2-1" {
		t.Errorf("%+v", s)
	}
	table.Apply([]v1.Model{modelOf("a", 2, document(3))}, []string{"b"})
	expectReady(t, table, "a", "False Pending")
	u := take(t, f, sdk.ModelAnswer{Refused: map[string]string{"a": "too odd"}}, nil)
	if u.Reset || len(u.Put) != 1 || u.Put[0].Generation != 2 || len(u.Remove) != 1 || u.Remove[0] != "b" {
		t.Errorf("%+v", u)
	}
	expectReady(t, table, "a", "False Refused module guard: too odd")
	if err := f.Err(); err == nil || err.Error() != "model a: too odd" {
		t.Error(err)
	}
	table.Apply([]v1.Model{modelOf("a", 3, document(4))}, nil)
	take(t, f, sdk.ModelAnswer{}, errors.New("no room"))
	expectReady(t, table, "a", "False Pending module guard: no room")
	take(t, f, sdk.ModelAnswer{Using: []string{"a"}}, nil)
	expectReady(t, table, "a", "True InUse")
	f.Close()
	expectReady(t, table, "a", "True NotUsed")
	if table.Status("b") != nil {
		t.Error("b is still there")
	}
}

// Updates with the largest documents fit the contract.
func TestLargeDocuments(t *testing.T) {
	table := newTable(t)
	text := document(1)
	large := text[:len(text)-1] + `, "description": "` + strings.Repeat("x", v1.MaxModelDocument-len(text)-30) + `"}`
	var all []v1.Model
	for i := range 4 {
		all = append(all, modelOf(fmt.Sprint("m", i), 1, large))
	}
	table.Apply(all, nil)
	f := table.Subscribe("guard")
	n := 0
	for u := (sdk.ModelUpdate{}); !u.Complete; {
		u = take(t, f, sdk.ModelAnswer{}, nil)
		n += len(u.Put)
		if len(u.Put) > watch.MaxResources {
			t.Errorf("%d at once", len(u.Put))
		}
	}
	if n != 4 {
		t.Errorf("%d were sent", n)
	}
}

func TestCheck(t *testing.T) {
	if err := Check(modelOf("m", 1, document(1))); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "{}", "[]", document(0), strings.Replace(document(1), `"own"`, `"rpl"`, 1),
		strings.Replace(document(1), "[1, 2]", "[1]", 1)} {
		var invalid *apierrors.Invalid
		if err := Check(modelOf("m", 1, bad)); !errors.As(err, &invalid) || invalid.Field != "spec.document" ||
			invalid.Resource != "Model m" {
			t.Errorf("%.50s: %v", bad, err)
		}
	}
}

func TestDescribe(t *testing.T) {
	d, err := Describe(modelOf("m", 1, document(5)).Spec)
	if err != nil || d.Version != 5 || d.Shape != "2-1" || d.TooLarge != "" || len(d.Usage) < 4 {
		t.Errorf("%+v, %v", d, err)
	}
	forest := `{"format": "kerb-model/1", "name": "x", "version": 1, "extractor": "own", "kind": "forest", "features": ["f"], "classes": ["a", "b"],
		"trees": [[{"feature": 0, "threshold": 3, "left": 1, "right": 2}, {"value": [1, 0]}, {"value": [0, 1]}], [{"value": [1, 0]}]]}`
	if d, err := Describe(v1.ModelSpec{Document: forest}); err != nil || d.Shape != "2 x depth 1" {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestTooMany(t *testing.T) {
	all, large := map[string]v1.Model{}, strings.Repeat(" ", v1.MaxModelDocument)
	for i := range MaxModels + 1 {
		all[fmt.Sprint(i)] = modelOf(fmt.Sprint(i), 1, document(1))
	}
	var invalid *apierrors.Invalid
	if err := CheckTogether(all, []v1.Model{all["3"]}); !errors.As(err, &invalid) ||
		!strings.Contains(invalid.Reason, "at most 64 models") {
		t.Errorf("%d models: %v", len(all), err)
	}
	if err := CheckTogether(all, []v1.Model{modelOf("3", 2, document(2))}); err != nil {
		t.Errorf("a change of one of too many: %v", err)
	}
	for i := range 17 {
		all[fmt.Sprint(i)] = modelOf(fmt.Sprint(i), 2, large)
	}
	if err := CheckTogether(all, []v1.Model{all["3"]}); !errors.As(err, &invalid) ||
		!strings.Contains(invalid.Reason, "MiB") {
		t.Errorf("too large together: %v", err)
	}
}

// What prevents a model from running is reported when it is loaded, not later.
func TestWarnings(t *testing.T) {
	rpl := strings.NewReplacer(`"own"`, `"rpl"`, `"f", "g"`, `"dis", "dio"`).Replace(document(1))
	modules := func(config map[string]any) map[string]v1.Module {
		return map[string]v1.Module{"guard": {Spec: v1.ModuleSpec{Package: "classifier",
			CommonModuleSpec: v1.CommonModuleSpec{Config: config}}},
			"other": {Spec: v1.ModuleSpec{Package: "firewall"}}}
	}
	for name, c := range map[string]struct {
		document string
		config   map[string]any
		want     string
	}{
		"fits":              {rpl, map[string]any{"model": "m"}, ""},
		"not referenced":    {rpl, map[string]any{"model": "n"}, ""},
		"unknown extractor": {document(1), nil, `no built-in module has the extractor own; known are ["flow" "rpl"]`},
		"other extractor": {rpl, map[string]any{"extractor": "flow", "model": "m"},
			"module guard references it but cannot use it, the previous version keeps running: it is made for the " +
				"extractor rpl"},
		"other classes": {rpl, map[string]any{"shadow": "m", "harmless": []any{"calm"}}, "harmless names the class"},
		"too large": {strings.Replace(rpl, "[0]", "[70000]", 1), nil, "only a module with evaluate.where: user " +
			"can use it: "},
		"too large, used": {strings.Replace(rpl, "[0]", "[70000]", 1), map[string]any{"model": "m"},
			"evaluate.where: user runs it in the control plane"},
		"too large, user": {strings.Replace(rpl, "[0]", "[70000]", 1),
			map[string]any{"model": "m", "evaluate": map[string]any{"where": "user"}}, ""},
	} {
		if got := strings.Join(Warnings(modelOf("m", 1, c.document), modules(c.config)),
			"\n"); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
