// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestTourWorks executes the shell blocks of the README in order, and expects the lines of the text blocks after the
// first of them in the output, whatever numbers and identities they have.
func TestTourWorks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	script, expected := "set -eu -o pipefail\n"+private, []string{}
	begun := false
	for _, b := range blocks(t, "../README.md") {
		switch {
		case b.language == "sh":
			script += b.text
			begun = true
		case b.language == "text" && begun:
			expected = append(expected, strings.Split(strings.TrimSpace(b.text), "\n")...)
		}
	}
	if len(expected) == 0 {
		t.Fatal("the tour promises no output")
	}
	out := shape(execute(t, script))
	for _, line := range expected {
		if !strings.Contains(out, shape(line)) {
			t.Errorf("the output has no %q:\n%s", line, out)
		}
	}
}

var (
	identity = regexp.MustCompile(`\b(kerb_)?[0-9a-f]{10}\b`)
	number   = regexp.MustCompile(`[0-9]+(\.[0-9]+)*`)
	version  = regexp.MustCompile(`(?m)^(Version|Kernel|Uptime|Memory):.*$`)
	spaces   = regexp.MustCompile(` +`)
)

// shape is a text without what differs from run to run.
func shape(text string) string {
	text = version.ReplaceAllString(text, "$1")
	text = identity.ReplaceAllString(text, "ID")
	return spaces.ReplaceAllString(number.ReplaceAllString(text, "N"), " ")
}

// TestExamplesAreAccepted has an agent check every resource in the documents and in deploy/examples.
func TestExamplesAreAccepted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	files := exampleFiles(t, dir)
	script := "set -eu -o pipefail\n" + private + `ip netns add web
kerb agent 2> agent.log &
until kerb status > /dev/null 2>&1; do sleep 0.1; done
`
	for _, file := range files {
		script += "echo " + filepath.Base(file) + "; kerb apply --dry-run -f " + file + "\n"
	}
	out := execute(t, script)
	if got := strings.Count(out, "created (dry run)"); got < len(files) {
		t.Errorf("%d resources in %d files:\n%s", got, len(files), out)
	}
}

// exampleFiles writes the resources of documents to files, and returns them with those that are files.
func exampleFiles(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob("../deploy/examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("examples: %v, %v", files, err)
	}
	for i := range files {
		if files[i], err = filepath.Abs(files[i]); err != nil {
			t.Fatal(err)
		}
	}
	files = append(files, clusterExamples(t, dir)...)
	for _, document := range []string{"resources.md", "firewall.md", "proxy.md", "kubernetes.md"} {
		for i, b := range blocks(t, document) {
			if b.language != "yaml" || strings.Contains(b.text, "kind: PackageTrust") { // which is for the cluster alone
				continue
			}
			if document == "kubernetes.md" {
				b.text = onNode(t, b.text)
			}
			file := filepath.Join(dir, strings.TrimSuffix(document, ".md")+string(rune('a'+i))+".yaml")
			if err := os.WriteFile(file, []byte(b.text), 0o644); err != nil {
				t.Fatal(err)
			}
			files = append(files, file)
		}
	}
	return files
}

// clusterExamples writes the examples for clusters as a node gets them.
func clusterExamples(t *testing.T, dir string) (files []string) {
	t.Helper()
	examples, err := filepath.Glob("../deploy/examples/kubernetes/*.yaml")
	if err != nil || len(examples) == 0 {
		t.Fatalf("examples: %v, %v", examples, err)
	}
	for _, example := range examples {
		text, err := os.ReadFile(example)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, filepath.Base(example))
		if err := os.WriteFile(file, []byte(onNode(t, string(text))), 0o644); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	return files
}

// onNode is a ClusterModule or Module of Kubernetes as the agent of a node gets it, for all services.
func onNode(t *testing.T, text string) string {
	t.Helper()
	var object map[string]any
	if err := yaml.Unmarshal([]byte(text), &object); err != nil {
		t.Fatal(err)
	}
	spec := object["spec"].(map[string]any)
	spec["package"] = spec["package"].(map[string]any)["name"]
	spec["attach"] = map[string]any{"services": "*"}
	delete(spec, "rollout") // the node resolves it
	object["kind"] = "Module"
	delete(object["metadata"].(map[string]any), "namespace")
	out, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
