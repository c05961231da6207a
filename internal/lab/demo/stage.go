// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/sdk"
)

// Everything that the demo creates is in these directories, or in namespaces with this prefix.
const (
	prefix  = "kdemo"
	runDir  = "/run/kerb-demo"
	stateIn = "/var/lib/kerb-demo"
	bpffs   = "/sys/fs/bpf"
	pinsIn  = bpffs + "/kerb-demo"
	nodeNS  = "/run/netns/" + prefix + "-node"
)

var (
	configFile = filepath.Join(runDir, "kerb.yaml")
	socketPath = filepath.Join(runDir, "kerb.sock")
	logFile    = filepath.Join(runDir, "agent.log")
)

// demo is one run.
type demo struct {
	*printer
	program string // path of kerb
	steps   []step

	lab                *netlab.Lab
	web, client, iperf *netlab.Host
	node               *netlab.Namespace // of the agent
	agent              *process
	closers            []func()
	sign               signs
	air                *netlab.Host
	cache, app         *netlab.Host
	box, plant         *netlab.Host
	controller         *process
	law                string
	config             string // of the agent, in addition to agentConfig
	cgroupBefore       string // empty: the demo's cgroup was not entered
	requests           *requests
	stream             *stream
	mounted            bool            // bpffs was mounted by the demo
	programs           map[uint32]bool // ids of all programs seen, for the final check
}

// onlyDemo prevents a second demo from removing the first. The kernel releases the name when the process ends.
func onlyDemo() (func(), error) {
	l, err := net.Listen("unix", "@kerb-demo")
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, errors.New("another demo is running on this machine: stop it with Ctrl-C first")
	}
	if err != nil {
		return nil, err
	}
	return func() { l.Close() }, nil
}

// mountBPF mounts the BPF file system if there is none.
func (d *demo) mountBPF() error {
	var st unix.Statfs_t
	if err := unix.Statfs(bpffs, &st); err == nil && st.Type == unix.BPF_FS_MAGIC {
		return nil
	}
	if err := unix.Mount("bpf", bpffs, "bpf", 0, ""); err != nil {
		return fmt.Errorf("no BPF file system is mounted at %s, and mounting one failed: %w", bpffs, err)
	}
	d.mounted = true
	d.say("No BPF file system was mounted at %s: mounted one.", bpffs)
	return nil
}

// sweep cleans up after a killed demo, and returns what it removed.
func (d *demo) sweep() ([]string, error) {
	found := leftovers()
	if len(found) == 0 {
		return nil, nil
	}
	var err error
	if _, e := os.Stat(pinsIn); e == nil {
		err = d.purgeLeftPins()
	}
	return found, errors.Join(err, netlab.Sweep(prefix), removeFiles())
}

// purgeLeftPins runs kerb purge in the namespace with the interfaces of the killed demo, or in one without interfaces.
func (d *demo) purgeLeftPins() error {
	in := []string{"unshare", "--net", "--"}
	node := nodeNS
	if d.node != nil {
		node = d.node.Path()
	}
	if _, err := os.Stat(node); err == nil {
		in = []string{"nsenter", "--net=" + node, "--"}
	}
	args := append(in, d.program, "purge", "--config", os.DevNull, "--state", stateIn, "--run", runDir, "--bpf", pinsIn)
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("kerb purge: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return removeIfExists(pinsIn)
}

// leftovers returns files and namespaces of a demo.
func leftovers() []string {
	var found []string
	cgroup, err := cgroupDir()
	if err != nil {
		cgroup = runDir // it does not exist
	}
	for _, path := range slices.Compact([]string{runDir, cgroup, stateIn, pinsIn}) {
		if _, err := os.Stat(path); err == nil {
			found = append(found, path)
		}
	}
	names, _ := filepath.Glob("/run/netns/" + prefix + "-*") // cannot fail: the pattern is valid
	return append(found, names...)
}

func removeFiles() error {
	return errors.Join(os.RemoveAll(runDir), os.RemoveAll(stateIn), removeIfExists(pinsIn), removeCgroup())
}

// removeIfExists removes an empty directory.
func removeIfExists(dir string) error {
	if err := os.Remove(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// clear removes leftovers of an earlier demo, and creates an empty network. With gateway, its bridge has addresses.
func (d *demo) clear(gateway bool) error {
	found, err := d.sweep()
	if err != nil {
		return fmt.Errorf("clean up after an earlier demo: %w", err)
	}
	if len(found) > 0 {
		d.say("Cleaned up after an earlier demo that was killed: %s.", strings.Join(found, ", "))
	}
	if err := errors.Join(d.mountBPF(), os.MkdirAll(runDir, 0o755)); err != nil {
		return err
	}
	if d.lab, err = netlab.Open(prefix, netlab.Options{OwnNode: true, Gateway: gateway}); err == nil {
		d.node = d.lab.Node()
	}
	return err
}

// build starts the services' programs.
func (d *demo) build(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, h := range []struct {
		name string
		host **netlab.Host
	}{{"web", &d.web}, {"client", &d.client}, {"iperf", &d.iperf}} {
		if *h.host, err = d.lab.Host(h.name, netlab.HostOptions{}); err != nil {
			return err
		}
	}
	if _, err = d.start(d.web.Namespace, "web.log", self, "demo", "web", "8080", "9090"); err != nil {
		return err
	}
	if _, err = d.start(d.iperf.Namespace, "iperf.log", "iperf3", "--server"); err != nil {
		return err
	}
	return d.await(ctx, "the services", d.servicesAnswer)
}

// servicesAnswer returns an error for a service that does not answer yet.
func (d *demo) servicesAnswer() error {
	for _, address := range []string{d.at(d.web, 8080), d.at(d.web, 9090), d.at(d.iperf, 5201)} {
		c, err := dialIn(d.client.Namespace, "tcp", address, time.Second)
		if err != nil {
			return err
		}
		c.Close()
	}
	return nil
}

func (d *demo) at(h *netlab.Host, port uint16) string {
	return fmt.Sprintf("%s:%d", h.Addr4(), port)
}

// await polls until ask returns no error, or ctx ends.
func (d *demo) await(ctx context.Context, what string, ask func() error) error {
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := ask()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not ready: %w", what, err)
		}
		if !sdk.Pause(ctx, 50*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// process is a running child process and its result.
type process struct {
	*exec.Cmd
	ended chan struct{}
}

// start runs a program in a namespace, with its output in a file. It is killed with the demo, and does not receive the
// terminal's Ctrl-C.
func (d *demo) start(ns *netlab.Namespace, log, program string, args ...string) (*process, error) {
	f, err := os.OpenFile(filepath.Join(runDir, log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p := &process{ns.Command(context.Background(), program, args...), make(chan struct{})}
	p.Stdout, p.Stderr = f, f
	p.SysProcAttr.Setpgid = true
	if err := p.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	go func() {
		_ = p.Wait()
		close(p.ended)
	}()
	return p, nil
}

// stop sends a signal and waits for the end.
func (p *process) stop(signal syscall.Signal) error {
	_ = p.Process.Signal(signal) // it may have ended already
	select {
	case <-p.ended:
		return nil
	case <-time.After(time.Minute):
		return fmt.Errorf("process %d does not exit", p.Process.Pid)
	}
}

// end removes everything, also after an incomplete run, and checks that it is gone.
func (d *demo) end() error {
	if d.lab == nil {
		return errors.Join(d.leaveCgroup(), removeFiles(), d.unmount())
	}
	d.stopTraffic()
	for _, closer := range slices.Backward(d.closers) {
		closer()
	}
	var err error
	if d.agent != nil {
		err = d.agent.stop(syscall.SIGTERM)
	}
	if _, e := os.Stat(pinsIn); e == nil {
		_ = d.recordPrograms() // there may be none any more
		err = errors.Join(err, d.purgeLeftPins())
	}
	err = errors.Join(err, d.lab.Close(), d.leaveCgroup(), removeFiles(), d.unmount())
	found := append(leftovers(), d.programsLeft()...)
	claim := "nothing is left: no namespace, no file, no pin"
	if len(d.programs) > 0 { // otherwise there are none to check
		claim += ", no program"
	}
	d.check(claim, len(found) == 0 && err == nil, "%v %v", found, err)
	return err
}

func (d *demo) unmount() error {
	if !d.mounted {
		return nil
	}
	return unix.Unmount(bpffs, 0)
}
