// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// Each TCX program that is attached or detached waits for an RCU grace period, about 10 ms, while it holds the lock of
// all network configuration: 500 services would take more than ten seconds, and pods that start in the meantime wait as
// well. While points change, and after values have changed, the kernel is asked for expedited grace periods, which
// interrupt the other CPUs but take well under a millisecond. Where the kernel itself waits with this lock held, as it
// does several times when a pod's interface moves into its namespace, it also uses expedited grace periods
// (synchronize_net).

// expeditedFile is the kernel's setting, shared by all agents. Tests replace it.
var expeditedFile = "/sys/kernel/rcu_expedited"

// PermitExpedite permits or forbids expedited grace periods from now on.
func (d *Dataplane) PermitExpedite(may bool) { d.mayExpedite.Store(may) }

// Expedite prepares for attaching and detaching. The caller calls restore afterwards. If the agent is killed in
// between, the next one restores the setting from a note in the run directory. Without the permission to write the
// setting, everything works but takes longer.
func (d *Dataplane) Expedite() (restore func() error) {
	if !d.tcx {
		return func() error { return nil }
	}
	return d.expedite()
}

// expediting counts the current users of expedited grace periods: changes, and the wait after one. The first sets
// rcu_expedited, the last restores it.
type expediting struct {
	mu    sync.Mutex
	users int
}

// expedite requests expedited grace periods until restore is called.
func (d *Dataplane) expedite() (restore func() error) {
	none := func() error { return nil }
	if d.opts.Run == "" || d.opts.NoExpedite || !d.mayExpedite.Load() {
		return none
	}
	d.expediting.mu.Lock()
	defer d.expediting.mu.Unlock()
	if d.expediting.users == 0 && !d.setExpedited() {
		return none
	}
	d.expediting.users++
	return func() error {
		d.expediting.mu.Lock()
		defer d.expediting.mu.Unlock()
		if d.expediting.users--; d.expediting.users > 0 {
			return nil
		}
		return d.unexpedite()
	}
}

// setExpedited sets rcu_expedited and reports whether it has. The note is written before the setting: if the agent is
// killed at any time, there is a note whenever the setting is changed. A setting other than 0 was made by an
// administrator and stays.
func (d *Dataplane) setExpedited() bool {
	before, err := os.ReadFile(expeditedFile)
	if err != nil || !bytes.Equal(bytes.TrimSpace(before), []byte("0")) {
		return false
	}
	if err := os.WriteFile(d.expediteNote(), before, 0o600); err != nil {
		return false
	}
	if err := os.WriteFile(expeditedFile, []byte("1"), 0); err != nil {
		_ = os.Truncate(d.expediteNote(), 0)
		return false
	}
	return true
}

func (d *Dataplane) expediteNote() string { return filepath.Join(d.opts.Run, "rcu_expedited") }

// unexpedite restores the setting from the note, unless the note is empty. Creating a new file each time would take
// much longer.
func (d *Dataplane) unexpedite() error {
	if d.opts.Run == "" {
		return nil
	}
	before, err := os.ReadFile(d.expediteNote())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if len(before) == 0 {
		return nil
	}
	if err := os.WriteFile(expeditedFile, before, 0); err != nil {
		return fmt.Errorf("restore %s: %w", expeditedFile, err)
	}
	return os.Truncate(d.expediteNote(), 0)
}

// forgetExpedited restores the setting and removes the note.
func (d *Dataplane) forgetExpedited() error {
	if d.opts.Run == "" {
		return nil
	}
	err := d.unexpedite()
	if err == nil {
		err = os.Remove(d.expediteNote())
	}
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return err
}
