// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestMain makes the test binary a process that has a directory and waits.
func TestMain(m *testing.M) {
	if os.Getenv("SCRATCH_OWNER") == "" {
		os.Exit(m.Run())
	}
	dir, err := Dir()
	fmt.Println(dir, err)
	time.Sleep(time.Minute)
}

// Directories of living processes stay, those of killed ones go, with their pins and whatever is in them.
func TestSweep(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	own, err := Dir()
	if err != nil {
		t.Fatal(err)
	}
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), "SCRATCH_OWNER=1")
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	dir := line[:len(line)-len(" <nil>\n")]
	if err := os.WriteFile(filepath.Join(dir, "state"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	pinned := os.Mkdir(Pins(dir), 0o700) == nil // root, with a bpffs
	sweep := func() {
		t.Helper()
		if err := Sweep(); err != nil {
			t.Fatal(err)
		}
	}
	sweep()
	if !there(own) || !there(dir) {
		t.Error("a directory in use was removed")
	}
	_ = other.Process.Kill()
	_ = other.Wait()
	sweep()
	if there(dir) || pinned && there(Pins(dir)) {
		t.Error("something of a killed process is left")
	}
	if !there(own) {
		t.Error("a directory in use was removed")
	}
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
