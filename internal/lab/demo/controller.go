// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/examples"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/lib"
)

// controller is `kerb demo controller`: a control loop whose law is in the kernel, too.
var controller = plot{
	name:  "controller",
	short: "An inverted pendulum that stands while its controller is stopped",
	long: "A pendulum and its controller exchange a packet every millisecond. The intercept module takes it past the " +
		"network stack,\nand answers by the controller's law in the kernel when the controller is late. Takes half a " +
		"minute, needs root and clang,\nand leaves nothing behind.",
	needs: map[string]string{"chrt": "util-linux"},
	steps: []step{
		{"A pendulum and a controller", (*demo).stepPendulum},
		{"The agent", (*demo).stepAgent},
		{"Packets past the network stack, and a law in the kernel", (*demo).stepIntercept},
		{"kill -STOP the controller", (*demo).stepStopped},
		{"The same without the law in the kernel", (*demo).stepNoLaw},
		{"Stop the agent, then remove everything", (*demo).stepRemove},
	},
}

const pendulumSeconds = 3

func (d *demo) stepPendulum(ctx context.Context) error {
	if err := d.clear(true); err != nil {
		return err
	}
	var err error
	if d.box, err = d.lab.Host("box", netlab.HostOptions{}); err != nil {
		return err
	}
	if d.plant, err = d.lab.Host("plant", netlab.HostOptions{}); err != nil {
		return err
	}
	d.say("A bridge and two network namespaces: the controller's box is %s, the pendulum's plant %s.", d.box.Addr4(),
		d.plant.Addr4())
	d.say("Both programs are those of examples/intercept-pendulum. Angle and speed leave every millisecond.")
	return d.compilePendulum(ctx)
}

// compilePendulum makes plant and controller in the demo's directory.
func (d *demo) compilePendulum(ctx context.Context) error {
	clang, err := pkgs.FindClang(ctx, "")
	if err != nil {
		return err
	}
	dir := filepath.Join(runDir, "src")
	if err := errors.Join(lib.Write(dir), os.CopyFS(dir, examples.Pendulum)); err != nil {
		return err
	}
	library, err := filepath.Glob(filepath.Join(dir, "intercept", "*.c"))
	if err != nil {
		return err
	}
	for _, name := range []string{"plant", "controller"} {
		args := append([]string{"-O2", "-I" + filepath.Join(dir, "intercept"), "-o", filepath.Join(runDir, name),
			filepath.Join(dir, "intercept-pendulum", name+".c")}, library...)
		if out, err := exec.CommandContext(ctx, clang, append(args, "-lm")...).CombinedOutput(); err != nil {
			return fmt.Errorf("compile %s.c: %w: %s", name, err, out)
		}
	}
	return nil
}

func (d *demo) stepIntercept(ctx context.Context) error {
	err := d.kerb(ctx, "service", "add", "box", "--netns", "/run/netns/"+prefix+"-box", "--label", "app=box")
	if err != nil {
		return err
	}
	text, err := fs.ReadFile(examples.Pendulum, "intercept-pendulum/module.yaml")
	if err != nil {
		return err
	}
	d.law = string(text)
	d.say("This is examples/intercept-pendulum/module.yaml:")
	if err := d.write("module.yaml", d.law); err != nil {
		return err
	}
	if err := d.kerb(ctx, "apply", "-f", "module.yaml"); err != nil {
		return err
	}
	socket := filepath.Join(runDir, "modules", "pendulum.sock")
	if err := d.await(ctx, "the module", func() error { return unix.Access(socket, unix.W_OK) }); err != nil {
		return err
	}
	d.command("controller -m " + socket + " -w sleep &")
	program := filepath.Join(runDir, "controller")
	d.controller, err = d.start(d.box.Namespace, "controller.log", program, "-m", socket, "-w", "sleep")
	if err != nil {
		return err
	}
	if err := d.await(ctx, "the controller", func() error {
		out, err := d.quietly(ctx, "intercept", "classes", "pendulum", "-o", "json")
		if err == nil && !strings.Contains(out, `"program"`) {
			err = fmt.Errorf("it has no class yet: %s", out)
		}
		return err
	}); err != nil {
		return err
	}
	return d.checkPendulum(ctx, "with the controller the pendulum stands", "stood")
}

// checkPendulum runs the plant for a few seconds. It is before others, as the world is, which does not wait.
func (d *demo) checkPendulum(ctx context.Context, claim, want string) error {
	d.command(fmt.Sprintf("plant -t %d %s", pendulumSeconds, d.box.Addr4()))
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	out, err := d.plant.Command(ctx, "chrt", "-f", "1", filepath.Join(runDir, "plant"), "-t",
		fmt.Sprint(pendulumSeconds), d.box.Addr4().String()).CombinedOutput()
	d.show(string(out))
	d.check(claim, strings.HasPrefix(string(out), want), "%q %v", out, err)
	return ctx.Err()
}

func (d *demo) stepStopped(ctx context.Context) error {
	pid := d.controller.Process.Pid
	d.command(fmt.Sprintf("kill -STOP %d", pid))
	if err := d.controller.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	err := d.checkPendulum(ctx, "the law in the kernel keeps the pendulum upright while the controller is stopped",
		"stood")
	if err != nil {
		return err
	}
	return d.kerb(ctx, "intercept", "classes", "pendulum")
}

func (d *demo) stepNoLaw(ctx context.Context) error {
	before, rest, found := strings.Cut(d.law, "        fallback:")
	_, after, ended := strings.Cut(rest, "  attach:")
	if !found || !ended {
		return errors.New("module.yaml has no fallback, or no attach after it")
	}
	if err := d.apply(ctx, "module.yaml", before+"  attach:"+after, true); err != nil {
		return err
	}
	return d.checkPendulum(ctx, "without it, the pendulum falls", "fell")
}
