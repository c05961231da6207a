// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
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
	cmd := Root(Build{Version: "test"})
	cmd.SetArgs(append([]string{"package"}, args...))
	cmd.SetOut(ts.Stdout())
	cmd.SetErr(ts.Stderr())
	err := cmd.Execute()
	if err != nil {
		fmt.Fprintln(ts.Stderr(), err)
	}
	if fails && err == nil {
		ts.Fatalf("package %v did not fail", args)
	}
	if !fails {
		ts.Check(err)
	}
}
