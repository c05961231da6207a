// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/lab/gobuild"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

var newer string // kerb with another linker revision

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	setting := restedSetting()
	code := nodetest.Main(m, checkObjects, build)
	if err := unchanged(setting); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// checkObjects reports what to do before a hundred tests fail for the same reason.
func checkObjects(string) error {
	for _, path := range []string{"../../bpf/chain.tc.o", "../../internal/dataplane/testdata/pass/pass.tc.o",
		"../../internal/dataplane/testdata/stamp/stamp.tc.o"} {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("the data planes are not built, run make bpf: %w", err)
		}
	}
	return nil
}

func build(dir string) error {
	newer = filepath.Join(dir, "kerb-newer")
	return gobuild.Build(newer, "github.com/kerb-edge/kerb/cmd/kerb",
		"-ldflags=-s -X github.com/kerb-edge/kerb/internal/dataplane.linkerRevision=newer")
}

// expedited is the only kernel setting that the agent changes, each time for a moment.
const expedited = "/sys/kernel/rcu_expedited"

// restedSetting returns the value while no agent changes it: other agents on the machine also set it to 1 for a moment.
func restedSetting() string {
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		now, _ := os.ReadFile(expedited)
		if string(now) != "1\n" || time.Now().After(end) {
			return string(now)
		}
	}
}

func unchanged(before string) error {
	// Other agents on the machine change it, too.
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if now, _ := os.ReadFile(expedited); string(now) == before {
			return nil
		}
	}
	return fmt.Errorf("%s has changed, it was %q", expedited, before)
}
