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

	"github.com/kerb-edge/kerb/internal/netlab"
)

// programTime is how long a program may take for what takes it a few seconds: more is a hang, also on a busy machine.
const programTime = time.Minute

// installed is where a program is that `make setup` installs.
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
		t.Fatalf("%s is not installed, run make setup", pattern)
	}
	path, err := filepath.Abs(found[len(found)-1])
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// file writes one that every user may read.
func (n *node) file(name, text string) string {
	n.t.Helper()
	path := filepath.Join(n.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		n.t.Fatal(err)
	}
	return path
}

// daemon runs a server in a service until the test ends, and returns when it takes connections.
func (n *node) daemon(h *netlab.Host, port int, name string, args ...string) {
	n.t.Helper()
	path := filepath.Join(n.dir, filepath.Base(name)+".log")
	log, err := os.Create(path)
	if err != nil {
		n.t.Fatal(err)
	}
	cmd := n.command(context.Background(), h, name, args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, n.dir
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		log.Close()
		if said, _ := os.ReadFile(path); n.t.Failed() {
			n.t.Logf("%s said:\n%s", name, said)
		}
	})
	n.eventually(name+" takes connections", func() bool {
		return h.Do(func() error {
			conn, err := net.DialTimeout("tcp", fmt.Sprintf("%s:%d", h.Addr4(), port), time.Second)
			if err == nil {
				conn.Close()
			}
			return err
		}) == nil
	})
}

// output runs a client in a service to its end.
func (n *node) output(h *netlab.Host, name string, args ...string) string {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), programTime)
	defer cancel()
	out, err := n.command(ctx, h, name, args...).CombinedOutput()
	if ctx.Err() != nil {
		err = fmt.Errorf("it hangs for %v", programTime)
	}
	if err != nil {
		n.t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}
