// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/spf13/cobra"
)

// modelAuthorCommands returns the subcommands of `kerb model` that work on files, without an agent.
func (a *app) modelAuthorCommands() []*cobra.Command {
	return []*cobra.Command{
		mlCommand("import", "Make a document of a model of scikit-learn, ONNX or treelite",
			"  kerb model import guard.onnx --features dis,dio,dao,other --window 10s -o guard.json\n"+
				"  kerb model import guard.joblib --trust-pickle --features dis,dio,dao,other -o guard.json"),
		mlCommand("train", "Train the examples that Kerb ships, or a model of your own table",
			"  kerb model train rpl --seconds 10 -o floods.json\n  kerb model train own --data windows.csv --kind forest "+
				"-o own.json"),
		a.modelCheckCommand(), a.modelQuantiseCommand(), a.modelPackCommand(),
		benchCommand("windows", "model", "Extract the feature table of a capture, as the data plane counts it"),
		benchCommand("record", "model", "Record the feature table of a running classifier"),
		benchCommand("replay", "model", "Show the decisions of a model on a capture"),
		benchCommand("send", "model", "Replay a capture to an interface with its original timing"),
	}
}

// mlCommand returns a command that runs kerb-ml, a Python package, with the user's privileges: the agent never handles
// its input.
func mlCommand(verb, short, example string) *cobra.Command {
	return &cobra.Command{
		Use:   verb + " ...",
		Short: short,
		Long: short + ".\nRuns kerb-ml " + verb + ", the Python package in ml/, with the same arguments; " +
			"--help shows its own. KERB_ML names its program.",
		Example:            example,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			ml := exec.CommandContext(cmd.Context(), cmp.Or(os.Getenv("KERB_ML"), "kerb-ml"), append([]string{verb}, args...)...)
			ml.Stdin, ml.Stdout, ml.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
			err := ml.Run()
			var failed *exec.ExitError
			switch {
			case errors.As(err, &failed):
				return fmt.Errorf("%s %s: %w", ml.Path, verb, err)
			case err != nil:
				return fmt.Errorf("%w; install it with `make ml` or `pip install ./ml`, and set KERB_ML if it is not in PATH", err)
			}
			return nil
		},
	}
}
