// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
)

// TestPackageScripts runs testdata/package/*.txtar with `package` as the part of the command line that works on files. It
// runs in this process, whose directory is not the script's: directories are written with $WORK.
func TestPackageScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/package",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"package": func(ts *testscript.TestScript, fails bool, args []string) { runPackage(ts, fails, args) },
		},
		Condition: func(cond string) (bool, error) { return cond == "root" && os.Geteuid() == 0, nil },
	})
}

func runPackage(ts *testscript.TestScript, fails bool, args []string) {
	cmd := &cobra.Command{Use: "package", SilenceUsage: true}
	cmd.PersistentFlags().StringP("output", "o", "table", "")
	cmd.AddCommand(packageAuthorCommands()...)
	cmd.SetArgs(args)
	cmd.SetOut(ts.Stdout())
	cmd.SetErr(ts.Stderr())
	err := cmd.Execute()
	if fails && err == nil {
		ts.Fatalf("package %v did not fail", args)
	}
	if !fails {
		ts.Check(err)
	}
}
