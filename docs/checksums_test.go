// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What scripts/checksums signs, the commands of operating.md verify: with the author's key only, and only while neither
// the list nor a file has changed.
func TestChecksums(t *testing.T) {
	text, err := os.ReadFile("operating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "Users verify them with\n\n```text\n")
	commands, _, _ := strings.Cut(rest, "```")
	if !strings.Contains(commands, "openssl dgst") {
		t.Fatalf("operating.md has no commands that verify SHA256SUMS.sig: %q", commands)
	}
	script, err := filepath.Abs("../scripts/checksums")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	sh := func(text string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", text)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	must := func(text string) {
		t.Helper()
		if out, err := sh(text); err != nil {
			t.Fatalf("%s: %v\n%s", text, err, out)
		}
	}
	// As operating.md says how to make a key; the files stand for those of make dist.
	for _, author := range []string{"release", "other"} {
		must("openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out " + author + ".key && openssl pkey -in " +
			author + ".key -pubout -out " + author + ".pub")
	}
	must("mkdir dist; for f in kerb_1_amd64.deb kerb-1.x86_64.rpm kerb-linux-amd64 kerb-cni-linux-arm64; do " +
		"echo $f > dist/$f; done; cp release.pub dist")
	must("KERB_SIGN_KEY=release.key " + script + " dist")
	verify := "cd dist; set -e; " + strings.ReplaceAll(commands, "\n", ";")
	verify = strings.TrimRight(verify, "; ")
	must(verify)
	must("rm dist/kerb-cni-linux-arm64; " + verify) // a user downloads what the machine needs
	for what, change := range map[string]string{
		"a file has changed":             "echo more >> dist/kerb-linux-amd64",
		"the list has changed":           "sed -i s/kerb-linux/kerb-linus/ dist/SHA256SUMS",
		"the list of another author":     "KERB_SIGN_KEY=other.key " + script + " dist",
		"the key is another author's":    "cp other.pub dist/release.pub",
		"the signature is cut":           "truncate -s 20 dist/SHA256SUMS.sig",
		"there is no signature any more": "KERB_SIGN_KEY= " + script + " dist",
	} {
		must("rm -rf before; cp -r dist before")
		must(change)
		if out, err := sh(verify); err == nil {
			t.Errorf("%s: verified: %s", what, out)
		}
		must("rm -rf dist; cp -r before dist")
	}
}
