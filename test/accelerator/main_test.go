// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/gobuild"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

// Programs that the tests run, in addition to kerb.
var (
	talker string // testdata/peer
	copier string // testdata/copier
)

func TestMain(m *testing.M) { os.Exit(nodetest.Main(m, build)) }

func build(dir string) error {
	copier, talker = filepath.Join(dir, "copier"), bench.Program(dir, "peer.c")
	if err := gobuild.Build(copier, "./testdata/copier"); err != nil {
		return err
	}
	return bench.CompileC(context.Background(), dir, os.DirFS("testdata/peer"), "peer.c")
}
