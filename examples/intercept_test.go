// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/pkgs"
)

// compileLibrary compiles a C source with lib/intercept.
func compileLibrary(t *testing.T, source string) string {
	t.Helper()
	clang, err := pkgs.FindClang(t.Context(), "")
	if err != nil {
		t.Skip(err)
	}
	const library = "../lib/intercept"
	sources, err := filepath.Glob(library + "/*.c")
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "program")
	args := append([]string{"-O2", "-Wall", "-Wextra", "-Werror", "-I" + library, "-I../modules/intercept",
		"-I../bpf/include", "-o", out, source}, append(sources, "-lm")...)
	for _, file := range append(sources, source) {
		if _, err := os.Stat(file); err != nil { // the go command's test cache records the file
			t.Fatal(err)
		}
	}
	if text, err := exec.Command(clang, args...).CombinedOutput(); err != nil {
		t.Fatalf("compile %s: %v\n%s", source, err, text)
	}
	return out
}

func TestProgramsCompile(t *testing.T) {
	for _, source := range []string{"intercept-log/log.c", "intercept-steady/steady.c"} {
		text, err := exec.Command(compileLibrary(t, source), "/nowhere/socket", "log").CombinedOutput()
		if err == nil || !strings.Contains(string(text), "is the module applied") {
			t.Errorf("%s without a module: %v, %s", source, err, text)
		}
	}
}

// The pendulum stays upright while answers are in time, and falls if they are late.
func TestPendulumFallsWithLateAnswers(t *testing.T) {
	compileLibrary(t, "intercept-pendulum/sensors.c")
	plant, controller := compileLibrary(t, "intercept-pendulum/plant.c"),
		undisturbed(t, compileLibrary(t, "intercept-pendulum/controller.c"))
	out, err := controller.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := controller.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = controller.Process.Kill()
		_ = controller.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the controller says %q, %v", line, err)
	}
	for _, c := range []struct {
		delay string
		code  int
	}{{"0", 0}, {"12", 1}} {
		text, err := undisturbed(t, plant, "-t", "1", "-d", c.delay).CombinedOutput()
		var exit *exec.ExitError
		code := 0
		if errors.As(err, &exit) {
			code = exit.ExitCode()
		}
		if code != c.code {
			t.Errorf("with a delay of %s ms: exit status %d, %s", c.delay, code, text)
		}
	}
}

// undisturbed returns a command with high priority. All such commands share one CPU, so that if one of two programs is
// preempted, the other does not run on.
func undisturbed(t *testing.T, command string, args ...string) *exec.Cmd {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: real-time priority")
	}
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		t.Fatal(err)
	}
	first := 0
	for !cpus.IsSet(first) {
		first++
	}
	return exec.Command("taskset", append([]string{"-c", fmt.Sprint(first), "chrt", "-f", "1", command}, args...)...)
}
