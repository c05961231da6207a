// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/internal/control/sandbox"
)

// tryCommand makes this binary a program that does nothing, which is started to test the sandbox.
const tryCommand = "control-try"

// tryName is its name among the users of modules; no module can have this name.
const tryName = "(try)"

// tryTime is longer than a start takes on the slowest node.
const tryTime = 30 * time.Second

// Problem returns why this node cannot start control planes, as determined when the manager was created; nil if it can.
func (m *Manager) Problem() error { return m.problem }

// Weaknesses describes, for operators, the sandbox features that this node lacks.
func (m *Manager) Weaknesses() []string { return m.weaknesses }

// trySandbox starts a program in the sandbox of control planes, and waits for its end. This is the only way to detect
// limits of the agent's own unit: its system call filter and its capabilities.
func (m *Manager) trySandbox() error {
	uid, err := m.users.take(tryName, -1)
	if err != nil {
		return err
	}
	defer m.users.release(uid)
	dir := filepath.Join(m.opts.Run, "try")
	defer os.RemoveAll(dir)
	if err := makeOwn(dir, uid); err != nil {
		return err
	}
	cmd, err := sandbox.Command(self, sandbox.Spec{Command: []string{self, tryCommand}, Dir: dir, UID: uid,
		Read: []string{self}, Inject: true, KeepBPF: sandbox.NeedsBPF()})
	if err != nil {
		return err
	}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := sandbox.Start(cmd); err != nil {
		return fmt.Errorf("start a process in new namespaces: %w", err)
	}
	timeout := time.AfterFunc(tryTime, func() { _ = cmd.Process.Kill() })
	defer timeout.Stop()
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s (%w)", strings.TrimSpace(said.String()), err)
	}
	return nil
}
