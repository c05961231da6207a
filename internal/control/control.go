// SPDX-License-Identifier: Apache-2.0

// Package control runs control planes: those of external packages in a process each, with almost no privileges, the
// built-in ones together in one process, which saves memory. It restarts them, passes their maps to them, forwards
// their logs, and is the only package that implements the agent's side of docs/control-planes.md. The data plane keeps
// running without it.
package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/kerb-edge/kerb/internal/control/sandbox"
	"github.com/kerb-edge/kerb/internal/models"
	"github.com/kerb-edge/kerb/internal/paths"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/resolve"
	"github.com/kerb-edge/kerb/sdk"
)

// hostCommand makes this binary the process that serves the built-in control planes.
const hostCommand = "control-host"

// Intercept runs the helper process as which the agent has started this process, and does not return then. Otherwise it
// returns immediately. Call it first in main, and in tests that run an agent.
func Intercept(builtins map[string]sdk.Control) {
	if len(os.Args) < 2 {
		return
	}
	var err error
	switch os.Args[1] {
	case sandbox.Argument:
		err = sandbox.Main(os.Args[2:])
	case hostCommand:
		err = host(builtins)
	case tryCommand:
	default:
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Options are the options of a Manager.
type Options struct {
	Run   string // directory of sockets
	State string // directory for state that must survive a restart
	Log   *slog.Logger
	// Limits are the maximum limits that packages may request.
	Limits Limits
	// OnChange is called, under a separate lock, when the state of a module's control plane has changed; may be nil.
	OnChange func(module string)
	// OnEvent is called, without a lock, when a control plane has started or exited; may be nil.
	OnEvent func(module, reason, message string)

	// Used by the capabilities.
	Services     *resolve.Table
	Models       *models.Table
	Packets      Packets
	Arrive       func([]sdk.Arrival) error  // makes interfaces of the node receive frames
	ModuleSocket func(module string) string // path of the socket for programs, which the group SocketGroup may use
	SocketGroup  string
	Kernel       func(context.Context) sdk.Kernel
}

// Limits are in bytes; 0 is no limit.
type Limits struct{ Memory, Disk int64 }

// check rejects requested limits above the limits of the node.
func (l Limits) check(p *pkgs.Package) error {
	for _, c := range []struct {
		field, setting string
		asked, limit   int64
	}{
		{"control.memory", "limits.controlMemory", p.Control.MemoryLimit(), l.Memory},
		{"control.disk", "limits.controlDisk", p.Control.DiskLimit(), l.Disk},
	} {
		if c.limit > 0 && c.asked > c.limit {
			return fmt.Errorf("package %s asks for %s of %s, and this node allows %s: set %s in the agent's configuration if "+
				"that is meant",
				p.Name, pkgs.FormatBytes(c.asked), c.field, pkgs.FormatBytes(c.limit), c.setting)
		}
	}
	return nil
}

// sockets is the directory of sockets, which other users cannot access.
func (o *Options) sockets() string { return filepath.Join(o.Run, "sockets") }

func (o *Options) makeState() error {
	return errors.Join(makeDir(o.State, 0o711), makeDir(filepath.Join(o.State, "modules"), 0o711))
}

// Manager starts and stops control planes.
type Manager struct {
	opts        Options
	users       *users
	files       *packageFiles
	shared      *shared
	supervisors sync.WaitGroup
	cgroups     *cgroups // nil if no cgroup is delegated to the agent

	problem    error
	weaknesses []string
}

// New prepares the directories. If the state directory is not writable, state of control planes is lost at a reboot.
// Close stops all control planes.
func New(opts Options) (*Manager, error) {
	if err := os.RemoveAll(opts.sockets()); err != nil { // of a killed agent
		return nil, fmt.Errorf("control planes: %w", err)
	}
	if err := errors.Join(makeDir(opts.Run, 0o711), makeDir(opts.sockets(), 0o700)); err != nil {
		return nil, fmt.Errorf("control planes: %w", err)
	}
	if err := opts.makeState(); err != nil {
		opts.Log.Warn("control planes keep their state until the next reboot only", "error", err)
		opts.State = filepath.Join(opts.Run, "state")
		if err := opts.makeState(); err != nil {
			return nil, fmt.Errorf("control planes: %w", err)
		}
	}
	files, err := newPackageFiles(filepath.Join(opts.State, "packages"))
	if err != nil {
		return nil, fmt.Errorf("control planes: %w", err)
	}
	users, err := newUsers(paths.Users())
	if err != nil {
		opts.Log.Warn("control planes may have the same users as those of another agent on this machine", "error", err)
	}
	m := &Manager{opts: opts, users: users, files: files, weaknesses: sandbox.Reasons()}
	if m.cgroups, err = newCgroups(); err != nil {
		opts.Log.Info("the memory of control planes is sampled, not limited by a cgroup", "reason", err)
	}
	for _, reason := range m.weaknesses {
		opts.Log.Warn("control planes are confined less on this node", "reason", reason)
	}
	if m.problem = m.trySandbox(); m.problem != nil {
		opts.Log.Error("control planes cannot start; modules that have one cannot be applied. Run kerb doctor",
			"error", m.problem)
	}
	m.shared = &shared{manager: m}
	return m, nil
}

// Close ends the remaining processes. Their owners close supervisors before.
func (m *Manager) Close() {
	m.supervisors.Wait()
	m.shared.close()
	m.users.close()
}

// Forget removes the stored state of a deleted module.
func (m *Manager) Forget(module string) error {
	return errors.Join(os.RemoveAll(m.stateDir(module)), os.RemoveAll(m.settingsFile(module)))
}

func (m *Manager) stateDir(module string) string {
	return filepath.Join(m.opts.State, "modules", module)
}

// Supervise starts the control plane of a module. It can be called immediately.
func (m *Manager) Supervise(module string, p *pkgs.Package) (*Supervisor, error) {
	if p.Control == nil {
		return nil, fmt.Errorf("package %s has no control plane", p.Name)
	}
	if err := reachable(m.opts.State); err != nil {
		return nil, err
	}
	start, release := m.shared.starter(p.Name), func() {}
	if !p.Control.Builtin {
		if err := m.opts.Limits.check(p); err != nil {
			return nil, err
		}
		prog, err := m.program(module, p)
		if err != nil {
			return nil, err
		}
		start, release = prog.start, prog.release
	}
	supervisor := newSupervisor(module, p, m.opts, start)
	m.supervisors.Go(func() {
		defer release()
		supervisor.supervise()
	})
	return supervisor, nil
}

// reachable ensures that users other than the agent's can traverse to a directory.
func reachable(dir string) error {
	for at := dir; at != "/"; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("control planes run as unprivileged users, which cannot traverse %s: chmod o+x %s", dir, at)
		}
	}
	return nil
}

// makeDir creates a directory with exactly this mode, whatever the umask.
func makeDir(dir string, mode os.FileMode) error {
	if err := os.MkdirAll(dir, mode); err != nil {
		return err
	}
	return os.Chmod(dir, mode)
}
