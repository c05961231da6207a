// SPDX-License-Identifier: Apache-2.0

package pintest

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const pins = "/sys/fs/bpf"

// TestOwner pins something, and is killed by TestPinsOfKilledTests.
func TestOwner(t *testing.T) {
	if os.Getenv("PINTEST_OWNER") == "" {
		t.Skip("is run by TestPinsOfKilledTests")
	}
	path := New(t)
	if err := os.MkdirAll(filepath.Join(path, "modules"), 0o700); err != nil {
		t.Fatal(err)
	}
	os.Stdout.WriteString(path + "\n")
	select {}
}

func TestPinsOfKilledTests(t *testing.T) {
	var fs unix.Statfs_t
	if err := unix.Statfs(pins, &fs); os.Geteuid() != 0 || err != nil || fs.Type != unix.BPF_FS_MAGIC {
		t.Skip("needs root, and a bpffs")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestOwner$")
	cmd.Env = append(os.Environ(), "PINTEST_OWNER=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	path, err := bufio.NewReader(out).ReadString('\n')
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	path = strings.TrimSpace(path)
	if err != nil || filepath.Dir(path) != pins {
		t.Fatalf("the other process says %q, %v", path, err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("before the next test: %v", err)
	}
	if own := New(t); own == path {
		t.Errorf("two tests have %s", own)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("%s of the killed test is left: %v", path, err)
	}
}
