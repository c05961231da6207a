// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/schema"
	"github.com/kerb-edge/kerb/sdk"
)

const goodManifest = `
name: sample
version: 1.2.3
license: GPL-2.0-only
contract: 1
hooks: [xdp, tc]
`

func TestManifestDefaults(t *testing.T) {
	m, err := ParseManifest("kerb.yaml", []byte(goodManifest))
	if err != nil {
		t.Fatal(err)
	}
	want := &Manifest{Name: "sample", Version: "1.2.3", License: "GPL-2.0-only", Contract: 1, DataPlane: "sample.bpf.c",
		Hooks: []string{"xdp", "tc"}, FailurePolicy: "open"}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Errorf("want - have +\n%s", diff)
	}
}

func TestRanks(t *testing.T) {
	for text, want := range map[string][2]int{"": {40, 40}, "rank: 0": {0, 0}, "rank: 60\ninterfaceRank: 25": {60, 25},
		"interfaceRank: 0": {40, 0},
		"replies: true":    {20, 20}, "replies: true\nrank: 45": {45, 45}} {
		m, err := ParseManifest("kerb.yaml", []byte(goodManifest+text))
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]int{m.RankOn(true), m.RankOn(false)}; got != want {
			t.Errorf("%q: %v on services and on interfaces, want %v", text, got, want)
		}
	}
}

func TestDirections(t *testing.T) {
	m, err := ParseManifest("kerb.yaml", []byte(goodManifest+"directions: {services: [egress]}"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Directions{Services: []string{"egress"}}, m.Directions); diff != "" {
		t.Errorf("want - have +\n%s", diff)
	}
}

func TestManifestErrors(t *testing.T) {
	for _, c := range []struct{ name, text, field, reason string }{
		{"unknown field", goodManifest + "colour: red", "colour", "unknown field"},
		{"unknown nested field", goodManifest + "maps: {configs: [a]}", "maps.configs", "unknown field"},
		{"missing", "name: sample", "", "missing version"},
		{"wrong type", goodManifest + "frags: 3", "frags", "want boolean"},
		{"name", strings.Replace(goodManifest, "sample", "Sample!", 1), "name", "lower-case letters, digits and dashes"},
		{"version", strings.Replace(goodManifest, "1.2.3", "v1", 1), "version", "such as 1.2.0"},
		{"contract", strings.Replace(goodManifest, "contract: 1", "contract: 2", 1), "contract",
			"understands contract 1 only"},
		{"hook", strings.Replace(goodManifest, "[xdp, tc]", "[tc, socket]", 1), "hooks[1]", "want one of tc, xdp"},
		{"direction", goodManifest + "directions: {services: [out]}", "directions.services[0]",
			"want one of egress, ingress"},
		{"no direction", goodManifest + "directions: {interfaces: []}", "directions.interfaces", "has 0 items"},
		{"failure policy", goodManifest + "failurePolicy: shut", "failurePolicy", "want one of open, closed"},
		{"source elsewhere", goodManifest + "dataplane: ../x.bpf.c", "dataplane", "ends with .bpf.c"},
		{"reason of Kerb", goodManifest + "dropReasons: {mine: 3}", "dropReasons.mine", "32"},
		{"reason twice", goodManifest + "dropReasons: {a: 40, b: 40}", "dropReasons.b", "also the number of a"},
		{"view of nothing", goodManifest + "views: [{title: Ports, query: ports, kind: table}]", "views[0].query",
			"not one of the package's queries"},
		{"view of another kind", goodManifest + "views: [{title: Ports, query: ports, kind: html}]", "views[0].kind",
			"want one of table, values, series"},
		{"graph of nothing", goodManifest + "queries: {ports: x}\nviews: [{title: Ports, query: ports, kind: series}]",
			"views[0].fields", "name the numbers"},
		{"map twice", goodManifest + "maps: {config: [a], shared: [a]}", "maps.config[0]", "also in maps.shared"},
		{"memory", goodManifest + "budget: {memory: 3 apples}", "budget.memory", "write for example 16Mi"},
		{"latency", goodManifest + "budget: {latency: fast}", "budget.latency", "200ns"},
		{"feature", goodManifest + "requires: [ringbuf, warp]", "requires[1]", "not a kernel feature"},
		{"schema", goodManifest + "configSchema: {properties: {a: {type: nonsense}}}", "configSchema",
			"not a valid JSON Schema"},
		{"schema type", goodManifest + "configSchema: {type: array}", "configSchema", `type must be "object"`},
		{"schema from a file", goodManifest + "configSchema: {$ref: 'file:///etc/passwd'}", "configSchema",
			"not a valid JSON Schema"},
		{"control", goodManifest + "control: [./serve]", "control", "must be 'builtin'"},
		{"control without command", goodManifest + "control: {memory: 8Mi}", "control", "missing command"},
		{"control with a foreign field", goodManifest + "control: {command: [./run], files: [run], user: root}",
			"control.user", "unknown field"},
		{"absolute command", goodManifest + "control: {command: [/bin/sh]}", "control.command[0]", "must not be absolute"},
		{"command not among the files", goodManifest + "control: {command: [./run]}", "control.files", "does not list run"},
		{"control file outside", goodManifest + "control: {command: [sh], files: [../x]}", "control.files[0]",
			"not a path inside"},
		{"control memory", goodManifest + "control: {command: [sh], memory: much}", "control.memory",
			"write for example 16Mi"},
		{"health time", goodManifest + "control: {command: [sh], healthWithin: 1h}", "control.healthWithin", "at most 1m"},
		{"migration of a config map", goodManifest + "maps: {config: [a], migrate: {a: extend}}", "maps.migrate.a",
			"only state maps"},
		{"migration without control plane", goodManifest + "maps: {migrate: {a: control}}", "maps.migrate.a",
			"requires a control plane"},
		{"migration rule", goodManifest + "maps: {migrate: {a: guess}}", "maps.migrate.a", "want one of discard"},
		{"virtual services without control plane", goodManifest + "capabilities: [virtualServices]", "control",
			"are a control plane's"},
		{"flows without their query", goodManifest + "recordsFlows: true\nqueries: {other: x}\ncontrol: {command: [sh]}",
			"recordsFlows", "requires the query flows"},
		{"frames without control plane", goodManifest + "inject: true", "control", "are a control plane's"},
		{"frames and network", goodManifest + "capabilities: [inject]\ncontrol: {command: [sh], network: true}",
			"control.network", "cannot be combined with capability inject"},
		{"other capabilities", goodManifest + "capabilities: [modules]\ncontrol: {command: [sh]}", "capabilities[0]",
			"virtualServices"},
		{"older fields, too", goodManifest + "capabilities: []\ninject: true\ncontrol: {command: [sh]}", "capabilities",
			"replaces resources, inject and socket"},
		{"twice", goodManifest + "name: other", "", "already defined at line 2"},
		{"no mapping", "- a", "", "expected one document with named fields"},
		{"two documents", goodManifest + "---\n" + goodManifest, "", "expected one document with named fields"},
		{"octal", goodManifest + "rank: 010", "rank", "here as 8; write 8 if octal is intended"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseManifest("dir/kerb.yaml", []byte(c.text))
			var wrong *apierrors.Invalid
			if !errors.As(err, &wrong) {
				t.Fatalf("got %v", err)
			}
			if wrong.File != "dir/kerb.yaml" || wrong.Field != c.field || !strings.Contains(wrong.Reason, c.reason) {
				t.Errorf("got %q, want field %q and a reason with %q", wrong, c.field, c.reason)
			}
		})
	}
}

// All errors in a manifest are reported at once, with line and column.
func TestManifestErrorsHavePlaces(t *testing.T) {
	for text, want := range map[string]string{
		goodManifest + "faliurePolicy: open\nmaps: {\n  confg: [a]}\nfrags: 3\n": "" +
			"kerb.yaml:7:1: faliurePolicy: unknown field; known are .*; did you mean failurePolicy\\?\n" +
			"kerb.yaml:9:3: maps.confg: unknown field; known are config, migrate, shared; did you mean config\\?\n" +
			"kerb.yaml:10:1: frags: is of type number; want boolean",
		goodManifest + "budget: {memory: much, latency: soon}\nrequires: [\n  warp]\n": "" +
			"kerb.yaml:7:10: budget.memory: .*\nkerb.yaml:7:24: budget.latency: .*\nkerb.yaml:9:3: requires\\[0\\]: .*",
		goodManifest + "rank: 010\nname: x\n": "kerb.yaml:8: .*name.* already defined at line 2",
		goodManifest + "rank: 010\ndropReasons: {a: 040}\n": "" +
			"kerb.yaml:7:7: rank: 010: .* here as 8; .*\nkerb.yaml:8:18: dropReasons.a: 040: .* here as 32; .*",
	} {
		_, err := ParseManifest("kerb.yaml", []byte(text))
		if got := fmt.Sprint(err); !regexp.MustCompile("^" + want + "$").MatchString(got) {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
}

func TestRequiresUnderstandsVersionsMapsAndHelpers(t *testing.T) {
	for _, name := range []string{"kernel>=5.15", "kernel>=6.1.20", "ringbuf", "lru_hash", "lpm_trie", "bpf_loop",
		"bpf_redirect_peer"} {
		if _, err := parseFeature(name); err != nil {
			t.Error(err)
		}
	}
}

const ruleSchema = goodManifest + `
configSchema:
  type: object
  properties:
    policy: {enum: [allow, deny], default: deny}
    limits:
      type: object
      default: {}
      properties:
        flows: {type: integer, minimum: 1, default: 1000}
    rules:
      type: array
      items: {$ref: '#/$defs/rule'}
    free: {type: object}
  $defs:
    rule:
      type: object
      required: [dstPort]
      properties:
        dstPort: {type: integer, minimum: 1, maximum: 65535}
        action: {enum: [allow, deny], default: allow}
        log: {enum: [full, 'off']}
        peer: {oneOf: [{type: integer}, {type: string}]}
`

func ruleManifest(t *testing.T) *Manifest {
	t.Helper()
	m, err := ParseManifest("kerb.yaml", []byte(ruleSchema))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestConfigErrorsNameTheField(t *testing.T) {
	m := ruleManifest(t)
	rules := func(rule map[string]any) map[string]any {
		return map[string]any{"rules": []any{map[string]any{"dstPort": 1}, rule}}
	}
	for _, c := range []struct {
		name          string
		config        map[string]any
		field, reason string
	}{
		{"unknown", map[string]any{"rule": 1}, "rule", "unknown field"},
		{"unknown in items", rules(map[string]any{"dstPort": 1, "dport": 1}), "rules[1].dport", "unknown field"},
		{"range", rules(map[string]any{"dstPort": 70000}), "rules[1].dstPort", "65535"},
		{"type", rules(map[string]any{"dstPort": "80"}), "rules[1].dstPort", "is of type string; want integer"},
		{"missing", rules(map[string]any{}), "rules[1]", "missing dstPort"},
		{"enum", rules(map[string]any{"dstPort": 1, "action": "maybe"}), "rules[1].action", "want one of allow, deny"},
		{"YAML's boolean", rules(map[string]any{"dstPort": 1, "log": false}), "rules[1].log",
			"want one of full, off; YAML reads off as false unless it is in quotes"},
		{"alternatives", rules(map[string]any{"dstPort": 1, "peer": true}), "rules[1].peer",
			"want integer, or is of type boolean; want string"},
		{"nested", map[string]any{"limits": map[string]any{"flows": 0}}, "limits.flows", "want at least 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var wrong *sdk.ConfigError
			if err := validate(t, m, c.config); !errors.As(err, &wrong) {
				t.Fatalf("got %v", err)
			}
			if wrong.Field != c.field || !strings.Contains(wrong.Reason, c.reason) {
				t.Errorf("got %q, want field %q and a reason with %q", wrong, c.field, c.reason)
			}
		})
	}
}

func TestAllConfigErrorsAreTold(t *testing.T) {
	err := validate(t, ruleManifest(t), map[string]any{"a": 1, "policy": "x"})
	if n := len(err.(interface{ Unwrap() []error }).Unwrap()); n != 2 {
		t.Errorf("%d errors: %v", n, err)
	}
}

func TestDefaulted(t *testing.T) {
	config := map[string]any{"free": map[string]any{"any": 1}, "rules": []any{map[string]any{"dstPort": 80}}}
	m := ruleManifest(t)
	have := schema.FillDefaults(m.ConfigSchema, config)
	if err := validate(t, m, have); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"policy": "deny", "free": map[string]any{"any": 1}, "limits": map[string]any{"flows": 1000.0},
		"rules": []any{map[string]any{"dstPort": 80, "action": "allow"}},
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("want - have +\n%s", diff)
	}
	if _, touched := config["policy"]; touched {
		t.Error("the argument was changed")
	}
}

func TestEmptySchemaAllowsEmptyConfigOnly(t *testing.T) {
	m, err := ParseManifest("kerb.yaml", []byte(goodManifest))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate(t, m, nil); err != nil {
		t.Error(err)
	}
	if err := validate(t, m, map[string]any{"a": 1}); err == nil {
		t.Error("a property that no schema names was accepted")
	}
}

func TestDefaultsThatContainThemselvesEnd(t *testing.T) {
	m, err := ParseManifest("kerb.yaml", []byte(goodManifest+`
configSchema:
  $defs: {node: {type: object, properties: {next: {$ref: '#/$defs/node'}}, default: {}}}
  properties: {next: {$ref: '#/$defs/node'}}
`))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate(t, m, schema.FillDefaults(m.ConfigSchema, nil)); err != nil {
		t.Error(err)
	}
}

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]int64{"": 0, "4096": 4096, "16Mi": 16 << 20, "2Gi": 2 << 30, "500k": 500_000} {
		if have, err := ParseBytes(text); err != nil || have != want {
			t.Errorf("%q: %d, %v", text, have, err)
		}
	}
	for _, text := range []string{"x", "-1", "0", "1.5Mi", "9999999999Gi", "Mi"} {
		if _, err := ParseBytes(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}

func validate(t *testing.T, m *Manifest, config map[string]any) error {
	t.Helper()
	compiled, err := m.compileSchema()
	if err != nil {
		t.Fatal(err)
	}
	return validateConfig(compiled, config)
}
