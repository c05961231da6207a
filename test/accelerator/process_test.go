// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

// installed returns the path of a program that `scripts/setup test` installs.
func installed(t *testing.T, pattern string) string {
	t.Helper()
	if path, err := exec.LookPath(pattern); err == nil {
		path, err := filepath.Abs(path)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	found, _ := filepath.Glob(pattern)
	if len(found) == 0 {
		t.Fatalf("%s is not installed, run scripts/setup test", pattern)
	}
	path, err := filepath.Abs(found[len(found)-1])
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// file writes a file that every user may read.
func (n *node) file(name, text string) string {
	n.T.Helper()
	path := filepath.Join(n.Dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		n.T.Fatal(err)
	}
	return path
}

// daemon runs a server in a service until the test ends, and waits until it accepts connections.
func (n *node) daemon(h *netlab.Host, port int, name string, args ...string) {
	n.T.Helper()
	path := filepath.Join(n.Dir, filepath.Base(name)+".log")
	log, err := os.Create(path)
	if err != nil {
		n.T.Fatal(err)
	}
	cmd := n.command(context.Background(), h, name, args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, n.Dir
	if err := cmd.Start(); err != nil {
		n.T.Fatal(err)
	}
	n.T.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		log.Close()
		if said, _ := os.ReadFile(path); n.T.Failed() {
			n.T.Logf("%s said:\n%s", name, said)
		}
	})
	n.Eventually(name+" takes connections", func() bool {
		return h.Do(func() error {
			conn, err := net.DialTimeout("tcp", fmt.Sprintf("%s:%d", h.Addr4(), port), time.Second)
			if err == nil {
				conn.Close()
			}
			return err
		}) == nil
	})
}

// output runs a client in a service to its end, and returns its output.
func (n *node) output(h *netlab.Host, name string, args ...string) string {
	n.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), nodetest.Patience)
	defer cancel()
	out, err := n.command(ctx, h, name, args...).CombinedOutput()
	if ctx.Err() != nil {
		err = fmt.Errorf("it hangs for %v", nodetest.Patience)
	}
	if err != nil {
		n.T.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}
