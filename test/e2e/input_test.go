// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// mistake is a file or package that must be rejected, and the expected error.
type mistake struct {
	text string // of the file that is applied
	code int
	says []string
}

const head = "apiVersion: kerb.dev/v1alpha1\nkind: %s\nmetadata: {name: %s}\nspec: %s\n"

func yamlModule(spec string) string  { return fmt.Sprintf(head, "Module", "x", spec) }
func yamlService(spec string) string { return fmt.Sprintf(head, "Service", "x", spec) }

func packageSpec(dir string) string {
	return yamlModule("{package: " + dir + ", attach: {services: '*'}}")
}

// An invalid file causes one sentence as error, the exit status shows the kind of error, and the old state stays in
// force.
func TestBadInput(t *testing.T) {
	n := newRunningNode(t)
	n.apply(n.pass("count", "*"), n.stamp(1))
	before := n.programs()
	desired := n.must("export")
	for name, m := range mistakes(t, n) {
		t.Run(name, func(t *testing.T) {
			n.T = t
			path := filepath.Join(n.Dir, "input.yaml")
			if err := os.WriteFile(path, []byte(m.text), 0o600); err != nil {
				t.Fatal(err)
			}
			r := n.kerb("apply", "-f", path)
			n.refused(r, m.code, append(m.says, "kerb: ")...)
			if lines := strings.Count(r.stderr, "\n"); lines > 2 {
				t.Errorf("%d lines instead of a sentence: %s", lines, r.stderr)
			}
			if after := n.programs(); after != before {
				t.Errorf("programs were %s and are %s", before, after)
			}
			n.checkPins()
		})
	}
	n.T = t
	if after := n.must("export"); after != desired {
		t.Errorf("resources were\n%s\nand are\n%s", desired, after)
	}
	if services := n.must("service", "list"); strings.Count(services, "\n") != 3 {
		t.Errorf("services are\n%s", services)
	}
}

// All errors of one file are reported together, each with its position, for all kinds of resources.
func TestAllMistakesAtOnce(t *testing.T) {
	n := newRunningNode(t)
	path := filepath.Join(n.Dir, "input.yaml")
	named := func(name, resource string) string {
		return "---\n" + strings.Replace(resource, "name: x", "name: "+name, 1)
	}
	text := yamlService("{netns: /run/netns/ke2e-nosuch}") + named("a", packageSpec("nosuch")) +
		named("b", yamlModule("{package: firewall, hook: xdp, attach: {services: 'in ('}, "+
			"config: {antiSpof: false, rules: [{dstPort: 70000}]}}")) +
		named("c", yamlModule("{package: counter, attach: {}, budget: {latency: soon, memory: much}}")) +
		named("good", packageSpec(testPackage(t, "pass")))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r := n.kerb("apply", "-f", path)
	n.refused(r, 2, "input.yaml:4:1: Service x: spec: ", "input.yaml:9:8: Module a: spec.package: ",
		"input.yaml:14:47: Module b: spec.attach.services: ",
		"input.yaml:14:75: Module b: spec.config.antiSpof: unknown field; known are ",
		"input.yaml:14:101: Module b: spec.config.rules[0].dstPort: ", "input.yaml:19:26: Module c: spec.attach: "+
			"selects nothing",
		"input.yaml:19:47: Module c: spec.budget.latency: ", "input.yaml:19:62: Module c: spec.budget.memory: ")
	if modules := n.must("module", "list"); strings.Contains(modules, "good") {
		t.Errorf("modules are\n%s", modules)
	}
}

func mistakes(t *testing.T, n *node) map[string]mistake {
	t.Helper()
	pass, drop := testPackage(t, "pass"), testPackage(t, "drop")
	all := map[string]mistake{
		"malformed YAML": {"kind: [", 2, []string{"input.yaml:1: "}},
		"nothing":        {"# nothing\n", 2, []string{"contains no resource"}},
		"unknown kind":   {fmt.Sprintf(head, "Modul", "x", "{}"), 2, []string{"kind", "Module", "Service"}},
		"other version": {strings.Replace(packageSpec(pass), "v1alpha1", "v1", 1), 2,
			[]string{"apiVersion", "kerb.dev/v1alpha1"}},
		"unknown field": {yamlModule("{package: " + pass + ", attach: {servces: '*'}}"), 2,
			[]string{"Module x: spec.attach.servces: unknown field"}},
		"wrong type": {yamlModule("{package: " + pass + ", attach: {services: 7}}"), 2,
			[]string{"Module x: spec.attach.services: is of type number; want string"}},
		"bad name": {strings.Replace(packageSpec(pass), "name: x", "name: X_Y", 1), 2, []string{"metadata.name"}},
		"name taken twice": {packageSpec(pass) + "---\n" + packageSpec(drop), 2,
			[]string{"Module x: metadata.name: occurs twice"}},
		"key twice": {packageSpec(pass) + "kind: Module\n", 2, []string{":5: ", "already"}},
		"selector": {yamlModule("{package: " + pass + ", attach: {services: 'app in web'}}"), 2,
			[]string{"Module x: spec.attach.services: not a label selector", "app in web"}},
		"selects nothing": {yamlModule("{package: " + pass + ", attach: {}}"), 2,
			[]string{"Module x: spec.attach: selects nothing"}},
		"unknown package":   {packageSpec("nosuch"), 2, []string{"Module x: spec.package", `"nosuch"`, "built-in are"}},
		"no such directory": {packageSpec("/nosuch"), 2, []string{"Module x: spec.package", "/nosuch"}},
		"config field": {yamlModule("{package: " + drop + ", attach: {services: '*'}, config: {prot: 1}}"), 2,
			[]string{"Module x: spec.config.prot: unknown field"}},
		"config range": {yamlModule("{package: " + drop + ", attach: {services: '*'}, config: {port: 70000}}"), 2,
			[]string{"Module x: spec.config.port: is 70000; want at most 65535"}},
		"config type": {yamlModule("{package: " + drop + ", attach: {services: '*'}, config: {port: http}}"), 2,
			[]string{"Module x: spec.config.port"}},
		"order in a circle": {yamlModule("{package: " + pass + ", attach: {services: '*'}, order: {before: [count], " +
			"after: [count]}}"), 2, []string{"spec.order", "count"}},
		"hook not offered": {yamlModule("{package: " + tcOnly(t) + ", attach: {services: '*'}, hook: xdp}"), 2,
			[]string{"Module x: spec.hook", "xdp"}},
		"memory budget": {yamlModule("{package: " + pass + ", attach: {services: '*'}, budget: {memory: '8'}}"), 2,
			[]string{"Module x: spec.budget.memory", "the budget is 8 B", "totals"}},
		"budget is no number": {yamlModule("{package: " + pass + ", attach: {services: '*'}, budget: {memory: much}}"), 2,
			[]string{"Module x: spec.budget.memory", "much"}},
		"verifier": {packageSpec(testPackage(t, "bad")), 5,
			[]string{"verifier refuses x", "before checking that they are there", "-v prints it"}},
		"verifier, unselected": {yamlModule("{package: " + testPackage(t, "bad") + ", attach: {services: app=absent}}"), 5,
			[]string{"verifier refuses x"}},
		"no namespace": {yamlService("{netns: /run/netns/ke2e-nosuch}"), 2,
			[]string{"Service x: spec", "/run/netns/ke2e-nosuch: no such network namespace"}},
		"not a namespace": {yamlService("{netns: " + n.Dir + "}"), 2,
			[]string{"Service x: spec", n.Dir + ": not a network namespace"}},
		"no interface": {yamlService("{interface: ke2enosuch}"), 2,
			[]string{"Service x: spec", "ke2enosuch", "no such interface"}},
		"no process":      {yamlService("{pid: 4194305}"), 2, []string{"Service x: spec", "no such process"}},
		"nothing to find": {yamlService("{}"), 2, []string{"exactly one of netns, pid and interface"}},
		"good and bad": {yamlService("{netns: "+n.web.Path()+"}") + "---\n" + packageSpec("nosuch"), 2,
			[]string{"nosuch"}},
	}
	for name, m := range badPackages(t) {
		all["package "+name] = m
	}
	return all
}

func tcOnly(t *testing.T) string {
	t.Helper()
	return copyPackage(t, "pass", func(manifest string) string {
		return strings.Replace(manifest, "hooks: [tc, xdp]", "hooks: [tc]", 1)
	})
}

// badPackages returns invalid package directories.
func badPackages(t *testing.T) map[string]mistake {
	t.Helper()
	edited := func(old, replacement string, says ...string) mistake {
		dir := copyPackage(t, "pass", func(manifest string) string { return strings.Replace(manifest, old, replacement, 1) })
		return mistake{packageSpec(dir), 2, append(says, "Module x: spec.")}
	}
	return map[string]mistake{
		"without manifest":    {packageSpec(t.TempDir()), 2, []string{"Module x: spec.package", "kerb.yaml"}},
		"with unknown field":  edited("version:", "vresion:", "kerb.yaml", "vresion"),
		"of another contract": edited("contract: 1", "contract: 99", "kerb.yaml:4:1: contract"),
		"that is malformed":   edited("name: pass", "name: [", "kerb.yaml"),
		"needs a newer kernel": edited("hooks:", "requires: ['kernel>=99.0']\nhooks:", "needs kernel>=99.0, which kernel",
			"does not have"),
		"needs an odd feature": edited("hooks:", "requires: [bpf_frobnicate]\nhooks:", "kerb.yaml:8:12: requires",
			"bpf_frobnicate"),
		"over its own budget":    edited("hooks:", "budget: {memory: '8'}\nhooks:", "the budget is 8 B"),
		"with a config map less": edited("hooks:", "maps: {config: [nosuch]}\nhooks:", "nosuch"),
		"that is not an ELF":     withObject(t, "not a whole ELF", func(string) []byte { return []byte("#!/bin/sh\n") }),
		"cut short": withObject(t, "ELF", func(path string) []byte {
			text, _ := os.ReadFile(path)
			return text[:len(text)/2]
		}),
		"empty":        withObject(t, "", func(string) []byte { return nil }),
		"not compiled": withoutObject(t),
	}
}

func withObject(t *testing.T, says string, content func(path string) []byte) mistake {
	t.Helper()
	dir := copyPackage(t, "pass", func(manifest string) string { return manifest })
	path := filepath.Join(dir, "pass.tc.o")
	if err := os.WriteFile(path, content(path), 0o600); err != nil {
		t.Fatal(err)
	}
	return mistake{packageSpec(dir), 2, []string{"Module x: spec.package", "pass.tc.o", says}}
}

func withoutObject(t *testing.T) mistake {
	t.Helper()
	dir := copyPackage(t, "pass", func(manifest string) string { return manifest })
	if err := os.Remove(filepath.Join(dir, "pass.tc.o")); err != nil {
		t.Fatal(err)
	}
	return mistake{packageSpec(dir), 2, []string{"Module x: spec.package", "pass.tc.o", "kerb package build " + dir}}
}

// The log of the verifier is written to a file, or printed with -v, followed by the sentence.
func TestVerifierLog(t *testing.T) {
	n := newRunningNode(t)
	bad := module("x", testPackage(t, "bad"), "*", nil)
	n.refused(n.tryApply(bad), 5, "verifier refuses x")
	logs, _ := filepath.Glob(filepath.Join(n.Dir, "kerb-verifier-*.log"))
	if len(logs) != 1 {
		t.Fatalf("logs kept: %v", logs)
	}
	text, err := os.ReadFile(logs[0])
	if err != nil || !strings.Contains(string(text), "R1=ctx") {
		t.Errorf("the log is %q, %v", text, err)
	}
	path := filepath.Join(n.Dir, "x.yaml")
	if err := os.WriteFile(path, []byte(packageSpec(testPackage(t, "bad"))), 0o600); err != nil {
		t.Fatal(err)
	}
	r := n.kerb("apply", "-v", "-f", path)
	n.refused(r, 5, "R1=ctx", "processed ")
	lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, "kerb: the kernel's verifier refuses x: it reads "+
		"packet bytes") {
		t.Errorf("the last line is %q", last)
	}
}

// The same name with another content is an update, never a second resource; the command line validates files before it
// sends them.
func TestNameTakenByAnother(t *testing.T) {
	n := newRunningNode(t)
	n.apply(n.pass("x", "*"))
	other := n.pass("x", "app=web")
	n.apply(other)
	n.settled(map[string]int{"x": 2})
	text := fmt.Sprintf(head, "Service", "web", "{netns: "+n.web.Path()+"}") + "---\n" + fmt.Sprintf(head, "Service",
		"web", "{netns: "+n.db.Path()+"}")
	n.refused(n.input(text, "apply", "-f", "-"), 2, "Service web: metadata.name: occurs twice")
}
