// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/netlab"
)

const (
	prefix = "kacp" // of namespaces, interfaces, cgroups and pins
	pins   = "/sys/fs/bpf"
)

// Programs that the tests run.
var (
	kerb   string // as it is in the tree
	talker string // testdata/peer
	copier string // testdata/copier
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		return m.Run() // the tests skip
	}
	dir, err := os.MkdirTemp("", prefix)
	if err == nil {
		defer os.RemoveAll(dir)
		err = errors.Join(os.Chmod(dir, 0o711), build(dir), netlab.Sweep(prefix), sweepCgroups())
	}
	if err != nil {
		return fail(err)
	}
	code := m.Run()
	if err := leftovers(); err != nil {
		return fail(err)
	}
	return code
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func build(dir string) error {
	kerb, copier, talker = filepath.Join(dir, "kerb"), filepath.Join(dir, "copier"), bench.Program(dir, "peer.c")
	var group errgroup.Group
	group.Go(func() error { return buildGo(kerb, "github.com/kerb-edge/kerb/cmd/kerb") })
	group.Go(func() error { return buildGo(copier, "./testdata/copier") })
	group.Go(func() error { return bench.CompileC(context.Background(), dir, os.DirFS("testdata/peer"), "peer.c") })
	return group.Wait()
}

func buildGo(program, pkg string) error {
	cmd := exec.Command("go", "build", "-o", program, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// leftovers looks for anything that a test has not cleaned up.
func leftovers() error {
	var found []string
	for _, pattern := range []string{"/run/netns", pins, cgroupRoot()} {
		names, _ := filepath.Glob(filepath.Join(pattern, prefix+"*"))
		found = append(found, names...)
	}
	links, err := net.Interfaces()
	for _, l := range links {
		if strings.HasPrefix(l.Name, prefix) {
			found = append(found, "interface "+l.Name)
		}
	}
	if len(found) > 0 {
		err = errors.Join(err, fmt.Errorf("the tests have left behind: %s", strings.Join(found, ", ")))
	}
	return err
}
