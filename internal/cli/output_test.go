// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// Text of a control plane cannot control the terminal of the reader.
func TestTerminalIsNotSteered(t *testing.T) {
	m := v1alpha1.Module{Status: &v1alpha1.ModuleStatus{Conditions: []v1alpha1.Condition{
		{Type: "Ready", Status: "False", Reason: "Ended", Message: "it last said: \x1b]0;root\a\x1b[2Jfine\r \u009b2J " +
			"\u202eelif \x9b bell"}}}}
	var out bytes.Buffer
	if err := (&app{output: "table"}).print(&out, m, func(w io.Writer) { describeModule(w, m) }); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(out.String(), "\x1b\a\r\u009b\u202e") || bytes.Contains(out.Bytes(), []byte(" \x9b ")) {
		t.Errorf("printed %q", out.String())
	}
	if !strings.Contains(out.String(), "␛[2Jfine") {
		t.Errorf("what was said is not to be seen: %q", out.String())
	}
}

// Nor can events, which contain text of control planes and clients.
func TestEventsDoNotSteerTheTerminal(t *testing.T) {
	body := `{"kind":"Module","name":"fw\u001b[2J","type":"Fuse\u0007","reason":"\u009b2JBlown",` +
		`"message":"it last said: \u001b]0;root\u0007\u001b[2Jfine\r \u202eelif","count":1}`
	var out bytes.Buffer
	if err := (&app{output: "table"}).printEvents(&out, io.Discard, strings.NewReader(body)); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(out.String(), "\x1b\a\r\u009b\u202e") || !strings.Contains(out.String(), "␛[2Jfine") {
		t.Errorf("printed %q", out.String())
	}
}

// Missing events are reported on standard error. The output remains one JSON object per line.
func TestMissingEventsAreSaid(t *testing.T) {
	body := `{"number":1,"kind":"Agent","type":"Agent","reason":"Started"}` + "\n" + `{"lost":12}` + "\n" +
		`{"number":20,"kind":"Agent","type":"Agent","reason":"Started"}`
	for _, output := range []string{"table", "json"} {
		var out, notes bytes.Buffer
		if err := (&app{output: output}).printEvents(&out, &notes, strings.NewReader(body)); err != nil {
			t.Fatal(err)
		}
		if strings.Count(out.String(), "Started") != 2 || strings.Count(out.String(), "\n") != 2 ||
			!strings.HasPrefix(notes.String(), "events are missing: 12 came faster than they were read") {
			t.Errorf("%s: %q and %q", output, out.String(), notes.String())
		}
	}
}

// Nor can the steps and warnings of a change, which contain text of packages.
func TestWarningsDoNotSteerTheTerminal(t *testing.T) {
	var out, notes bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetOut(&out)
	cmd.SetErr(&notes)
	result := v1alpha1.ApplyResult{Steps: []string{"attach \x1b[2J"}, Warnings: []string{"fw says \u009b2J\r fine"}}
	if err := (&app{output: "table", verbose: true}).printResult(cmd, result); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(notes.String(), "\x1b\r\u009b") || !strings.Contains(notes.String(), "attach ␛[2J") ||
		!strings.Contains(notes.String(), "fine") {
		t.Errorf("printed %q", notes.String())
	}
}

// Colour goes to terminals only, and to none where NO_COLOR is set.
func TestColour(t *testing.T) {
	pty, terminal := openTerminal(t)
	lines := bufio.NewReader(pty)
	text := "fw  firewall  no: CannotRun\n-old\n+new\n"
	read := func(w *os.File) string {
		t.Helper()
		if _, err := coloured(w).Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		for range strings.Count(text, "\n") { // the terminal may hand the text over in pieces
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			out.WriteString(line)
		}
		return strings.ReplaceAll(out.String(), "\r", "")
	}
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "xterm")
	if got, want := read(terminal),
		"fw  firewall  \x1b[31mno: CannotRun\x1b[0m\n\x1b[31m-old\x1b[0m\n\x1b[32m+new\x1b[0m\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	t.Setenv("NO_COLOR", "1")
	if got := read(terminal); got != text {
		t.Errorf("with NO_COLOR %q", got)
	}
	t.Setenv("NO_COLOR", "")
	if file, err := os.Create(t.TempDir() + "/file"); err != nil || wantsColour(file) {
		t.Errorf("a file is coloured: %v", err)
	}
}

func openTerminal(t *testing.T) (pty, terminal *os.File) {
	t.Helper()
	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no terminals: ", err)
	}
	t.Cleanup(func() { pty.Close() })
	number, err := unix.IoctlGetInt(int(pty.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(pty.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { terminal.Close() })
	return pty, terminal
}

// --watch prints only after changes, and exits without error when it is interrupted.
func TestWatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var out bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetContext(ctx)
	cmd.SetOut(&out)
	calls := 0
	defer func(was time.Duration) { watchPeriod = was }(watchPeriod)
	watchPeriod = time.Millisecond
	err := (&app{output: "table"}).repeat(cmd, true, func(w io.Writer) error {
		if calls++; calls == 4 {
			cancel()
		}
		fmt.Fprintln(w, "state", calls/2)
		return nil
	})
	if want := "state 0\nstate 1\n"; err != nil || out.String() != want {
		t.Errorf("%v, printed %q, want %q", err, out.String(), want)
	}
}
