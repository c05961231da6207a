// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// maxSize is the limit of the binary, which is executed for each pod.
const maxSize = 4_000_000

func TestSize(t *testing.T) {
	program := filepath.Join(t.TempDir(), "kerb-cni")
	cmd := exec.Command("../../scripts/build", program, "kerb-cni")
	cmd.Env = append(os.Environ(), "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	info, err := os.Stat(program)
	if err != nil {
		t.Fatal(err)
	}
	if t.Logf("%d bytes", info.Size()); info.Size() > maxSize {
		t.Errorf("kerb-cni has %d bytes, more than %d", info.Size(), maxSize)
	}
}

// kerb-cni links neither HTTP nor TLS nor a Kubernetes client; kerb links no Kubernetes packages.
func TestDependencies(t *testing.T) {
	for program, forbidden := range map[string][]string{
		"kerb-cni": {"net/http", "crypto/tls", "k8s.io/", "sigs.k8s.io/", "github.com/kerb-edge/kerb/internal/agent"},
		"kerb":     {"github.com/kerb-edge/kerb/integrations/kubernetes", "github.com/containernetworking/"},
	} {
		out, err := exec.Command("go", "list", "-deps", "github.com/kerb-edge/kerb/cmd/"+program).Output()
		if err != nil {
			t.Fatal(err)
		}
		for dependency := range strings.Lines(string(out)) {
			for _, prefix := range forbidden {
				if strings.HasPrefix(dependency, prefix) {
					t.Errorf("%s links %s", program, strings.TrimSpace(dependency))
				}
			}
		}
	}
}
