// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

// exampleKind is the file of a new kind of resources, in addition to its line in the registry.
const exampleKind = `package resource

import "github.com/kerb-edge/kerb/api/v1alpha1"

// AnExample is a resource with one field.
type AnExample struct {
	v1alpha1.TypeMeta
	Metadata v1alpha1.ObjectMeta ` + "`json:\"metadata\"`" + `
	Spec     struct {
		Colour string ` + "`json:\"colour\" enum:\"red,green\" doc:\"Colour of the example\"`" + `
	} ` + "`json:\"spec\"`" + `
}

func (e *AnExample) Meta() *v1alpha1.ObjectMeta { return &e.Metadata }
func (e *AnExample) Content() any               { return e.Spec }
func (e *AnExample) ClearStatus()               {}

var Example = &Definition[AnExample]{
	Name: "Example", Short: "Examples", Aliases: []string{"ex"},
	Columns: []Column[AnExample]{{Header: "COLOUR", Cell: func(e *AnExample) any { return e.Spec.Colour }}},
}
`

const exampleResource = `apiVersion: kerb.dev/v1alpha1
kind: Example
metadata: {name: one}
spec: {colour: red}
`

// TestNewKind adds a kind of resources to a copy of the source: one new file, and one line in the registry. Everything
// that works for other kinds works for it.
func TestNewKind(t *testing.T) {
	if testing.Short() {
		t.Skip("builds kerb again")
	}
	kerb := buildWithExample(t)
	for _, want := range []string{"colour", "Example"} {
		if out := run(t, exec.Command(kerb, "schema")); !strings.Contains(out, want) {
			t.Errorf("kerb schema does not have %s", want)
		}
	}
	expect(t, run(t, exec.Command(kerb, "explain", "ex.spec.colour")), "Colour of the example")
	nodetest.Kerb = kerb
	n := nodetest.New(t) // skips the test without root
	n.Start()
	command := func(stdin string, args ...string) string {
		t.Helper()
		cmd := n.Command(t.Context(), args...)
		cmd.Stdin = strings.NewReader(stdin)
		return run(t, cmd)
	}
	expect(t, command(exampleResource, "apply", "-"), "example/one created")
	expect(t, command(exampleResource, "apply", "-"), "example/one unchanged")
	green := strings.Replace(exampleResource, "red", "green", 1)
	expect(t, command(green, "diff", "-"), "-  colour: red\n+  colour: green")
	expect(t, command(green, "apply", "-"), "example/one updated")
	table := "NAME  COLOUR\none   green"
	for _, args := range [][]string{{"example", "list"}, {"get", "examples"}, {"get", "all"}} {
		expect(t, command("", args...), table)
	}
	expect(t, command("", "ex", "get", "one", "-o", "yaml"), "generation: 2")
	expect(t, command("", "get", "ex", "one"), "colour: green")
	refused := n.Command(t.Context(), "apply", "-")
	refused.Stdin = strings.NewReader(strings.Replace(green, "green", "blue", 1))
	if out, err := refused.CombinedOutput(); err == nil || !strings.Contains(string(out), "spec.colour") {
		t.Errorf("a colour that the schema does not have: %s", out)
	}
	n.Stop()
	n.Start()
	expect(t, command("", "example", "list"), table)
	expect(t, command("", "export"), "kind: Example")
	expect(t, command("", "__complete", "example", "delete", ""), "one")
	expect(t, command("", "example", "delete", "one"), "example/one deleted")
	if out := command("", "get", "examples", "-o", "name"); out != "" {
		t.Errorf("after delete the list has %s", out)
	}
}

// buildWithExample builds kerb from the source with the additional file and line.
func buildWithExample(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	source, err := filepath.Abs("../../internal/resource")
	if err != nil {
		t.Fatal(err)
	}
	registry, err := os.ReadFile(filepath.Join(source, "kind.go"))
	if err != nil {
		t.Fatal(err)
	}
	const before = "var kinds = []Kind{\n"
	if bytes.Count(registry, []byte(before)) != 1 {
		t.Fatal("internal/resource/kind.go has no list of kinds")
	}
	registry = bytes.Replace(registry, []byte("\tModel,\n"), []byte("\tModel,\n\tExample,\n"), 1)
	overlay := map[string]string{}
	for name, text := range map[string][]byte{"example.go": []byte(exampleKind), "kind.go": registry} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		overlay[filepath.Join(source, name)] = path
	}
	text, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	list, kerb := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "kerb")
	if err := os.WriteFile(list, text, 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-ldflags=-s", "-overlay", list, "-o", kerb, "../../cmd/kerb")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	run(t, build)
	return kerb
}

func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v: %s", cmd.Args, err, stderr.Bytes())
	}
	return string(out)
}

func expect(t *testing.T, out, part string) {
	t.Helper()
	if !strings.Contains(out, part) {
		t.Errorf("%q is not in:\n%s", part, out)
	}
}
