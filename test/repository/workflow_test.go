// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

const workflow = ".github/workflows/ci.yml"

var targetLine = regexp.MustCompile(`(?m)^([a-z][a-z-]*):(?:.*## (\w+): )?`)

// targets maps the targets of the Makefile to their groups; those without one are not listed by `make`.
func targets(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, match := range targetLine.FindAllStringSubmatch(read(t, "Makefile"), -1) {
		if out[match[1]] == "" {
			out[match[1]] = match[2]
		}
	}
	return out
}

// The workflow runs only existing make targets, with actions of a fixed version.
func TestWorkflow(t *testing.T) {
	known, steps := targets(t), 0
	for line := range strings.Lines(read(t, workflow)) {
		line = strings.TrimSpace(line)
		if action, ok := strings.CutPrefix(line, "- uses: "); ok &&
			!regexp.MustCompile(`@v\d+\.\d+\.\d+$`).MatchString(action) {
			t.Errorf("%s has no fixed version", action)
		}
		command, ok := strings.CutPrefix(line, "- run: ")
		if !ok {
			continue
		}
		steps++
		words := strings.Fields(command)
		if words[0] != "make" || len(words) < 2 {
			t.Errorf("%q is no make target", command)
		} else if _, ok := known[words[1]]; !ok {
			t.Errorf("the Makefile has no target %s", words[1])
		}
	}
	if steps < 5 {
		t.Errorf("%d steps found in %s", steps, workflow)
	}
}

// Documents for contributors name existing targets.
func TestDocumentedTargets(t *testing.T) {
	known := targets(t)
	for _, file := range []string{"CONTRIBUTING.md", "README.md", architecture} {
		for _, match := range regexp.MustCompile("(?m)(?:^    |`|/)make ([a-z][a-z-]*)").FindAllStringSubmatch(read(t, file),
			-1) {
			if _, ok := known[match[1]]; !ok {
				t.Errorf("%s: the Makefile has no target %s", file, match[1])
			}
		}
	}
}

// Every target with a description is in one of the groups that `make` lists.
func TestTargetGroups(t *testing.T) {
	groups := []string{"Build", "Test", "Run", "Develop"}
	for line := range strings.Lines(read(t, "Makefile")) {
		_, text, ok := strings.Cut(line, " ## ")
		group, _, _ := strings.Cut(text, ": ")
		if ok && targetLine.MatchString(line) && !slices.Contains(groups, group) {
			t.Errorf("begin the description with one of %v: %s", groups, line)
		}
	}
}
