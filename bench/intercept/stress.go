// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/tempdir"
)

// stress is the running background load.
type stress struct {
	cmd    *exec.Cmd
	dir    string
	stderr bytes.Buffer
}

// stressors are arguments of stress-ng; 0 workers means one per CPU.
var stressors = map[string][]string{
	"stress": {"--cpu", "0"},
	"cpu":    {"--cpu", "0"},
	"fork":   {"--fork", "0"},
	"io":     {"--hdd", "0", "--hdd-bytes", "64m", "--io", "0"},
	"memory": {"--vm", "0", "--vm-bytes", "256m"},
}

// settling is the time until the background load is constant.
const settling = 500 * time.Millisecond

// startStress starts the stress of a load, or nothing for an idle machine.
func startStress(kind string) (*stress, error) {
	words, ok := stressors[kind]
	if !ok {
		return nil, nil
	}
	program, err := exec.LookPath("stress-ng")
	if err != nil {
		return nil, fmt.Errorf("%w: install stress-ng", bench.ErrLeftOut)
	}
	s := &stress{}
	if s.dir, err = tempdir.New(); err != nil {
		return nil, err
	}
	s.cmd = exec.Command(program, append([]string{"--quiet", "--temp-path", s.dir, "--timeout", strconv.Itoa(24 * 3600)},
		words...)...)
	s.cmd.Stderr = &s.stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		return nil, errors.Join(err, tempdir.Remove(s.dir))
	}
	time.Sleep(settling)
	return s, nil
}

func (s *stress) stop() error {
	if s == nil {
		return nil
	}
	err := syscall.Kill(-s.cmd.Process.Pid, syscall.SIGTERM)
	if err != nil {
		err = fmt.Errorf("stress-ng exited early: %w: %s", err, &s.stderr)
	}
	_ = s.cmd.Wait() // it was killed
	return errors.Join(err, tempdir.Remove(s.dir))
}
