// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/binpath"
)

// benchCommands run kerb-bench, so that the agent's binary does not contain the benchmarks and the demo.
func benchCommands() []*cobra.Command {
	return []*cobra.Command{
		benchCommand("bench", "", "Compare Kerb with other implementations on this machine"),
		benchCommand("demo", "", "Deploy and change modules on three demo services with live traffic"),
	}
}

// benchCommand returns a command that runs the same command of kerb-bench, below parent unless that is empty.
func benchCommand(name, parent, short string) *cobra.Command {
	words := append(strings.Fields(parent), name)
	return &cobra.Command{
		Use:   name + " ...",
		Short: short,
		Long: short + ".\nRuns kerb-bench " + strings.Join(words, " ") + " with the same arguments; --help shows its own. " +
			"kerb-bench is a separate program that `make build`\n" +
			"builds together with kerb: install it in the same directory as kerb, or on PATH.",
		Example:            "  kerb " + strings.Join(words, " ") + " --help",
		DisableFlagParsing: true,
		ValidArgsFunction: func(_ *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			return completeBench(slices.Concat(words, args, []string{word}))
		},
		RunE: func(_ *cobra.Command, args []string) error {
			program, err := binpath.Find(binpath.Bench)
			if err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			err = unix.Exec(program, slices.Concat([]string{program}, words, args),
				append(os.Environ(), binpath.KerbEnv+"="+self))
			return fmt.Errorf("run %s: %w", program, err)
		},
	}
}

// completeBench lets kerb-bench complete its own arguments. The last line of its output is the directive.
func completeBench(words []string) ([]string, cobra.ShellCompDirective) {
	program, err := binpath.Find(binpath.Bench)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	out, err := exec.Command(program, append([]string{cobra.ShellCompRequestCmd}, words...)...).Output()
	values, last, found := strings.Cut(string(out), "\n:")
	directive, wrong := strconv.Atoi(strings.TrimSpace(last))
	if err != nil || !found || wrong != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return strings.Split(values, "\n"), cobra.ShellCompDirective(directive)
}

// sweepBenches cleans up after killed benchmarks. Without kerb-bench none can have run.
func sweepBenches() error {
	program, err := binpath.Find(binpath.Bench)
	if err != nil {
		return nil
	}
	if out, err := exec.Command(program, "bench", "sweep").CombinedOutput(); err != nil {
		return fmt.Errorf("remove the leftovers of killed benchmarks: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
