// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Grace periods after a change of values are expedited as far as that is permitted, and the setting is put back.
func TestGraceIsExpedited(t *testing.T) {
	if err := unix.Access(expeditedFile, unix.W_OK); err != nil {
		t.Skip(err)
	}
	for _, permitted := range []bool{false, true} {
		d := &Dataplane{opts: Options{Run: t.TempDir()}}
		d.PermitExpedite(permitted)
		expedited := false
		awaitPackets = func() error {
			_, err := os.Stat(d.expediteNote())
			expedited = err == nil
			return nil
		}
		t.Cleanup(func() { awaitPackets = awaitGracePeriod })
		for name, wait := range map[string]func() error{
			"in the background": func() error {
				g := d.newGrace()
				<-g.over
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
			if _, err := os.Stat(d.expediteNote()); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: the setting was not put back: %v", name, err)
			}
			d.grace = nil
		}
	}
}
