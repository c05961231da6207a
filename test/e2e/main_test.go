// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

var newer string // kerb with another linker revision

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	setting, _ := os.ReadFile(expedited)
	code := nodetest.Main(m, checkObjects, build)
	if err := unchanged(string(setting)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// checkObjects tells what to do before a hundred tests fail for the same reason.
func checkObjects(string) error {
	for _, path := range []string{"../../bpf/chain.tc.o", "../../internal/dataplane/testdata/pass/pass.tc.o", "../../internal/dataplane/testdata/stamp/stamp.tc.o"} {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("the data planes are not built, run make bpf: %w", err)
		}
	}
	return nil
}

func build(dir string) error {
	newer = filepath.Join(dir, "kerb-newer")
	return nodetest.Build(newer, "github.com/kerb-edge/kerb/cmd/kerb", "-ldflags", "-X github.com/kerb-edge/kerb/internal/dataplane.linkerRevision=newer")
}

// expedited is the one setting of the kernel that the agent changes, for moments only.
const expedited = "/sys/kernel/rcu_expedited"

func unchanged(before string) error {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); { // other agents on the machine change it, too
		if now, _ := os.ReadFile(expedited); string(now) == before {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("%s is no more what it was, %q", expedited, before)
}
