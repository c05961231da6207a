// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	kerbnode "github.com/kerb-edge/kerb/internal/lab/node"
)

// libraries are packages of Go's standard library whose own tests run here. Two tests of net/http copy from one TCP
// connection to another with io.Copy, which splices: docs/accelerator.md states that such programs may not be allowed.
var libraries = []struct{ name, skip string }{
	{"net", ""},
	{"net/http", "^(TestTransportProxy|TestSOCKS5Proxy)$"},
}

// The tests of Go's network libraries pass between sockets whose messages are redirected, as they do on plain TCP.
func TestLibraries(t *testing.T) {
	if os.Getenv("KERB_LIBRARIES") == "" {
		t.Skip("takes a minute: make test-libraries")
	}
	n := newNode(t)
	n.Start()
	var programs []string
	for _, l := range libraries {
		programs = append(programs, filepath.Join(n.Dir, strings.ReplaceAll(l.name, "/", "-")+".test"))
	}
	m := kerbnode.Module("fast", "accelerator", "", map[string]any{"programs": map[string]any{"allow": programs}})
	m.Spec.Attach.Cgroups = []string{n.cgroup.Name()}
	n.Apply(m)
	n.Eventually("the module answers", func() bool { return n.Get("/v1/modules/fast/pairs", nil) == nil })
	for i, l := range libraries {
		sources, err := exec.Command("go", "list", "-f", "{{.Dir}}", l.name).Output()
		if err != nil {
			t.Fatalf("go list %s: %v", l.name, err)
		}
		if out, err := exec.Command("go", "test", "-c", "-o", programs[i], l.name).CombinedOutput(); err != nil {
			t.Fatalf("go test -c %s: %v: %s", l.name, err, out)
		}
		before := n.pairReport().Messages
		cmd := n.command(t.Context(), n.a, programs[i], "-test.short", "-test.v", "-test.timeout", "4m", "-test.skip", l.skip)
		cmd.Dir = strings.TrimSpace(string(sources))
		out, err := cmd.CombinedOutput()
		passed, messages := strings.Count(string(out), "\n--- PASS"), n.pairReport().Messages-before
		if err != nil || passed < 100 || messages < 100 {
			t.Errorf("tests of %s: %v, %d passed, %d redirected messages:\n%s", l.name, err, passed, messages,
				out[max(0, len(out)-4000):])
		}
		t.Logf("%s: %d tests passed, %d messages were redirected", l.name, passed, messages)
	}
}
