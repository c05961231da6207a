// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/tempdir"
	"github.com/kerb-edge/kerb/sdk"
)

// flags are the flags of every experiment.
type flags struct {
	quick, bystander  bool
	loads, contenders []string
	rounds            int
	out, plots        string
}

// Command returns `bench` with one subcommand per registered experiment.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Compare Kerb with other implementations on this machine",
		Long: "Every experiment creates hosts in network namespaces, measures Kerb and the implementations it is\n" +
			"compared with in alternating rounds, and prints tables. Needs root and an otherwise idle machine.",
		Args: cobra.NoArgs, // rejects misspelt names
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(sweepCommand(), plotCommand(), tableCommand(), compareCommand())
	for _, more := range commands {
		cmd.AddCommand(more())
	}
	for _, name := range names() {
		cmd.AddCommand(experiments[name].command())
	}
	return cmd
}

var commands []func() *cobra.Command

// RegisterCommand adds a command that is not an experiment. Call it from init.
func RegisterCommand(c func() *cobra.Command) { commands = append(commands, c) }

func sweepCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "sweep",
		Short: "Clean up after killed benchmarks",
		Long: "Removes the network namespaces, directories and pins of benchmarks that were killed. Every benchmark " +
			"does this first.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return sweep() },
	}
}

func sweep() error {
	if err := errors.Join(tempdir.Sweep(), netlab.SweepDead()); err != nil {
		return fmt.Errorf("clean up after a killed benchmark: %w", err)
	}
	return nil
}

func (e Experiment) command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   e.Name,
		Short: e.Short,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SilenceUsage = true
			return e.execute(cmd, f)
		},
	}
	cmd.Flags().BoolVar(&f.quick, "quick", false, "few loads and short measurements: at most 45 seconds")
	cmd.Flags().StringSliceVar(&f.loads, "loads", nil, "comma-separated loads to run; patterns such as veth/* match "+
		"several")
	cmd.Flags().IntVar(&f.rounds, "rounds", MinRounds, "rounds of each measurement")
	cmd.Flags().BoolVar(&f.bystander, "bystander", false, "after each measurement, run one more round next to a compute "+
		"job and show how much it slows down")
	cmd.Flags().StringVar(&f.out, "out", "", "write the figures to this file as JSON, compressed if it ends in .gz")
	cmd.Flags().StringVar(&f.plots, "plots", "", "write plots (SVG) into this directory")
	if len(e.Configs) > 0 {
		cmd.Flags().StringSliceVar(&f.contenders, "contenders", nil, "comma-separated contenders to measure; patterns such "+
			"as *-fifo match several: "+strings.Join(e.Configs, ", "))
	}
	if e.Flags != nil {
		e.Flags(cmd)
	}
	cmd.RegisterFlagCompletionFunc("loads", cobra.FixedCompletions(e.allLoads(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (e Experiment) execute(cmd *cobra.Command, f flags) error {
	if f.rounds < MinRounds {
		return fmt.Errorf("--rounds %d: at least %d are needed to distinguish results from noise", f.rounds, MinRounds)
	}
	loads, err := e.pick(f.quick, f.loads)
	if err != nil {
		return err
	}
	contenders, err := e.named("contender", f.contenders, e.Configs)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	run := NewRun(e, f.quick, f.rounds, loads, cmd.ErrOrStderr())
	run.Configs, run.Bystander = contenders, f.bystander
	if err := e.Measure(ctx, run); err != nil {
		return err
	}
	return errors.Join(run.report.publish(cmd, f), run.report.Err())
}

// Measure runs the experiment, and adds a description of the machine to the report.
func (e Experiment) Measure(ctx context.Context, run *Run) error {
	if err := sweep(); err != nil {
		return err
	}
	machine := run.report.Machine
	machine.observe(os.DirFS("/"), func() { sdk.Pause(ctx, time.Second) })
	run.Progress("%s", machine)
	for _, warning := range machine.warnings(run.report.CPUs) {
		run.Progress("warning: %s", warning)
	}
	err := e.Run(ctx, run)
	machine.end(os.DirFS("/"))
	if stolen, all := run.report.stolenRounds(); stolen > 0 {
		run.Note("in %d of %d rounds the hypervisor stole more than %d%% of the CPU time: the metric steal lists it for "+
			"each round, in the same order as the other metrics", stolen, all, maxSteal)
	}
	if ctx.Err() != nil {
		err = errors.New("interrupted; the next run cleans up what is left")
	}
	if err != nil {
		return fmt.Errorf("bench %s: %w", e.Name, err)
	}
	return nil
}

func (r *Report) publish(cmd *cobra.Command, f flags) error {
	r.setRatios()
	if err := r.WriteTable(cmd.OutOrStdout()); err != nil {
		return err
	}
	if f.out != "" {
		if err := WriteJSON(f.out, r); err != nil {
			return fmt.Errorf("write figures: %w", err)
		}
	}
	if f.plots == "" {
		return nil
	}
	return r.writePlots(f.plots, func(string) bool { return true })
}
