// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/rand"
	"encoding/hex"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// noStatus is the exit status of a binary whose end was not reported.
const noStatus = -1

// packageRun is the machine's report about one test binary.
type packageRun struct {
	pkg              string
	status           int // exit status, noStatus until it is known
	pass, fail, skip int // tests and subtests
	failed           []string
	// tests that have started and not ended: in the end, those that a panic, timeout or kernel crash interrupted
	open    []string
	started time.Time
	seconds float64
}

// ok reports whether the package passed: it ran to its end without a failed test.
func (p *packageRun) ok() bool { return p.status == 0 && p.fail == 0 && len(p.open) == 0 }

// transcript is the output of the machine's second serial port, parsed line by line. Lines that begin with the nonce
// come from init.sh, which alone knows it; test results are the lines that Go's testing package marks for test2json.
type transcript struct {
	nonce    string
	release  string // of the running kernel; empty until init.sh has started
	packages []packageRun
	done     bool
}

// newNonce returns a word that no test prints by accident.
func newNonce() string {
	var b [6]byte
	rand.Read(b[:])
	return "@@matrix-" + hex.EncodeToString(b[:])
}

// event is the content of a line, for progress messages.
type event int

const (
	nothing event = iota
	booted
	packageStarted
	packageEnded
	finished
)

// testing's framing lines begin with ^V (0x16), which distinguishes them from a test's own output.
var (
	testStart  = regexp.MustCompile(`^\x16=== RUN   (\S+)`)
	testResult = regexp.MustCompile(`^\s*\x16\s*--- (PASS|FAIL|SKIP): (\S+)`)
)

// feed parses one line with its arrival time.
func (t *transcript) feed(line string, at time.Time) event {
	line = strings.TrimRight(line, "\r\n")
	if rest, ok := strings.CutPrefix(line, t.nonce+" "); ok {
		return t.order(strings.Fields(rest), at)
	}
	p := t.running()
	if p == nil {
		return nothing
	}
	if m := testStart.FindStringSubmatch(line); m != nil {
		p.open = append(p.open, m[1])
	}
	if m := testResult.FindStringSubmatch(line); m != nil {
		p.count(m[1], m[2])
	}
	return nothing
}

// order handles the words of a line of init.sh.
func (t *transcript) order(words []string, at time.Time) event {
	switch {
	case len(words) == 2 && words[0] == "boot":
		t.release = words[1]
		return booted
	case len(words) == 2 && words[0] == "start":
		t.packages = append(t.packages, packageRun{pkg: words[1], status: noStatus, started: at})
		return packageStarted
	case len(words) == 3 && words[0] == "exit" && t.running() != nil && t.running().pkg == words[1]:
		return t.running().end(words[2], at)
	case len(words) == 1 && words[0] == "done":
		t.done = true
		return finished
	}
	return nothing
}

// running returns the package whose binary has started and not ended.
func (t *transcript) running() *packageRun {
	if last := t.last(); last != nil && last.status == noStatus {
		return last
	}
	return nil
}

// last returns the package that started last.
func (t *transcript) last() *packageRun {
	if len(t.packages) == 0 {
		return nil
	}
	return &t.packages[len(t.packages)-1]
}

func (p *packageRun) end(status string, at time.Time) event {
	n, err := strconv.Atoi(status)
	if err != nil {
		return nothing
	}
	p.status, p.seconds = n, at.Sub(p.started).Seconds()
	return packageEnded
}

func (p *packageRun) count(verdict, test string) {
	p.open = slices.DeleteFunc(p.open, func(name string) bool { return name == test })
	switch verdict {
	case "PASS":
		p.pass++
	case "SKIP":
		p.skip++
	case "FAIL":
		p.fail++
		p.failed = append(p.failed, test)
	}
}
