// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/pin"
)

// recordPrograms records all pinned programs, for the final check.
func (d *demo) recordPrograms() error {
	for p, err := range pin.WalkDir(pinsIn, nil) {
		if err != nil {
			return fmt.Errorf("list programs in %s: %w", pinsIn, err)
		}
		id, err := programOf(p.Object)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Path, err)
		}
		if id != 0 {
			d.recordProgram(uint32(id))
		}
	}
	if len(d.programs) == 0 {
		return errors.New("no programs of Kerb are pinned in " + pinsIn)
	}
	return nil
}

func (d *demo) recordProgram(id uint32) {
	if d.programs == nil {
		d.programs = map[uint32]bool{}
	}
	d.programs[id] = true
}

// programOf returns the id of a program or of a link's program, or 0.
func programOf(pinned io.Closer) (ebpf.ProgramID, error) {
	switch o := pinned.(type) {
	case *ebpf.Program:
		info, err := o.Info()
		if err != nil {
			return 0, err
		}
		id, _ := info.ID()
		return id, nil
	case link.Link:
		info, err := o.Info()
		if err != nil {
			return 0, err
		}
		return info.Program, nil
	}
	return 0, nil
}

// programsLeft returns recorded programs that still exist. The kernel releases them a moment after their last user.
func (d *demo) programsLeft() []string {
	var left []string
	for range 300 {
		left = left[:0]
		for id := range d.programs {
			if p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id)); err == nil {
				p.Close()
				left = append(left, fmt.Sprintf("program %d", id))
			}
		}
		if len(left) == 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	slices.Sort(left)
	return left
}
