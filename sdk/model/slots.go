// SPDX-License-Identifier: Apache-2.0

package model

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Role mirrors enum kerb_model_role.
type Role uint32

// Roles of models.
const (
	Live   Role = iota // makes decisions
	Shadow             // is compared only
	roles
)

const slots = 4 // KERB_MODEL_SLOTS

// Slots replaces models under traffic. A model is written to a slot that no program can be reading, then the role's
// index is set. A replaced slot becomes free after an RCU grace period, when every program that may have read its index
// has ended. membarrier(2) waits for one without any capability.
type Slots struct {
	models, active *ebpf.Map

	mu   sync.Mutex
	free [slots]bool // no program can be reading it
}

// NewSlots returns the slots in the maps `models` and `active` of a data plane.
func NewSlots(models, active *ebpf.Map) *Slots { return &Slots{models: models, active: active} }

// Load activates a model in a role. On an error, the previous model stays active.
func (s *Slots) Load(role Role, p *Packed) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	slot, err := s.spare()
	if err != nil {
		return err
	}
	if err := s.models.Put(slot, p.Bytes()); err != nil {
		return fmt.Errorf("write model %d to slot %d: %w", p.Version(), slot, err)
	}
	return s.set(role, slot+1)
}

// Unload removes the model of a role.
func (s *Slots) Unload(role Role) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.set(role, 0)
}

func (s *Slots) set(role Role, index uint32) error {
	if err := s.active.Put(uint32(role), index); err != nil {
		return fmt.Errorf("write map active: %w", err)
	}
	if index > 0 {
		s.free[index-1] = false
	}
	return nil
}

// Version returns the version of a role's model, or 0 without a model.
func (s *Slots) Version(role Role) (uint32, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	used, err := s.used()
	if err != nil || used[role] == 0 {
		return 0, err
	}
	value := make([]byte, ValueSize)
	if err := s.models.Lookup(used[role]-1, value); err != nil {
		return 0, fmt.Errorf("read model in slot %d: %w", used[role]-1, err)
	}
	return versionOf(value), nil
}

// used returns the indexes of the roles: slot plus 1, or 0.
func (s *Slots) used() (used [roles]uint32, err error) {
	for role := range used {
		if err := s.active.Lookup(uint32(role), &used[role]); err != nil {
			return used, fmt.Errorf("read map active: %w", err)
		}
	}
	return used, nil
}

// spare returns a slot that can be written. After a start, it waits for a grace period, since readers are unknown.
func (s *Slots) spare() (uint32, error) {
	used, err := s.used()
	if err != nil {
		return 0, err
	}
	var in [slots]bool
	for _, index := range used {
		if index > 0 && index <= slots {
			in[index-1] = true
		}
	}
	for range 2 {
		for slot := range uint32(slots) {
			if s.free[slot] && !in[slot] {
				return slot, nil
			}
		}
		waitForReaders()
		for slot := range in {
			s.free[slot] = !in[slot]
		}
	}
	return 0, errors.New("no slot is left")
}

// longestRun is far longer than any program runs, for kernels on which membarrier fails (nohz_full).
const longestRun = time.Second

// waitForReaders returns when all currently running programs have ended.
func waitForReaders() {
	const global = 1 // MEMBARRIER_CMD_GLOBAL
	if _, _, err := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0); err != 0 {
		time.Sleep(longestRun)
	}
}
