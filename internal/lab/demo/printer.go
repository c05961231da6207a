// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Colours, only on terminals.
const (
	bold  = "1"
	dim   = "2"
	red   = "31"
	green = "32"
	cyan  = "36"
)

// printer prints the steps and results of the demo, and counts its checks.
type printer struct {
	out      io.Writer
	terminal bool
	started  time.Time

	interrupted    func() bool // reports whether the demo was interrupted; may be nil
	mu             sync.Mutex
	passed, failed int
}

func newPrinter(out io.Writer, plain bool) *printer {
	return &printer{out: out, terminal: !plain && isTerminal(out), started: time.Now()}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

func (t *printer) paint(colour, text string) string {
	if !t.terminal {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

func (t *printer) heading(n, of int, title string) {
	at := fmt.Sprintf("%4.1f s", time.Since(t.started).Seconds())
	fmt.Fprintf(t.out, "\n%s %s  %s\n", t.paint(cyan, fmt.Sprintf("[%d/%d]", n, of)), t.paint(bold, title),
		t.paint(dim, at))
}

// say prints a line of text.
func (t *printer) say(format string, args ...any) {
	fmt.Fprintln(t.out, " ", fmt.Sprintf(format, args...))
}

// command prints a command line.
func (t *printer) command(line string) {
	fmt.Fprintf(t.out, "  %s\n", t.paint(bold, "$ "+line))
}

// show prints the output of a command, or a file.
func (t *printer) show(text string) {
	for line := range strings.Lines(text) {
		fmt.Fprintf(t.out, "    %s\n", strings.TrimRight(line, "\n"))
	}
}

// progress overwrites its line on a terminal; elsewhere it prints nothing.
func (t *printer) progress(format string, args ...any) {
	if t.terminal {
		fmt.Fprint(t.out, "\r\x1b[K  ", t.paint(dim, fmt.Sprintf(format, args...)))
	}
}

func (t *printer) endProgress() {
	if t.terminal {
		fmt.Fprint(t.out, "\r\x1b[K")
	}
}

// check prints a claim and whether it held, and the observed result if it did not. After an interrupt, a failed check
// is not reported.
func (t *printer) check(claim string, held bool, seen string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if held {
		t.passed++
		fmt.Fprintf(t.out, "  %s  %s\n", t.paint(green, "ok"), claim)
		return
	}
	if t.interrupted != nil && t.interrupted() {
		return
	}
	t.failed++
	fmt.Fprintf(t.out, "  %s\n    expected: %s\n    seen:     %s\n", t.paint(red, "FAILED"), claim,
		fmt.Sprintf(seen, args...))
}

// summary prints the last line. An error that ended the demo early counts as a failure.
func (t *printer) summary(err error) {
	if err != nil {
		t.failed++
	}
	colour := green
	if t.failed > 0 {
		colour = red
	}
	fmt.Fprintf(t.out, "\n%s in %.0f s\n", t.paint(colour, fmt.Sprintf("%d passed, %d failed", t.passed, t.failed)),
		time.Since(t.started).Seconds())
}
