// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"encoding/xml"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/internal/cgroup"
)

// make demo-check tests the demo as a whole; these tests cover code that a successful run does not execute.

func TestAFailedCheckIsPrintedAndCounted(t *testing.T) {
	var out strings.Builder
	printer := newPrinter(&out, false)
	printer.check("two and two are four", true, "%d", 4)
	printer.check("two and two are five", false, "%d", 4)
	printer.progress("never shown")
	printer.summary(nil)
	want := "  ok  two and two are four\n  FAILED\n    expected: two and two are five\n    seen:     4\n\n1 passed, 1 " +
		"failed in 0 s\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

func TestAnErrorCountsAsAFailure(t *testing.T) {
	var out strings.Builder
	newPrinter(&out, true).summary(errors.New("no network"))
	if !strings.Contains(out.String(), "0 passed, 1 failed") {
		t.Errorf("summary: %q", out.String())
	}
}

// A failed check after Ctrl-C does not count as a failure; passed checks, and all before and after, are printed.
func TestAnInterruptedCheckIsNoFailure(t *testing.T) {
	var out strings.Builder
	ctx, interrupt := context.WithCancel(t.Context())
	d := &demo{printer: newPrinter(&out, true)}
	d.steps = []step{{"cut off", func(d *demo, _ context.Context) error {
		d.check("before", false, "")
		interrupt()
		d.check("cut off", false, "")
		return ctx.Err()
	}}}
	if err := d.play(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	d.check("nothing is left", false, "")
	if text := out.String(); d.failed != 2 || strings.Contains(text, "expected: cut off") ||
		!strings.Contains(text, "expected: nothing is left") {
		t.Errorf("%d failed: %s", d.failed, text)
	}
}

// Ctrl-C ends a wait immediately.
func TestAWaitEndsWithItsContext(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	asked := 0
	err := (&demo{}).await(ctx, "it", func() error { asked++; interrupt(); return errors.New("not yet") })
	if !errors.Is(err, context.Canceled) || asked != 1 {
		t.Errorf("asked %d times: %v", asked, err)
	}
}

// alone skips the test if another demo uses the names.
func alone(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	unlock, err := onlyDemo()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(unlock)
	if found := leftovers(); len(found) > 0 {
		t.Skip("a demo has left ", found)
	}
}

// The demo's cgroup is removed at the end, regardless of how far the demo came and of its previous cgroup.
func TestTheCgroupIsLeft(t *testing.T) {
	alone(t)
	dir, err := cgroupDir()
	if err != nil {
		t.Skip(err)
	}
	before, err := cgroup.Self()
	if err != nil {
		t.Fatal(err)
	}
	for name, back := range map[string]string{"back": before, "where it was is gone": before + "-gone"} {
		t.Run(name, func(t *testing.T) {
			d := &demo{printer: newPrinter(io.Discard, true)}
			t.Cleanup(func() { // also after a failed test
				if err := errors.Join(moveInto(before), removeCgroup()); err != nil {
					t.Error(err)
				}
			})
			if err := d.enterCgroup(); err != nil {
				t.Skip(err)
			}
			d.cgroupBefore = back
			if err := d.end(); (err != nil) != (back != before) {
				t.Errorf("the end: %v", err)
			}
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: %v", dir, err)
			}
		})
	}
}

// Pinned programs are checked at the end; a demo without pinned programs is an error.
func TestProgramsAreNoted(t *testing.T) {
	alone(t)
	d := &demo{printer: newPrinter(io.Discard, true)}
	if err := d.recordPrograms(); err == nil {
		t.Error("no error without pins")
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	if err != nil {
		t.Skip(err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	dir := filepath.Join(pinsIn, "chains")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Skip(err)
	}
	defer os.RemoveAll(pinsIn)
	if err := p.Pin(filepath.Join(dir, "program")); err != nil {
		t.Skip(err)
	}
	if err := d.recordPrograms(); err != nil || !d.programs[uint32(id)] || len(d.programs) != 1 {
		t.Errorf("%v, %v, want program %d", d.programs, err, id)
	}
}

func TestRatesOfIperf(t *testing.T) {
	s := &stream{process: &process{ended: make(chan struct{})}}
	s.parse(strings.NewReader(`Connecting to host 10.99.1.3, port 5201
[  5] local 10.99.1.2 port 57734 connected to 10.99.1.3 port 5201
[ ID] Interval           Transfer     Bitrate         Retr  Cwnd
[  5]   0.00-1.00   sec  35.9 MBytes   301 Mbits/sec    0    221 KBytes
[  5]   1.00-2.00   sec  0.00 Bytes  0.00 Mbits/sec    3   1.41 KBytes
[  5]  10.00-11.00  sec  35.8 MBytes  300.5 Mbits/sec    0    221 KBytes
`))
	if diff := cmp.Diff([]float64{301, 0, 300.5}, s.seconds()); diff != "" {
		t.Errorf("rates (-want +got):\n%s", diff)
	}
}

func TestExcerpt(t *testing.T) {
	lines := []string{`a{x="1"} 1`, `a{x="2"} 0`, `a{x="3"} 3`, `a{x="4"} 4`, `a{x="5"} 5`, `b 1`, `c 1`}
	want := []string{`a{x="1"} 1`, `a{x="3"} 3`, `a{x="4"} 4`, `b 1`}
	if diff := cmp.Diff(want, excerpt(lines, 4)); diff != "" {
		t.Errorf("excerpt (-want +got):\n%s", diff)
	}
}

func TestErrorOfACommand(t *testing.T) {
	err := errors.New("kerb apply -f x: exit status 2: kerb: Module fw: spec.config.rules[1].dstPort: wrong")
	if got, want := said(err), "kerb: Module fw: spec.config.rules[1].dstPort: wrong\n"; got != want {
		t.Errorf("said %q, want %q", got, want)
	}
	if got := said(nil); got != "" {
		t.Errorf("said %q without an error", got)
	}
}

func TestTheWebServerRefusesBadPorts(t *testing.T) {
	c := webCommand()
	c.SetArgs([]string{"port"})
	c.SetOut(io.Discard)
	c.SetErr(io.Discard)
	if err := c.ExecuteContext(t.Context()); err == nil {
		t.Error("no error for a port that is none")
	}
}

// The commands that KEEP=1 prints work when pasted into a new shell.
func TestThePrintedEnvironmentFindsKerb(t *testing.T) {
	program := filepath.Join(t.TempDir(), "a checkout", "kerb")
	if err := errors.Join(os.Mkdir(filepath.Dir(program), 0o755),
		os.WriteFile(program, []byte("#!/bin/sh\necho $KERB_SOCKET $1\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", environment(program)+"; cd /; kerb top")
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	out, err := cmd.CombinedOutput()
	if want := socketPath + " top\n"; err != nil || string(out) != want {
		t.Errorf("%q, %v, want %q", out, err, want)
	}
}

func TestPicture(t *testing.T) {
	r := &recorder{Writer: io.Discard, started: time.Now()}
	printer := newPrinter(r, false)
	printer.terminal = true
	printer.command("kerb module list <all>")
	printer.progress("never drawn")
	printer.endProgress()
	printer.check(strings.Repeat("w", 2*pictureColumns), true, "")
	for range pictureRows {
		printer.say("line")
	}
	path := filepath.Join(t.TempDir(), "demo.svg")
	if err := writePicture(path, "demo", r.lines); err != nil {
		t.Fatal(err)
	}
	svg, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`<tspan class="bold">$ kerb module list &lt;all&gt;</tspan>`,
		`<tspan class="green">ok</tspan>`,
		"100% { transform: translateY(-34px) }"} {
		if !strings.Contains(string(svg), want) {
			t.Errorf("the picture lacks %q:\n%s", want, svg)
		}
	}
	if strings.Contains(string(svg), "never drawn") || strings.Contains(string(svg), strings.Repeat("w", pictureColumns)) {
		t.Errorf("the picture has a progress message, or a line wider than itself:\n%s", svg)
	}
	if got := strings.Count(string(svg), `class="line"`); got != len(r.lines) {
		t.Errorf("%d lines of %d are drawn", got, len(r.lines))
	}
	if err := xml.Unmarshal(svg, new(struct{ XMLName xml.Name })); err != nil {
		t.Errorf("the picture is no XML: %v", err)
	}
}
