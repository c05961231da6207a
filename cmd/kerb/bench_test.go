// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// kerb bench and kerb demo execute kerb-bench in the directory of kerb.
func TestBenchAndDemoRunKerbBench(t *testing.T) {
	kerb := buildKerb(t)
	t.Setenv("PATH", t.TempDir())
	t.Run("without it the help has both commands, which say how to get it", func(t *testing.T) {
		for _, command := range []string{"\n  bench ", "\n  demo "} {
			if help, status := run(kerb, "--help"); !strings.Contains(help, command) || status != 0 {
				t.Errorf("exit status %d, the help has no %q", status, command)
			}
		}
		if out, status := run(kerb, "bench", "chain"); status != 1 || !strings.Contains(out, "make build") {
			t.Errorf("exit status %d: %s", status, out)
		}
	})
	t.Run("all arguments and its exit status", func(t *testing.T) {
		placeBench(t, kerb, "echo \"$KERB_PROGRAM\" \"$@\"\nexit 7\n")
		for _, args := range []string{"bench chain --quick -o x", "demo --help", "demo",
			"model windows net.pcap --window 1s", "model record guard", "model replay --help", "model send c.pcap air0"} {
			if out, status := run(kerb, strings.Fields(args)...); out != kerb+" "+args+"\n" || status != 7 {
				t.Errorf("kerb %s: %q, exit status %d", args, out, status)
			}
		}
	})
	t.Run("completion", func(t *testing.T) {
		placeBench(t, kerb, "[ \"$*\" = '__complete bench ch' ] && printf 'chain\\tCost\\n:4\\n'\n")
		out, status := run(kerb, "__complete", "bench", "ch")
		if want := "chain\tCost\n:4\n"; !strings.HasPrefix(out, want) || status != 0 {
			t.Errorf("%q, exit status %d", out, status)
		}
	})
}

func run(program string, args ...string) (out string, status int) {
	cmd := exec.Command(program, args...)
	text, _ := cmd.CombinedOutput()
	return string(text), cmd.ProcessState.ExitCode()
}

// placeBench installs a shell script as kerb-bench.
func placeBench(t *testing.T, kerb, script string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(filepath.Dir(kerb), "kerb-bench"), []byte("#!/bin/sh\n"+script),
		0o755); err != nil {
		t.Fatal(err)
	}
}

// buildKerb builds kerb as released, in a separate directory, with additional flags of go build.
func buildKerb(t *testing.T, flags ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "kerb")
	build := exec.Command("../../scripts/build", append([]string{program, "kerb"}, flags...)...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}
