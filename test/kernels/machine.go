// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// bootTimeout is the timeout until the machine reaches user space: 3 to 5 s on an idle host.
	bootTimeout = 90 * time.Second
	// offTimeout is the timeout of powering off after its last line.
	offTimeout = 10 * time.Second
)

// Abnormal ends of a machine.
var (
	errNoBoot     = errors.New("user space not reached")
	errHung       = errors.New("no end within the time limit")
	errGone       = errors.New("the machine was reset before its tests ended")
	errPanic      = errors.New("the kernel died")
	errNothingRan = errors.New("not one test ran")
)

// isHung reports a possible fault of the emulator that is worth a second boot: a few boots in a hundred hang, or reset
// silently. A kernel that logs the reason of its crash is a finding.
func isHung(err error) bool {
	return errors.Is(err, errNoBoot) || errors.Is(err, errHung) || errors.Is(err, errGone)
}

// machine is an emulated computer with one kernel. It has two serial ports and no network device.
type machine struct {
	arch    arch
	dir     string // for files of this run
	logs    string // directory of the two ports' logs
	base    string // the initramfs that all kernels share
	initrd  string
	nonce   string
	kernel  kernel
	built   []string // .ko files of this repository's module
	memory  string
	timeout time.Duration
}

// boot runs the machine once and returns its transcript, also with an error.
func (m machine) boot(ctx context.Context, attempt int) (*transcript, error) {
	log := &transcript{nonce: m.nonce}
	if attempt == 1 {
		os.RemoveAll(m.logs)
	}
	if err := os.MkdirAll(m.logs, 0o755); err != nil {
		return log, err
	}
	console := filepath.Join(m.logs, fmt.Sprintf("kernel-%d.log", attempt))
	tests, err := os.Create(filepath.Join(m.logs, fmt.Sprintf("tests-%d.log", attempt)))
	if err != nil {
		return log, err
	}
	defer tests.Close()
	err = m.watch(ctx, log, tests, m.arguments(console, attempt))
	if text, _ := os.ReadFile(console); bytes.Contains(text, []byte("Kernel panic")) {
		err = fmt.Errorf("%w: %s", died(log), panicLine(string(text)))
	}
	return log, err
}

// died classifies a panic by its time: before user space it is a failed boot.
func died(log *transcript) error {
	if log.release == "" {
		return errNoBoot
	}
	return errPanic
}

// watch starts QEMU and feeds the second port to the transcript until the machine is off or the timeout expires.
func (m machine) watch(ctx context.Context, log *transcript, tests io.Writer, arguments []string) error {
	// A child's death signal is bound to the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	deadline, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	var late atomic.Bool
	waiting := time.AfterFunc(bootTimeout, func() { late.Store(true); cancel() })
	defer waiting.Stop()

	var said bytes.Buffer
	qemu := exec.CommandContext(deadline, m.arch.qemu, arguments...)
	qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	qemu.Stderr = &said
	port, err := qemu.StdoutPipe()
	if err != nil {
		return err
	}
	if err := qemu.Start(); err != nil {
		return err
	}
	for lines := bufio.NewReader(port); ; {
		line, err := lines.ReadString('\n')
		io.WriteString(tests, strings.NewReplacer("\x16", "", "\r", "").Replace(line))
		switch log.feed(line, time.Now()) {
		case booted:
			waiting.Stop()
		case packageStarted:
			progress("  %s ...", log.last().pkg)
		case packageEnded:
			progress("  %s: %s", log.last().pkg, log.last().verdict())
		case finished:
			time.AfterFunc(offTimeout, cancel)
		}
		if err != nil {
			break
		}
	}
	exit := qemu.Wait()
	return m.verdict(ctx, deadline, log, late.Load(), exit, said.String())
}

// verdict returns the reason why the machine ended.
func (m machine) verdict(ctx, deadline context.Context, log *transcript, late bool, exit error, said string) error {
	switch {
	case log.done:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case log.release == "" && late:
		return fmt.Errorf("%w within %v", errNoBoot, bootTimeout)
	case deadline.Err() != nil:
		return fmt.Errorf("%w of %v", errHung, m.timeout)
	case exit != nil:
		return fmt.Errorf("QEMU: %w %s", exit, strings.TrimSpace(said))
	default:
		return errGone
	}
}

// arguments returns QEMU's arguments. Emulation, because a test of behaviour must not need KVM; panic=-1 with
// -no-reboot ends the machine immediately after a kernel panic. The kernel's mitigations stay enabled, since they
// change what the verifier accepts. The second attempt emulates both processors in one thread, where the emulator's
// races cannot happen; so does a machine for a kernel module, whose hooks make the kernel patch its code (static keys):
// a processor in its own thread may execute the breakpoint after the patch is complete.
func (m machine) arguments(console string, attempt int) []string {
	threads := "multi"
	if attempt > 1 || len(m.built) > 0 {
		threads = "single"
	}
	return slices.Concat(m.arch.machine, []string{
		"-accel", "tcg,thread=" + threads, "-smp", "2", "-m", m.memory,
		"-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none", "-nic", "none", "-no-reboot",
		"-kernel", m.kernel.image, "-initrd", m.initrd,
		"-append", "console=" + m.arch.console + " panic=-1 oops=panic loglevel=6",
		"-serial", "file:" + console,
	}, m.arch.tests)
}

// panicLine returns the line of the kernel's log with the reason of the panic.
func panicLine(console string) string {
	for line := range strings.Lines(console) {
		if i := strings.Index(line, "Kernel panic"); i >= 0 {
			return strings.TrimSpace(line[i:])
		}
	}
	return ""
}
