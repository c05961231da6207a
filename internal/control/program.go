// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kerb-edge/kerb/internal/control/sandbox"
	"github.com/kerb-edge/kerb/internal/pkgs"
)

// self starts this binary again, even if its file was replaced or removed.
const self = "/proc/self/exe"

const killAfter = 2 * time.Second // of SIGTERM

// Where commands without a slash are looked up.
var programPath = []string{"/usr/local/bin", "/usr/bin", "/bin"}

// program is the control plane of a package as a process of its own.
type program struct {
	manager *Manager
	pkg     *pkgs.Package
	module  string
	command []string
	files   string // directory of the package's files
	state   string // directory that it may write
}

// program keeps the package's files until it is released.
func (m *Manager) program(module string, p *pkgs.Package) (*program, error) {
	files, err := m.files.take(p)
	if err != nil {
		return nil, err
	}
	prog := &program{manager: m, pkg: p, module: module, state: m.stateDir(module), files: files}
	if prog.command, err = findCommand(p.Control.Command, files); err != nil {
		prog.release()
		return nil, fmt.Errorf("package %s: %w", p.Name, err)
	}
	return prog, nil
}

func (p *program) release() {
	if err := p.manager.files.release(p.files); err != nil {
		p.manager.opts.Log.Warn("cannot remove the files of an unused package", "package", p.pkg.Name, "error", err)
	}
}

// findCommand returns the command with the path of its program. A name with a slash is a file of the package; others
// are searched for in the fixed programPath, never in the agent's PATH, which an operator may have set to anything.
func findCommand(command []string, files string) ([]string, error) {
	name := command[0]
	if strings.Contains(name, "/") {
		return append([]string{filepath.Join(files, name)}, command[1:]...), nil
	}
	for _, dir := range programPath {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return append([]string{path}, command[1:]...), nil
		}
	}
	return nil, fmt.Errorf("control.command: there is no program %s in %s; install it", name,
		strings.Join(programPath, ", "))
}

// start launches the control plane under a user ID of its own, which is released when the process ends. The process
// inherits the listening socket and the maps socket.
func (p *program) start(module string, listen, maps *os.File) (*process, error) {
	uid, err := p.manager.users.take(module, owner(p.state))
	if err != nil {
		return nil, err
	}
	started, err := p.manager.launch(launch{name: module, spec: p.spec(module, uid), state: p.state,
		files: []*os.File{listen, maps}})
	if err != nil {
		p.manager.users.release(uid)
		return nil, err
	}
	p.manager.supervisors.Go(func() { // Close waits: the lock is released before its file is closed
		<-started.ended
		p.manager.users.release(uid)
	})
	return started, nil
}

// spec is what the process is permitted to do.
func (p *program) spec(module string, uid int) sandbox.Spec {
	inject := p.pkg.HasCapability(pkgs.CapabilityInject)
	return sandbox.Spec{
		Command: p.command, Dir: p.files, UID: uid, Read: []string{p.files}, Write: []string{p.state},
		Env: []string{"PATH=" + strings.Join(programPath, ":"), "LANG=C.UTF-8", "HOME=" + p.state, "TMPDIR=" + p.state,
			"STATE_DIRECTORY=" + p.state,
			"KERB_MODULE=" + module, "KERB_PACKAGE=" + p.pkg.Name, "KERB_VERSION=" + p.pkg.Version, "KERB_CONTRACT=1",
			"PYTHONUNBUFFERED=1"},
		Memory: p.pkg.Control.MemoryLimit(), Disk: p.pkg.Control.DiskLimit(),
		Network: p.pkg.Control.Network, Inject: inject, KeepBPF: sandbox.NeedsBPF(),
		Files: descriptors(inject),
	}
}

// descriptors is the maximum number of descriptors of a process: it has one packet socket per service. 0 is the
// default.
func descriptors(inject bool) uint64 {
	const many = 65536
	var limit syscall.Rlimit
	if !inject || syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return min(many, limit.Max)
}

// owner returns the owner of a directory, -1 if it does not exist.
func owner(dir string) int {
	info, err := os.Stat(dir)
	if err != nil {
		return -1
	}
	return int(info.Sys().(*syscall.Stat_t).Uid)
}

// launch is what a process is started with.
type launch struct {
	name  string
	spec  sandbox.Spec
	state string     // directory made for it
	files []*os.File // descriptors from 3 on
}

// launch starts a process, and watches its log, its memory and its exit.
func (m *Manager) launch(l launch) (*process, error) {
	if err := makeOwn(l.state, l.spec.UID); err != nil {
		return nil, err
	}
	l.spec.Read = append(l.spec.Read, "/sys/devices/system/cpu") // the number of CPUs is the length of per-CPU values
	group, err := m.createGroup(&l.spec)
	if err != nil {
		return nil, err
	}
	started, err := m.spawn(l, group)
	if err != nil && group != nil {
		group.remove()
	}
	return started, err
}

// createGroup creates the cgroup of a process; nil if none is delegated to the agent.
func (m *Manager) createGroup(spec *sandbox.Spec) (*group, error) {
	if m.cgroups == nil || spec.Memory <= 0 {
		return nil, nil
	}
	g, err := m.cgroups.group(spec.Memory)
	if err != nil {
		return nil, fmt.Errorf("cgroup of a control plane: %w", err)
	}
	spec.Cgroup = g.dir
	return g, nil
}

func (m *Manager) spawn(l launch, group *group) (*process, error) {
	cmd, err := sandbox.Command(self, l.spec)
	if err != nil {
		return nil, err
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer writer.Close()
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = writer, writer, l.files
	if err := sandbox.Start(cmd); err != nil {
		reader.Close()
		return nil, fmt.Errorf("start control plane: %w", err)
	}
	// systemd's protection of the agent is not for modules: when memory runs out, they are killed first.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", cmd.Process.Pid), []byte("500"), 0)
	log := newLogReader(m.opts.Log.With("module", l.name), reader)
	go log.run()
	return watch(cmd, l.spec, group, log), nil
}

// makeOwn creates a directory that belongs to the user, together with its contents. The directory itself is changed
// last: its owner indicates that everything is done, also after an agent was killed.
func makeOwn(dir string, uid int) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if owner(dir) == uid {
		return nil
	}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		return os.Lchown(path, uid, uid)
	})
	if err != nil {
		return err
	}
	return os.Lchown(dir, uid, uid)
}

// watch reaps the process. group may be nil.
func watch(cmd *exec.Cmd, spec sandbox.Spec, group *group, log *logReader) *process {
	var (
		mu     sync.Mutex
		asked  string
		result error
	)
	p := &process{pid: cmd.Process.Pid, ended: make(chan struct{})}
	p.end = func(why string) {
		mu.Lock()
		if asked == "" {
			asked = why
		}
		mu.Unlock()
		_ = cmd.Process.Signal(syscall.SIGTERM)
		go func() {
			select {
			case <-p.ended:
			case <-time.After(killAfter):
				_ = cmd.Process.Kill()
			}
		}()
	}
	p.kill = p.end
	p.why = func() error { return result }
	go func() {
		state := cmd.Wait()
		log.await()
		mu.Lock()
		defer mu.Unlock()
		if group != nil {
			if asked == "" && group.exceeded() {
				asked = memoryExceeded(spec.Memory, spec.Memory)
			}
			go group.remove()
		}
		result = endOf(asked, state, log)
		close(p.ended)
	}()
	go watchLimits(p, spec, group != nil)
	return p
}

// endOf returns in one line why a process has ended.
func endOf(asked string, err error, log *logReader) error {
	if asked != "" {
		return errors.New(asked)
	}
	text := "exited"
	if err != nil {
		text = err.Error()
	}
	if last := log.lastLine(); last != "" {
		text += "; it last said: " + last
	}
	return errors.New(text)
}
