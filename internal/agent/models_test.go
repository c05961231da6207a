// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/resource"
)

func modelOf(name string, version int) v1.Model {
	return v1.Model{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindModel},
		Metadata: v1.ObjectMeta{Name: name},
		Spec: v1.ModelSpec{
			Document: fmt.Sprintf(
				`{"format": "kerb-model/1", "name": "x", "version": %d, "extractor": "own", "kind": "logistic", "features": ["f"],
			"classes": ["a", "b"], "layers": [{"weights": [[1]], "bias": [0], "activation": "sigmoid"}]}`, version)}}
}

func (n *node) applyModels(t *testing.T, all ...v1.Model) v1.ApplyResult {
	t.Helper()
	r, err := n.Apply(t.Context(), resource.Request{Resources: resource.Objects(all...)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// hasModels waits until the probe has models in these generations.
func (n *node) hasModels(t *testing.T, want map[string]int64) {
	t.Helper()
	wait.Until(t, fmt.Sprintf("the probe has %v", want), func() bool {
		p := n.probe(t)
		return p.Running && maps.Equal(p.Models, want)
	})
}

func (n *node) modelReady(t *testing.T, name, want string) {
	t.Helper()
	var last string
	defer func() {
		if t.Failed() {
			t.Logf("model %s is %s", name, last)
		}
	}()
	wait.Until(t, name+" is "+want, func() bool {
		m, err := get(t.Context(), n, resource.Model, name)
		if err != nil {
			t.Fatal(err)
		}
		c := m.Status.Conditions[0]
		last = c.Type + " " + c.Status + " " + c.Reason + " " + c.Message
		return strings.HasPrefix(last, "Ready "+want)
	})
}

// Models reach control planes as they come, change and go, after every kind of new beginning, and without a change of
// what runs in the kernel. A rejected one is reported, and earlier ones are kept.
func TestModels(t *testing.T) {
	n := newNode(t)
	dir := probePackage(t)
	n.applyModels(t, modelOf("early", 1))
	n.modelReady(t, "early", "True NotUsed")
	n.apply(t, n.both(), module("probe", dir, "*", nil))
	n.hasModels(t, map[string]int64{"early": 1})
	before := n.moduleID(t)

	if r := n.applyModels(t, modelOf("m", 1)); len(r.Steps) != 0 || r.Changes[0].Action != "create" {
		t.Errorf("%+v", r)
	}
	n.hasModels(t, map[string]int64{"early": 1, "m": 1})
	n.modelReady(t, "m", "True InUse")
	n.modelReady(t, "early", "True NotUsed")
	if r := n.applyModels(t, modelOf("m", 1)); r.Changes[0].Action != "unchanged" {
		t.Errorf("%+v", r)
	}
	n.applyModels(t, modelOf("m", 13))
	n.modelReady(t, "m", "False Refused module probe: 13 is no good version")
	if got := n.moduleCondition(t, "Models"); got != "False SyncFailed model m: 13 is no good version" {
		t.Error(got)
	}
	n.hasModels(t, map[string]int64{"early": 1, "m": 1})
	n.applyModels(t, modelOf("m", 2))
	n.modelReady(t, "m", "True InUse")
	n.hasModels(t, map[string]int64{"early": 1, "m": 3})
	wait.Until(t, "the module's own condition", func() bool {
		return n.moduleCondition(t, "Probe") == "True Well 2 models"
	})
	if after := n.moduleID(t); after != before {
		t.Errorf("the module has another map set: %s, then %s", before, after)
	}

	n.killControl(t)
	n.hasModels(t, map[string]int64{"early": 1, "m": 3})
	n.apply(t, nil, module("probe", dir, "*", map[string]any{"number": 2})) // another map set, the same process
	n.hasModels(t, map[string]int64{"early": 1, "m": 3})
	n.stop()
	n.start(t)
	n.hasModels(t, map[string]int64{"early": 1, "m": 3})
	n.modelReady(t, "m", "True InUse")
	n.keptVersions(t)
	n.remove(t, resource.Ref{Kind: v1.KindModel, Name: "early"})
	n.hasModels(t, map[string]int64{"m": 3})
}

// keptVersions checks the versions before the third generation of m, with an agent that was started after they were
// stored.
func (n *node) keptVersions(t *testing.T) {
	t.Helper()
	m, err := get(t.Context(), n, resource.Model, "m")
	if err != nil {
		t.Fatal(err)
	}
	var kept []uint32
	for _, v := range m.Status.Versions {
		kept = append(kept, v.Version)
	}
	if !slices.Equal(kept, []uint32{13, 1}) || m.Spec != modelOf("m", 2).Spec {
		t.Errorf("kept %v in addition to %s", kept, m.Spec.Document)
	}
	if old, err := n.Version(t.Context(), resource.Model, "m", 1); err != nil || old.Content() != modelOf("m", 1).Spec {
		t.Errorf("%+v, %v", old, err)
	}
	var missing *apierrors.NotFound
	for name, generation := range map[string]int64{"m": 9, "unknown": 1} {
		if _, err := n.Version(t.Context(), resource.Model, name, generation); !errors.As(err, &missing) {
			t.Errorf("%s %d: %v", name, generation, err)
		}
	}
	all, err := list(t.Context(), n, resource.Model)
	if err != nil || len(all) != 2 || all[1].Status.Summary.Version != 2 {
		t.Errorf("%+v, %v", all, err)
	}
}

// A change of modules and models is one: with a mistake in either, nothing happens.
func TestModelsWithModules(t *testing.T) {
	n := newNode(t)
	dir := probePackage(t)
	bad := module("probe", "no-such-package", "*", nil)
	if _, err := n.Apply(t.Context(),
		resource.Request{Resources: append(resource.Objects(modelOf("m", 1)), &bad)}); err == nil {
		t.Error("applied")
	}
	if all, err := list(t.Context(), n, resource.Model); err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
	request := resource.Request{Resources: slices.Concat(resource.Objects(modelOf("m", 1)),
		resource.Objects(module("probe", dir, "*", nil)), resource.Objects(n.both()...))}
	if _, err := n.Apply(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	n.hasModels(t, map[string]int64{"m": 1})
	refs := []resource.Ref{{Kind: v1.KindModel, Name: "m"}, {Kind: v1.KindModule, Name: "probe"}}
	n.remove(t, refs...)
	if all, err := list(t.Context(), n, resource.Model); err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
}
