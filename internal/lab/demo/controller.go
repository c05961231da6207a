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

// controller is `kerb demo controller`: a control loop whose law also runs in the kernel.
var controller = scenario{
	name:  "controller",
	short: "An inverted pendulum that stays upright in a flood, and while its controller is stopped",
	long: "A pendulum and its controller exchange a packet every millisecond. In a flood of messages to the " +
		"controller's port it falls.\nThe intercept module delivers its packets around the flood and the network stack, " +
		"and computes replies with the\ncontroller's law in the kernel when the controller is late. Takes half a minute, " +
		"needs root and clang, and cleans up.",
	needs: map[string]string{"chrt": "util-linux"},
	steps: []step{
		{"A pendulum and a controller", (*demo).stepPendulum},
		{"A flood of LOG messages to the controller's port", (*demo).stepFlood},
		{"The agent", (*demo).stepAgent},
		{"Packets bypass the network stack; a control law in the kernel", (*demo).stepIntercept},
		{"The same flood", (*demo).stepFloodAgain},
		{"kill -STOP the controller", (*demo).stepStopped},
		{"The same without the control law", (*demo).stepNoLaw},
		{"Stop the agent, then remove everything", (*demo).stepRemove},
	},
}

const (
	pendulumSeconds = 3
	floodRate       = "50000" // LOG messages per second; the controller can process 5,000
)

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
	d.say("A bridge and two network namespaces: the controller has %s, the plant with the pendulum %s.", d.box.Addr4(),
		d.plant.Addr4())
	d.say("The programs are from examples/intercept-pendulum. The plant sends angle and speed every millisecond.")
	return d.compilePendulum(ctx)
}

// compilePendulum compiles the example's programs in the demo's directory.
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
	for _, name := range []string{"plant", "sensors", "controller"} {
		args := append([]string{"-O2", "-I" + filepath.Join(dir, "intercept"), "-o", filepath.Join(runDir, name),
			filepath.Join(dir, "intercept-pendulum", name+".c")}, library...)
		if out, err := exec.CommandContext(ctx, clang, append(args, "-lm")...).CombinedOutput(); err != nil {
			return fmt.Errorf("compile %s.c: %w: %s", name, err, out)
		}
	}
	return nil
}

// stepFlood makes the controller receive through a socket, where states wait behind LOG messages, or are dropped.
func (d *demo) stepFlood(ctx context.Context) error {
	if err := d.startController(); err != nil {
		return err
	}
	d.say("Each LOG message takes the controller 200 us; ten times as many arrive.")
	err := d.checkInFlood(ctx, "with a socket, the pendulum falls during the flood", "fell")
	return errors.Join(err, d.controller.stop(syscall.SIGTERM))
}

func (d *demo) stepFloodAgain(ctx context.Context) error {
	if err := d.checkInFlood(ctx, "the pendulum stays upright during the flood", "stood"); err != nil {
		return err
	}
	return d.kerb(ctx, "intercept", "classes", "pendulum")
}

// checkInFlood runs the plant while other sensors send LOG messages, with real-time priority like the plant.
func (d *demo) checkInFlood(ctx context.Context, claim, want string) error {
	d.command(fmt.Sprintf("sensors -r %s %s &", floodRate, d.box.Addr4()))
	sensors, err := d.start(d.plant.Namespace, "sensors.log", "chrt", "-f", "1", filepath.Join(runDir, "sensors"), "-r",
		floodRate, d.box.Addr4().String())
	if err != nil {
		return err
	}
	err = d.checkPendulum(ctx, claim, want)
	return errors.Join(err, sensors.stop(syscall.SIGTERM))
}

func (d *demo) startController(args ...string) (err error) {
	d.command(strings.Join(append([]string{"controller"}, args...), " ") + " &")
	d.controller, err = d.start(d.box.Namespace, "controller.log", filepath.Join(runDir, "controller"), args...)
	return err
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
	if err := d.startController("-m", socket, "-L", "log", "-w", "sleep"); err != nil {
		return err
	}
	if err := d.await(ctx, "the controller", func() error {
		out, err := d.quietly(ctx, "intercept", "classes", "pendulum", "-o", "json")
		if err == nil && strings.Count(out, `"program"`) != 2 {
			err = fmt.Errorf("the controller does not receive both classes yet: %s", out)
		}
		return err
	}); err != nil {
		return err
	}
	return d.checkPendulum(ctx, "with the controller the pendulum stays upright", "stood")
}

// checkPendulum runs the plant for a few seconds with real-time priority, since a real plant does not wait.
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
	err := d.checkPendulum(ctx, "the control law in the kernel keeps the pendulum upright while the controller is stopped",
		"stood")
	if err != nil {
		return err
	}
	return d.kerb(ctx, "intercept", "classes", "pendulum")
}

func (d *demo) stepNoLaw(ctx context.Context) error {
	before, rest, found := strings.Cut(d.law, "        fallback:")
	_, after, ended := strings.Cut(rest, "          to: 4\n")
	if !found || !ended {
		return errors.New("module.yaml lacks a fallback that ends with \"to: 4\"")
	}
	if err := d.apply(ctx, "module.yaml", before+after, true); err != nil {
		return err
	}
	return d.checkPendulum(ctx, "without it, the pendulum falls", "fell")
}
