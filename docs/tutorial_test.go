// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTutorialWorks executes the shell blocks of tutorial-classifier.md in order, with its YAML in guard.yaml, and
// expects the lines of the text blocks in the output.
func TestTutorialWorks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	ml, err := filepath.Abs("../out/kerb-ml/bin")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(ml, "kerb-ml")); err != nil {
		t.Skip("needs kerb-ml: make ml")
	}
	t.Setenv("PATH", os.Getenv("PATH")+":"+ml)
	t.Setenv("PYTHONPATH", filepath.Join(ml, "../../../ml"))
	script, expected := "set -eu -o pipefail\n"+private, []string{}
	for _, b := range blocks(t, "tutorial-classifier.md") {
		switch b.language {
		case "sh":
			script += b.text
		case "yaml":
			script += "cat > guard.yaml <<'END'\n" + b.text + "END\n"
		case "text":
			expected = append(expected, strings.Split(strings.TrimSpace(b.text), "\n")...)
		}
	}
	script += "echo blocked: $(kerb module query guard blocked)\nwc -l live.csv\ngrep -c 'attack$' live.csv\n"
	out := execute(t, script)
	for _, line := range append(expected, "own") {
		if !strings.Contains(out, line) {
			t.Errorf("the output has no %q:\n%s", line, out)
		}
	}
	_, blocked, _ := strings.Cut(out, "blocked: ")
	if blocked, _, _ = strings.Cut(blocked, "\n"); !strings.Contains(blocked, "fe80::ff:fe00:2 ") ||
		strings.Count(blocked, "fe80::") != 1 {
		t.Errorf("blocked are %q, not the attacker alone", blocked)
	}
	if t.Failed() || testing.Verbose() {
		t.Log(out[max(0, len(out)-3000):])
	}
}
