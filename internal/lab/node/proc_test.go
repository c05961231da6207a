// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"testing"
)

func TestProportional(t *testing.T) {
	if n, err := Proportional(os.Getpid()); err != nil || n < 1<<20 || n > 1<<32 {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := Proportional(0); err == nil {
		t.Error("process 0 has memory")
	}
}

func TestDescendants(t *testing.T) {
	shell := exec.Command("sh", "-c", "sleep 60 & echo; wait")
	out, err1 := shell.StdoutPipe()
	if err := errors.Join(err1, shell.Start()); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	all, err := Descendants(os.Getpid())
	if err != nil || !slices.Contains(all, shell.Process.Pid) || len(all) != 2 {
		t.Errorf("%v, %v; the shell is %d", all, err, shell.Process.Pid)
	}
	for _, pid := range all {
		if p, err := os.FindProcess(pid); err == nil {
			_ = p.Kill()
		}
	}
	_ = shell.Wait()
}
