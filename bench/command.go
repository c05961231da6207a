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

// flags are what every experiment takes.
type flags struct {
	quick, bystander  bool
	loads, contenders []string
	rounds            int
	out, plots        string
}

// Command is `bench` with one subcommand per registered experiment.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure Kerb against its references on this machine",
		Long: "Every experiment builds its own hosts in network namespaces, measures Kerb and its\n" +
			"references in turn and prints a table. It needs root and a machine that is otherwise idle.",
		Args: cobra.NoArgs, // a name that is misspelt
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

// RegisterCommand adds a command that is not an experiment. It is called from init.
func RegisterCommand(c func() *cobra.Command) { commands = append(commands, c) }

func sweepCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "sweep",
		Short: "Remove what killed benchmarks have left",
		Long: "Removes the network namespaces, directories and pins of benchmarks that were killed. Every benchmark " +
			"begins with it.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return sweep() },
	}
}

func sweep() error {
	if err := errors.Join(tempdir.Sweep(), netlab.SweepDead()); err != nil {
		return fmt.Errorf("remove what a killed bench has left: %w", err)
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
	cmd.Flags().BoolVar(&f.quick, "quick", false, "few loads and short measurements, within 45 seconds")
	cmd.Flags().StringSliceVar(&f.loads, "loads", nil, "only these loads, separated by commas; veth/* stands for all "+
		"of that kind")
	cmd.Flags().IntVar(&f.rounds, "rounds", MinRounds, "how often every measurement is repeated")
	cmd.Flags().BoolVar(&f.bystander, "bystander", false, "one more round of every measurement with a compute job "+
		"next to it: how much the job loses")
	cmd.Flags().StringVar(&f.out, "out", "", "write the figures to this file as JSON, compressed if it ends in .gz")
	cmd.Flags().StringVar(&f.plots, "plots", "", "write plots (SVG) into this directory")
	if len(e.Configs) > 0 {
		cmd.Flags().StringSliceVar(&f.contenders, "contenders", nil, "only these, separated by commas; *-fifo stands for "+
			"all of that kind: "+strings.Join(e.Configs, ", "))
	}
	if e.Flags != nil {
		e.Flags(cmd)
	}
	cmd.RegisterFlagCompletionFunc("loads", cobra.FixedCompletions(e.allLoads(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (e Experiment) execute(cmd *cobra.Command, f flags) error {
	if f.rounds < MinRounds {
		return fmt.Errorf("--rounds %d: at least %d are needed to tell a figure from noise", f.rounds, MinRounds)
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

// Measure runs the experiment, on hosts of its own, and describes the machine in the report.
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
		run.Note("in %d of %d rounds the hypervisor gave over %d%% of the CPUs' time to others: the metric steal has each "+
			"round's, in the order of the rounds of other figures", stolen, all, mostSteal)
	}
	if ctx.Err() != nil {
		err = errors.New("interrupted; the next run removes what may be left")
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
