// SPDX-License-Identifier: Apache-2.0

package executable

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk/sdktest"
)

const haproxyConfig = "defaults\n mode tcp\n timeout connect 5s\n timeout client 1h\n timeout server 1h\n" +
	"listen one\n bind SOCKET\n server s 127.0.0.1:1\n"

// HAProxy is as its configuration has it, if that is certain.
func TestHAProxy(t *testing.T) {
	sdktest.NeedRoot(t)
	for name, c := range map[string]struct {
		config string
		args   []string
		uses   []string
	}{
		"without the option":  {haproxyConfig, nil, nil},
		"in a comment":        {"# no splice-auto here\n" + haproxyConfig, nil, nil},
		"with the option":     {haproxyConfig + " option splice-auto\n", nil, []string{WaitAll, Splice}},
		"switched off":        {haproxyConfig + " option splice-auto\n", []string{"-dS"}, nil},
		"in an unknown place": {haproxyConfig, []string{"-C", "/"}, []string{WaitAll, Splice}},
		"in the last file":    {haproxyConfig, []string{"-q", "--"}, []string{WaitAll, Splice}},
	} {
		t.Run(name, func(t *testing.T) {
			config := written(t, c.config)
			pid := started(t, append(append([]string{"haproxy", "-db", "-f", config}, c.args...), lastFile(t, c.args)...))
			var e Examiner
			if facts := settled(t, &e, pid, "haproxy", c.uses); !facts.Configured {
				t.Error("its configuration says nothing")
			}
		})
	}
}

// A file that was written since it was read says nothing.
func TestHAProxyConfigChanged(t *testing.T) {
	sdktest.NeedRoot(t)
	config := written(t, haproxyConfig+" option splice-auto\n")
	pid := started(t, []string{"haproxy", "-db", "-f", config})
	var e Examiner
	settled(t, &e, pid, "haproxy", []string{WaitAll, Splice})
	if err := os.WriteFile(config, []byte("# it has been changed\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if facts, err := e.Examine(pid, 0); err != nil || len(facts.Uses) == 0 {
		t.Errorf("%+v, %v", facts, err)
	}
}

// Who calls himself haproxy may name anything: a pipe without a writer does not hold up the agent.
func TestConfigIsAPipe(t *testing.T) {
	sdktest.NeedRoot(t)
	pipe := filepath.Join(t.TempDir(), "haproxy.cfg")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := (&running{dir: "/proc/self", start: 1 << 62}).read(pipe)
		read <- err
	}()
	select {
	case err := <-read:
		if !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it waits for a writer")
	}
}

// written is a file that is older than any process that begins now, by what /proc reports it.
func written(t *testing.T, text string) string {
	t.Helper()
	if _, err := exec.LookPath("haproxy"); err != nil {
		t.Skip("not installed")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "haproxy.cfg")
	text = strings.Replace(text, "SOCKET", filepath.Join(dir, "socket"), 1)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * tick) // the start of a process is counted in ticks: it is later than the file
	return path
}

// lastFile is one with the option, where arguments end with --.
func lastFile(t *testing.T, args []string) []string {
	t.Helper()
	if len(args) == 0 || args[len(args)-1] != "--" {
		return nil
	}
	return []string{written(t, "defaults\n mode tcp\n option splice-response\n")}
}
