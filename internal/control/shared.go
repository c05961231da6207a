// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/control/sandbox"
	"github.com/kerb-edge/kerb/internal/memtrim"
	"github.com/kerb-edge/kerb/sdk"
)

// sharedMemory is the memory limit of all built-in control planes together, in bytes.
const sharedMemory = 512 << 20

// sharedDisk is their disk limit together, in bytes.
const sharedDisk = 256 << 20

// sharedName is the name of their process in the log; no module can have this name.
const sharedName = "(built-in)"

// burst is the number of successive garbage collections after which the process collects less often: more than it takes
// until all built-in control planes run.
const burst = 64

// host runs the process that serves the built-in control planes.
func host(builtins map[string]sdk.Control) error {
	memtrim.Start(burst)
	hosted := map[string]sdk.Control{}
	for name, c := range builtins {
		hosted[name] = &changing{Control: c}
	}
	return sdk.ServeMany(hosted)
}

// changing is a control plane that frees most memory of a config when a second one replaces the first.
type changing struct {
	sdk.Control
	runs atomic.Bool
}

// Compile implements sdk.Control.
func (c *changing) Compile(config json.RawMessage) (sdk.Compiled, error) {
	if c.runs.Swap(true) {
		memtrim.Busy()
	}
	return c.Control.Compile(config)
}

// shared is that process, started when the first module needs it.
type shared struct {
	manager *Manager

	mu      sync.Mutex
	process *process
	conn    *net.UnixConn
	uid     int
}

// starter returns a starter of the package's control plane inside the process.
func (s *shared) starter(pkg string) starter {
	return func(module string, listen, maps *os.File) (*process, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if err := s.ensure(); err != nil {
			return nil, err
		}
		data, err := json.Marshal(sdk.HostMessage{Module: module, Package: pkg})
		if err != nil {
			return nil, err
		}
		_ = s.conn.SetWriteDeadline(time.Now().Add(sendTime))
		if _, _, err := s.conn.WriteMsgUnix(data, unix.UnixRights(int(listen.Fd()), int(maps.Fd())), nil); err != nil {
			s.process.end("does not take modules: " + err.Error())
			return nil, err
		}
		return member(s.process), nil
	}
}

// member is one module's part of the process. It can end alone: the run closes its maps' socket, upon which the process
// releases it. Killing it kills the process, and with it the others, which are started again.
func member(whole *process) *process {
	leave := make(chan struct{})
	var once sync.Once
	var left string
	p := &process{pid: whole.pid, ended: make(chan struct{}), kill: whole.end}
	p.end = func(why string) {
		once.Do(func() {
			left = why
			close(leave)
		})
	}
	p.why = func() error {
		if left != "" {
			return errors.New(left)
		}
		return whole.why()
	}
	go func() {
		defer close(p.ended)
		select {
		case <-leave:
		case <-whole.ended:
			once.Do(func() {}) // the process's own reason has precedence
		}
	}()
	return p
}

// ensure starts the process unless it runs.
func (s *shared) ensure() error {
	if s.process != nil {
		select {
		case <-s.process.ended:
			s.forget()
		default:
			return nil
		}
	}
	uid, err := s.manager.users.take(sharedName, s.uid)
	if err != nil {
		return err
	}
	ours, theirs, err := mapsPair()
	if err != nil {
		s.manager.users.release(uid)
		return err
	}
	defer theirs.Close()
	state := filepath.Join(s.manager.opts.State, "builtin")
	p, err := s.manager.launch(launch{
		name: sharedName,
		spec: sandbox.Spec{Command: []string{self, hostCommand}, Dir: state, UID: uid, Read: []string{self},
			Write: []string{state},
			Env: []string{"HOME=" + state, "TMPDIR=" + state, "STATE_DIRECTORY=" + state, "KERB_CONTRACT=1",
				"GOGC=" + os.Getenv("GOGC")},
			Memory: sharedMemory, Disk: sharedDisk, Files: max(4096, descriptors(true)), Inject: true,
			KeepBPF: sandbox.NeedsBPF()},
		state: state, files: []*os.File{theirs},
	})
	if err != nil {
		s.manager.users.release(uid)
		return errors.Join(err, ours.Close())
	}
	s.process, s.conn, s.uid = p, ours, uid
	return nil
}

func (s *shared) forget() {
	s.conn.Close()
	s.manager.users.release(s.uid)
	s.process, s.conn = nil, nil
}

// close ends the process, after its modules.
func (s *shared) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return
	}
	s.process.end("the agent is shutting down")
	<-s.process.ended
	s.forget()
}
