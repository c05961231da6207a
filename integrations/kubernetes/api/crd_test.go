// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

var update = flag.Bool("update", false, "write deploy/kubernetes/crds")

const (
	crds   = "../../../deploy/kubernetes/crds"
	header = "# SPDX-License-Identifier: Apache-2.0\n" +
		"# Generated: go test ./integrations/kubernetes/api -run Definitions -update\n"
)

// definition is a kind, and what its Go type does not say.
type definition struct {
	kind, plural, short string
	object              reflect.Type
	columns             []column
	status, namespaced  bool
	// rules are CEL rules by the path of the field that they check.
	rules map[string][]rule
	// bounds are keywords that tags of shared types do not have, by path.
	bounds map[string]map[string]any
	// refused are fields of other kinds that users may expect, by path, with their type and the remedy. An API server
	// drops unknown fields of objects that are not validated strictly.
	refused map[string][2]string
}

type column struct {
	Name string `json:"name"`
	Type string `json:"type"`
	Path string `json:"jsonPath"`
	Wide int    `json:"priority,omitempty"`
}

type rule struct {
	Rule    string `json:"rule"`
	Message string `json:"message"`
}

var selectorRules = []rule{
	{"!has(self.matchLabels) || self.matchLabels.all(k, !k.startsWith('kerb.dev/'))",
		"labels kerb.dev/... are Kerb's own: select by labels of pods or namespaces"},
	{"!has(self.matchLabels) || self.matchLabels.all(k, k.matches('" + labelKey + "'))", notLabelKey},
}

const (
	labelKey    = "^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$"
	notLabelKey = "not a label key: write NAME or PREFIX/NAME, for example app or example.org/tier"
	labelValue  = "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"
)

var requirementRules = []rule{
	{"(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
		"In and NotIn need at least one value; Exists and DoesNotExist take none"},
	{"!self.key.startsWith('kerb.dev/')", "labels kerb.dev/... are Kerb's own: select by labels of pods or namespaces"},
	{"self.key.matches('" + labelKey + "')", notLabelKey},
}

var moduleColumns = []column{{"Package", "string", ".spec.package.name", 0},
	{"Image", "string", ".spec.package.image", 1},
	{"Priority", "integer", ".spec.order.priority", 0}, {"Age", "date", ".metadata.creationTimestamp", 0}}

const notInModule = ": a Module selects pods of its own namespace only, by podSelector: remove it, or "

// with returns the entries of all maps.
func with[K comparable, V any](all ...map[K]V) map[K]V {
	out := map[K]V{}
	for _, m := range all {
		maps.Copy(out, m)
	}
	return out
}

// moduleRules and moduleBounds are those of both kinds of modules.
var (
	moduleName = rule{"size(self.metadata.name) <= 63 && self.metadata.name.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')",
		"metadata.name: write at most 63 lower-case letters, digits and dashes, with no dash at either end"}
	moduleRules = map[string][]rule{
		"spec.package": {{"has(self.name) != has(self.image)",
			"set exactly one: name for a package that is built into the agent, or image for one in a registry"}},
		"spec.package.image": {{"self.matches('^[a-z0-9][A-Za-z0-9.:-]*/[a-z0-9._/-]+@sha256:[0-9a-f]{64}$')",
			"name the content by its digest: registry/repository@sha256:... (kerb package push prints it); " +
				"a tag may mean something else on every node"}},
		"spec.attach.pods.namespaceSelector":                    selectorRules,
		"spec.attach.pods.namespaceSelector.matchExpressions[]": requirementRules,
		"spec.attach.pods.podSelector":                          selectorRules,
		"spec.attach.pods.podSelector.matchExpressions[]":       requirementRules,
	}
	moduleBounds = map[string]map[string]any{
		"spec.package.name":                                              {"pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"},
		"spec.order":                                                     {"default": map[string]any{}},
		"spec.order.before":                                              {"maxItems": 32},
		"spec.order.after":                                               {"maxItems": 32},
		"spec.order.before[]":                                            {"maxLength": 63},
		"spec.order.after[]":                                             {"maxLength": 63},
		"spec.attach.pods.podSelector.matchLabels":                       {"maxProperties": 16},
		"spec.attach.pods.namespaceSelector.matchLabels":                 {"maxProperties": 16},
		"spec.attach.pods.podSelector.matchLabels{}":                     {"maxLength": 63, "pattern": labelValue},
		"spec.attach.pods.namespaceSelector.matchLabels{}":               {"maxLength": 63, "pattern": labelValue},
		"spec.attach.pods.podSelector.matchExpressions[].values[]":       {"maxLength": 63, "pattern": labelValue},
		"spec.attach.pods.namespaceSelector.matchExpressions[].values[]": {"maxLength": 63, "pattern": labelValue},
	}
)

var definitions = []definition{
	{
		kind: "ClusterModule", plural: api.ClusterModules, short: "kmod", object: reflect.TypeFor[api.ClusterModule](),
		status: true,
		columns: append(slices.Clone(moduleColumns[:3]), column{"Desired", "integer", ".status.desired", 0},
			column{"Ready", "integer", ".status.ready", 0}, column{"Failed", "integer", ".status.failed", 0},
			column{"Rollout", "string", `.status.conditions[?(@.type=="RolledOut")].reason`, 0}, moduleColumns[3]),
		rules: with(moduleRules, map[string][]rule{"": {moduleName,
			{"self.metadata.name != 'kubernetes-pending'",
				"metadata.name: kubernetes-pending is Kerb's own, which denies until the labels of a pod are known: " +
					"choose another name"},
			{"!self.metadata.name.matches('" + names.ReservedModules + "')",
				"metadata.name: m-...-DIGEST is the name on nodes of a Module of a namespace: choose another name"},
		},
			"spec.rollout.previous.package":       moduleRules["spec.package"],
			"spec.rollout.previous.package.image": moduleRules["spec.package.image"],
			"spec.rollout.waves": {{"self.isSorted() && self[self.size() - 1] == 100",
				"write growing percentages, of which the last is 100: [5, 25, 50, 100]"}},
		}),
		bounds: with(moduleBounds, map[string]map[string]any{
			"spec.rollout.percent":               {"minimum": 0, "maximum": 100},
			"spec.rollout.nodes[]":               {"maxLength": 253},
			"spec.rollout.waves[]":               {"minimum": 1, "maximum": 100},
			"spec.rollout.soakSeconds":           {"minimum": 0, "maximum": 604800},
			"spec.rollout.deadlineSeconds":       {"minimum": 1, "maximum": 604800},
			"spec.rollout.maxFailed":             {"minimum": 0, "maximum": 100000},
			"status.rollout.canaries[]":          {"maxLength": 253},
			"status.conditions[].message":        {"maxLength": 1024},
			"status.problems[].message":          {"maxLength": 1024},
			"status.conditions":                  {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"type"}},
			"spec.rollout.maxDrops":              {"minimum": 0, "maximum": 1000},
			"spec.rollout.maxCost":               {"minimum": 0, "maximum": 1000000},
			"spec.rollout.maxUnready":            {"minimum": 0, "maximum": 1000},
			"spec.rollout.previous.package.name": moduleBounds["spec.package.name"],
		}),
	},
	{
		kind: "Module", plural: api.Modules, short: "nsmod", object: reflect.TypeFor[api.NamespacedModule](),
		namespaced: true, status: true,
		columns: append(slices.Clone(moduleColumns[:3]),
			column{"Ready", "string", `.status.conditions[?(@.type=="Ready")].status`, 0},
			column{"Failed", "integer", ".status.failed", 0}, moduleColumns[3]),
		rules: with(moduleRules, map[string][]rule{
			"":             {moduleName},
			"spec.rollout": {{"false", "rollout: a Module is on all nodes: remove it, or use a ClusterModule"}},
			"spec.attach.pods": {{"!has(self.namespaceSelector)",
				"namespaceSelector" + notInModule + "use a ClusterModule"}},
			"spec.package.name": {{"self in ['" + strings.Join(api.ModulePackages, "', '") + "']",
				"a Module may use " + strings.Join(api.ModulePackages, ", ") + ": use a ClusterModule for other packages"}},
			"spec.order": {{"!has(self.direction) || self.direction != 'same'",
				"direction: same would reverse the order of ClusterModules, too: remove it"}},
			"spec.budget": {{"!has(self.memory)",
				"memory: it is the node's: remove it, and the limit of the package applies"}},
		}),
		bounds: with(moduleBounds, map[string]map[string]any{
			"spec.order.priority":         {"minimum": 0, "maximum": api.MaxPriority},
			"status.conditions[].message": {"maxLength": 1024},
			"status.problems[].message":   {"maxLength": 1024},
			"status.conditions":           {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"type"}},
		}),
		refused: map[string][2]string{
			"spec.attach.services":   {"string", "services" + notInModule + "apply it to the agent of the node"},
			"spec.attach.interfaces": {"array", "interfaces" + notInModule + "apply it to the agent of the node"},
			"spec.attach.cgroups":    {"array", "cgroups" + notInModule + "apply it to the agent of the node"},
		},
	},
	{
		kind: "KerbNode", plural: api.KerbNodes, short: "knode", object: reflect.TypeFor[api.KerbNode](), status: true,
		columns: []column{{"Ready", "string", `.status.conditions[?(@.type=="Ready")].status`, 0},
			{"Reason", "string", `.status.conditions[?(@.type=="Ready")].reason`, 0},
			{"Kernel", "string", ".status.kernel", 0}, {"Arch", "string", ".status.architecture", 0},
			{"Agent", "string", ".status.agent", 1}, {"Age", "date", ".metadata.creationTimestamp", 0}},
		bounds: map[string]map[string]any{
			"status.modules[].message":    {"maxLength": 1024},
			"status.modules[].reason":     {"maxLength": 64, "pattern": "^[A-Z][A-Za-z]{0,63}$"},
			"status.conditions[].message": {"maxLength": 1024},
			"status.conditions":           {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"type"}},
			"status.checked":              {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"name"}},
			"status.updated":              {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"name"}},
			"status.modules":              {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"name"}},
		},
	},
	{
		kind: "PackageTrust", plural: api.PackageTrusts, short: "ptrust", object: reflect.TypeFor[api.PackageTrust](),
		columns: []column{{"Repositories", "string", ".spec.repositories", 0}, {"Keys", "string", ".spec.keys", 1},
			{"Age", "date", ".metadata.creationTimestamp", 0}},
		rules: map[string][]rule{
			"spec.repositories[]": {{"self.matches('^[a-z0-9][A-Za-z0-9.:-]*/([a-z0-9._-]+/)*([a-z0-9._-]+)?$')",
				notRepository}},
			"spec.keys[]": {{"self.matches('^sha256:[0-9a-f]{64}$')",
				"write the fingerprint of a public key, which kerb package keygen prints: sha256: and 64 hexadecimal digits"}},
		},
		bounds: map[string]map[string]any{
			"spec.repositories[]": {"maxLength": 300},
			"spec.keys[]":         {"maxLength": 71},
			"spec.repositories":   {"x-kubernetes-list-type": "set"},
			"spec.keys":           {"x-kubernetes-list-type": "set"},
		},
	},
	{
		kind: "ModuleRevision", plural: api.ModuleRevisions, short: "modrev",
		object: reflect.TypeFor[api.ModuleRevision](),
		columns: []column{{"Module", "string", ".spec.module", 0},
			{"Revision", "string", `.metadata.labels.kerb\.dev/revision`, 0}, {"Age", "date", ".metadata.creationTimestamp", 0}},
		rules: map[string][]rule{
			"": {{"self.metadata.name.startsWith(self.spec.module + '-')",
				"metadata.name: kerb-kube-controller writes revisions, as MODULE-HASH: apply the ClusterModule instead"}},
			"spec": {{"self == oldSelf",
				"a revision does not change: apply the ClusterModule, and kerb-kube-controller writes another one"}},
		},
	},
}

const notRepository = "write REGISTRY/REPOSITORY without tag and digest, or REGISTRY/ or REGISTRY/PATH/ with a slash " +
	"at the end for all repositories below it, in lower case"

// The definitions in deploy/kubernetes/crds are those of the Go types.
func TestDefinitionsAreCurrent(t *testing.T) {
	for _, d := range definitions {
		text, err := yaml.Marshal(plain(t, d.document(t)))
		if err != nil {
			t.Fatal(err)
		}
		want := header + string(text)
		file := filepath.Join(crds, d.plural+".yaml")
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("%s is not what the types say (-update writes it):\n%s", file, diff)
		}
	}
}

// A field that is new in the spec of the agent's modules, or in that of the cluster's, is one of both, unless it is
// named here as one that differs.
func TestSharedFields(t *testing.T) {
	differ := map[reflect.Type]string{
		reflect.TypeFor[v1.ModuleSpec]():  "Package CommonModuleSpec Attach Hook",
		reflect.TypeFor[api.ModuleSpec](): "Package CommonModuleSpec Attach Rollout",
	}
	for spec, want := range differ {
		var fields []string
		for f := range spec.Fields() {
			fields = append(fields, f.Name)
		}
		if got := strings.Join(fields, " "); got != want {
			t.Errorf("%v has the fields %s, want %s: move what is new to v1alpha1.CommonModuleSpec, or say why it is not in "+
				"the other one", spec, got, want)
		}
	}
	common := reflect.TypeFor[v1.CommonModuleSpec]()
	for spec := range differ {
		if f, _ := spec.FieldByName(common.Name()); f.Type != common || !f.Anonymous || f.Tag != "" {
			t.Errorf("%v does not embed %v", spec, common)
		}
	}
}

func (d definition) document(t *testing.T) map[string]any {
	registry := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	root := registry.SchemaFromRef(registry.Schema(d.object, true, "").Ref)
	properties := map[string]any{"apiVersion": map[string]any{"type": "string"}, "kind": map[string]any{"type": "string"},
		"metadata": map[string]any{"type": "object"}}
	used := map[string]bool{}
	required := []any{}
	for name, s := range root.Properties {
		switch {
		case name == "spec":
			required = append(required, name)
			fallthrough
		case name == "status" && d.status:
			properties[name] = d.structural(registry, s, name, used)
		}
	}
	schema := map[string]any{"type": "object", "properties": properties}
	if len(required) > 0 {
		schema["required"] = required
	}
	d.decorate(schema, "", used)
	for path := range d.rules {
		if !used[path] {
			t.Errorf("%s has rules for %s, which it has not", d.kind, path)
		}
	}
	for path := range d.bounds {
		if !used[path] {
			t.Errorf("%s has bounds for %s, which it has not", d.kind, path)
		}
	}
	version := map[string]any{"name": api.Version, "served": true, "storage": true,
		"schema": map[string]any{"openAPIV3Schema": schema}, "additionalPrinterColumns": d.columns}
	scope := "Cluster"
	if d.namespaced {
		scope = "Namespaced"
	}
	if d.status {
		version["subresources"] = map[string]any{"status": map[string]any{}}
	}
	return map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": d.plural + "." + api.Group},
		"spec": map[string]any{"group": api.Group, "scope": scope, "versions": []any{version},
			"names": map[string]any{"kind": d.kind, "listKind": d.kind + "List", "plural": d.plural,
				"singular": strings.ToLower(d.kind), "shortNames": []any{d.short}, "categories": []any{"kerb"}}},
	}
}

// structural is a schema as Kubernetes wants it: without references, and with one of properties and
// additionalProperties.
func (d definition) structural(r huma.Registry, s *huma.Schema, path string, used map[string]bool) map[string]any {
	doc := s.Description
	if s.Ref != "" {
		s = r.SchemaFromRef(s.Ref)
	}
	out := map[string]any{"type": s.Type}
	set := func(key string, value any) {
		if v := reflect.ValueOf(value); v.IsValid() && !v.IsZero() {
			out[key] = value
		}
	}
	if doc == "" {
		doc = s.Description
	}
	set("description", doc)
	set("enum", s.Enum)
	set("pattern", s.Pattern)
	set("format", strings.TrimSuffix(s.Format, "uri"))
	set("minLength", s.MinLength)
	set("maxLength", s.MaxLength)
	set("minItems", s.MinItems)
	set("maxItems", s.MaxItems)
	set("required", s.Required)
	if s.Default != nil {
		out["default"] = s.Default
	}
	switch {
	case s.Items != nil:
		out["items"] = d.structural(r, s.Items, path+"[]", used)
	case len(s.Properties) > 0:
		properties := map[string]any{}
		for name, p := range s.Properties {
			properties[name] = d.structural(r, p, path+"."+name, used)
		}
		for field, refusal := range d.refused {
			if name, ok := strings.CutPrefix(field, path+"."); ok && !strings.Contains(name, ".") {
				properties[name] = refusedField(refusal[0], refusal[1])
			}
		}
		out["properties"] = properties
	case s.Type == "object":
		if values, ok := s.AdditionalProperties.(*huma.Schema); ok && values.Type != "" {
			out["additionalProperties"] = d.structural(r, values, path+"{}", used)
		} else {
			out["x-kubernetes-preserve-unknown-fields"] = true
		}
	}
	d.decorate(out, path, used)
	return out
}

func refusedField(kind, remedy string) map[string]any {
	out := map[string]any{"type": kind, "description": "Refused", "x-kubernetes-validations": []rule{{"false", remedy}}}
	if kind == "array" {
		out["items"] = map[string]any{"type": "string"}
	}
	return out
}

func (d definition) decorate(schema map[string]any, path string, used map[string]bool) {
	used[path] = true
	if rules := d.rules[path]; rules != nil {
		schema["x-kubernetes-validations"] = rules
	}
	for key, value := range d.bounds[path] {
		schema[key] = value
	}
}

// plain is a value with maps and lists only, whose keys YAML sorts.
func plain(t *testing.T, v any) (out any) {
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &out); err != nil { // JSON is YAML, and integers stay integers
		t.Fatal(err)
	}
	return out
}
