// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// replaceSetting has a file in place of rcu_expedited, which other agents change, too, and returns how to read it.
func replaceSetting(t *testing.T) (setting func() string) {
	kernel := expeditedFile
	t.Cleanup(func() { expeditedFile = kernel })
	expeditedFile = filepath.Join(t.TempDir(), "rcu_expedited")
	if err := os.WriteFile(expeditedFile, []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return func() string {
		text, err := os.ReadFile(expeditedFile)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
}

// Grace periods after a change of values are expedited as far as that is permitted, and the setting is put back.
func TestGraceIsExpedited(t *testing.T) {
	replaceSetting(t)
	for _, permitted := range []bool{false, true} {
		d := &Dataplane{opts: Options{Run: t.TempDir()}}
		d.PermitExpedite(permitted)
		expedited := false
		awaitPackets = func() error {
			note, err := os.ReadFile(d.expediteNote())
			expedited = err == nil && len(note) > 0
			return nil
		}
		t.Cleanup(func() { awaitPackets = awaitGracePeriod })
		for name, wait := range map[string]func() error{
			"in the background": func() error {
				g := newGrace()
				d.pass(g)
				return g.err
			},
			"before the next change": d.settle,
		} {
			if err := wait(); err != nil {
				t.Fatal(err)
			}
			if expedited != permitted {
				t.Errorf("%s: expedited %v, permitted %v", name, expedited, permitted)
			}
			if note, _ := os.ReadFile(d.expediteNote()); len(note) > 0 {
				t.Errorf("%s: the setting was not put back: the note says %q", name, note)
			}
			d.grace = nil
		}
	}
}

// While points are attached or detached, a single one, too, grace periods are expedited as far as that is permitted.
func TestAttachmentIsExpedited(t *testing.T) {
	setting := replaceSetting(t)
	for permitted, want := range map[bool]string{false: "0", true: "1"} {
		d := &Dataplane{opts: Options{Run: t.TempDir()}, tcx: true}
		d.PermitExpedite(permitted)
		restore := d.Expedite()
		if setting() != want {
			t.Errorf("the setting is %q, permitted %v", setting(), permitted)
		}
		if err := restore(); err != nil || setting() != "0" {
			t.Errorf("the setting is %q afterwards, %v", setting(), err)
		}
	}
}

// A change and the wait after the one before expedite at the same time: the setting is put back when both have ended.
func TestExpediteTogether(t *testing.T) {
	setting := replaceSetting(t)
	d := &Dataplane{opts: Options{Run: t.TempDir()}}
	d.PermitExpedite(true)
	first, second := d.expedite(), d.expedite()
	if err := first(); err != nil || setting() != "1" {
		t.Errorf("setting %q when one of two has ended: %v", setting(), err)
	}
	if err := second(); err != nil || setting() != "0" {
		t.Errorf("setting %q when both have ended: %v", setting(), err)
	}
}

// A data plane that is closed right after a change has put the setting back.
func TestGraceEndsBeforeTheAgent(t *testing.T) {
	setting := replaceSetting(t)
	expedited := make(chan bool, 1)
	awaitPackets = func() error {
		expedited <- setting() == "1"
		time.Sleep(10 * time.Millisecond) // long enough for the agent to end meanwhile
		return nil
	}
	t.Cleanup(func() { awaitPackets = awaitGracePeriod })
	d := &Dataplane{opts: Options{Run: t.TempDir()}}
	d.PermitExpedite(true)
	b := d.Bind(nil)
	b.noteValues()
	b.Close()
	d.Close()
	if setting() != "0" || len(expedited) != 1 || !<-expedited {
		t.Errorf("the setting is %q", setting())
	}
}

// The wait after a change of values begins when the change has ended. A change that comes first waits itself.
func TestGraceBeginsAfterTheChange(t *testing.T) {
	waits := 0
	awaitPackets = func() error { waits++; return nil }
	t.Cleanup(func() { awaitPackets = awaitGracePeriod })
	synctest.Test(t, func(t *testing.T) {
		b := (&Dataplane{}).Bind(nil)
		check := func(what string, want int) {
			t.Helper()
			if synctest.Wait(); waits != want {
				t.Errorf("%d waits %s, want %d", waits, what, want)
			}
		}
		b.noteValues()
		check("during a change", 0)
		b.Close()
		check("after it", 1)
		if err := b.settle(); err != nil {
			t.Error(err)
		}
		check("before the next change", 1)
		b.noteValues()
		if err := b.settle(); err != nil {
			t.Error(err)
		}
		check("of a change that follows at once", 2)
	})
}
