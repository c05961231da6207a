// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
)

// kerb links neither benchmarks nor plots nor the demo.
func TestKerbHasNoLaboratory(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for pkg := range strings.Lines(string(out)) {
		for _, part := range []string{"kerb-edge/kerb/bench", "kerb-edge/kerb/internal/lab", "gonum.org/", "freetype",
			"go-fonts"} {
			if strings.Contains(pkg, part) {
				t.Errorf("kerb links %s", strings.TrimSpace(pkg))
			}
		}
	}
}

// maxSize is the limit of the released binary in bytes.
const maxSize = 20_000_000

func TestSize(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the limit is for amd64")
	}
	info, err := os.Stat(buildKerb(t))
	if err != nil {
		t.Fatal(err)
	}
	if t.Logf("%d bytes", info.Size()); info.Size() > maxSize {
		t.Errorf("kerb has %d bytes, more than %d", info.Size(), maxSize)
	}
}
