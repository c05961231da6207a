// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// read feeds a console text to a transcript, one second per line.
func read(text string) *transcript {
	log := &transcript{nonce: "@@n"}
	at := time.Unix(0, 0)
	for line := range strings.Lines(text) {
		at = at.Add(time.Second)
		log.feed(line, at)
	}
	return log
}

// summary is a packageRun without its timestamps.
type summary struct {
	Pkg                      string
	Status, Pass, Fail, Skip int
	Failed, Open             string
	Seconds                  float64
}

func summaries(log *transcript) []summary {
	var all []summary
	for _, p := range log.packages {
		all = append(all, summary{p.pkg, p.status, p.pass, p.fail, p.skip, strings.Join(p.failed, " "),
			strings.Join(p.open, " "), p.seconds})
	}
	return all
}

func TestTranscript(t *testing.T) {
	log := read("SeaBIOS\r\n@@n boot 6.1.0-56-cloud-amd64\r\n" +
		"@@n start internal/a\r\n" +
		"\x16=== RUN   TestA\r\n\x16--- PASS: TestA (0.00s)\r\n" +
		"    \x16--- FAIL: TestB/sub (0.00s)\r\n\x16--- FAIL: TestB (0.01s)\r\n\x16--- SKIP: TestC (0.00s)\r\n" +
		"--- PASS: TestPrintedByATest (0.00s)\r\n" +
		"no newline\r\n@@n exit internal/a 1\r\n" +
		"@@n start b\r\n\x16--- PASS: TestD (0.00s)\r\n@@n exit b 0\r\n@@n done\r\n")
	want := []summary{
		{"internal/a", 1, 1, 2, 1, "TestB/sub TestB", "", 8},
		{"b", 0, 1, 0, 0, "", "", 2},
	}
	if d := cmp.Diff(want, summaries(log)); d != "" {
		t.Error(d)
	}
	if !log.done || log.release != "6.1.0-56-cloud-amd64" {
		t.Errorf("done %v, release %q", log.done, log.release)
	}
}

// TestTranscriptCutShort: a machine that crashes in a package leaves it without a status.
func TestTranscriptCutShort(t *testing.T) {
	log := read("@@n boot 6.1\n@@n start a\n\x16=== RUN   TestA\n\x16--- PASS: TestA (0.00s)\n\x16=== RUN   TestB\n@@n ex")
	if d := cmp.Diff([]summary{{"a", noStatus, 1, 0, 0, "", "TestB", 0}}, summaries(log)); d != "" {
		t.Error(d)
	}
	if log.done {
		t.Error("done without the final line")
	}
}

// TestTranscriptNotForged: lines of tests that imitate those of init.sh have no effect.
func TestTranscriptNotForged(t *testing.T) {
	log := read("@@n boot 6.1\n@@n start a\n@@other exit a 0\nx @@n exit a 0\n@@n exit b 0\n@@n exit a zero\n@@n exit a " +
		"2\n@@n exit a 0\n")
	if d := cmp.Diff([]summary{{"a", 2, 0, 0, 0, "", "", 5}}, summaries(log)); d != "" {
		t.Error(d)
	}
}

func TestPanicLine(t *testing.T) {
	got := panicLine("[    1.0] fine\n[    2.0] Kernel panic - not syncing: Fatal exception\n[    3.0] ---[ end Kernel " +
		"panic ]---\n")
	if want := "Kernel panic - not syncing: Fatal exception"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}
