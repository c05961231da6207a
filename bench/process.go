// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// Process is a program that runs until it is stopped.
type Process struct {
	Cmd    *exec.Cmd
	Out    *bufio.Reader // output after the first line
	Stderr bytes.Buffer
}

// StartProcess starts a program, and returns when it has written the line "ready".
func StartProcess(cmd *exec.Cmd) (*Process, error) { return StartThreads(cmd, 1) }

// StartThreads is StartProcess for a program that writes the line once per thread.
func StartThreads(cmd *exec.Cmd, threads int) (*Process, error) {
	p := &Process{Cmd: cmd}
	cmd.Stderr = &p.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p.Out = bufio.NewReader(out)
	for range threads {
		if line, _ := p.Out.ReadString('\n'); strings.TrimSpace(line) != "ready" {
			return nil, errors.Join(fmt.Errorf("%s is not ready: %s", cmd.Args, &p.Stderr), p.Stop())
		}
	}
	return p, nil
}

// Stop kills the program. It returns an error if the program had already exited.
func (p *Process) Stop() error {
	_ = p.Cmd.Process.Kill()
	err := p.Cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && !exit.Exited() {
		return nil
	}
	return fmt.Errorf("%s exited: %w: %s", p.Cmd.Args, err, &p.Stderr)
}
