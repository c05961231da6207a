// SPDX-License-Identifier: Apache-2.0

// Package docs holds the documents, and the tests that execute what they say.
package docs

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/lab/gobuild"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// block is a fenced code block: its language and its lines.
type block struct{ language, text string }

var fence = regexp.MustCompile("(?ms)^```([^\n]*)\n(.*?)^```$")

func blocks(t *testing.T, file string) []block {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []block
	for _, m := range fence.FindAllStringSubmatch(string(text), -1) {
		out = append(out, block{m[1], m[2]})
	}
	return out
}

// private gives the commands a node of their own: empty /run and /var/lib/kerb, a BPF file system, no interface but lo.
const private = `
mount -t tmpfs tmpfs /run
mkdir -p /var/lib/kerb
mount -t tmpfs tmpfs /var/lib/kerb
mount -t bpf bpf /sys/fs/bpf
ip link set lo up
`

// TestAuthoringWorks executes the shell blocks of authoring.md in order, in one shell that stops at the first error,
// and expects each line of the text blocks somewhere in the output.
func TestAuthoringWorks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	script, expected := "set -eu -o pipefail\n"+private, []string{}
	for _, b := range blocks(t, "authoring.md") {
		switch b.language {
		case "sh":
			script += b.text
		case "text":
			expected = append(expected, strings.Split(strings.TrimSpace(b.text), "\n")...)
		}
	}
	if len(expected) == 0 {
		t.Fatal("the document promises no output")
	}
	out := execute(t, script)
	for _, line := range expected {
		if !strings.Contains(out, line) {
			t.Errorf("the output has no %q:\n%s", line, out)
		}
	}
}

// TestAuthoringPrograms builds the complete programs of authoring.md, those with a licence, and loads them.
func TestAuthoringPrograms(t *testing.T) {
	template, err := os.ReadFile("../internal/pkgs/templates/module.bpf.c")
	if err != nil {
		t.Fatal(err)
	}
	programs, shown := 0, false
	for _, b := range blocks(t, "authoring.md") {
		if b.language != "c" || !strings.Contains(b.text, "KERB_LICENSE") {
			continue
		}
		programs++
		shown = shown || strings.HasSuffix(string(template), b.text)
		dir := t.TempDir()
		for name, text := range map[string]string{"program.bpf.c": b.text, "kerb.yaml": "name: program\n" +
			"version: 1.0.0\nlicense: GPL\ncontract: 1\nhooks: [tc, xdp]\nreplies: true\n"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for _, hook := range []string{"tc", "xdp"} {
			sdktest.Load(t, sdktest.Options{Dir: dir, Hook: hook})
		}
	}
	if programs != 4 || !shown {
		t.Errorf("%d programs; the template is one: %v", programs, shown)
	}
}

// Authors know which headers are for them.
func TestHeadersAreListed(t *testing.T) {
	text, err := os.ReadFile("authoring.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n### Headers\n")
	section, _, _ = strings.Cut(section, "\n### ")
	headers, err := filepath.Glob("../bpf/include/kerb/*.h")
	if err != nil || len(headers) == 0 {
		t.Fatal(headers, err)
	}
	for _, header := range headers {
		name := filepath.Base(header)
		if !strings.Contains(section, "`<kerb/"+name+">`") && !strings.Contains(section, "`"+name+"`") {
			t.Errorf("authoring.md does not list %s", name)
		}
	}
}

func execute(t *testing.T, script string) string {
	t.Helper()
	bin, dir := t.TempDir(), t.TempDir()
	for _, program := range []string{"kerb", "kerb-bench"} {
		if err := gobuild.Build(filepath.Join(bin, program), "github.com/kerb-edge/kerb/cmd/"+program); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	// Whatever the script leaves running ends with its PID namespace.
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
		"bash", "-c", script)
	cmd.Dir, cmd.WaitDelay = dir, 5*time.Second
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "agent.log"))
		t.Fatalf("%v\n%s\nagent.log:\n%s", err, out, log)
	}
	return string(out)
}
