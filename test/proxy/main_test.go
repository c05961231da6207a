// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/netlab"
)

const (
	prefix = "kprx" // of namespaces, interfaces and pins
	pins   = "/sys/fs/bpf"
)

var binary string // kerb as it is in the tree

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		return m.Run() // the tests skip
	}
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "kerb")
	if err := errors.Join(build(), netlab.Sweep(prefix)); err != nil {
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

func build() error {
	if _, err := os.Stat("../../modules/proxy/proxy.tc.o"); err != nil {
		return fmt.Errorf("the data planes are not built, run make bpf: %w", err)
	}
	cmd := exec.Command("go", "build", "-o", binary, "github.com/kerb-edge/kerb/cmd/kerb")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build kerb: %w\n%s", err, out)
	}
	return nil
}

// leftovers looks for anything that a test has not cleaned up.
func leftovers() error {
	var found []string
	for dir, start := range map[string]string{"/run/netns": prefix, pins: prefix} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), start) {
				found = append(found, filepath.Join(dir, e.Name()))
			}
		}
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
