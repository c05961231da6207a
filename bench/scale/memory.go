// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/lab/node"
)

// KernelMemory is the kernel memory of the machine in bytes.
type KernelMemory struct {
	Slab    int64 // SUnreclaim: objects, and allocations of BPF
	Percpu  int64 // of all CPUs
	Vmalloc int64 // program images and large maps
}

// Total returns the sum.
func (m KernelMemory) Total() int64 { return m.Slab + m.Percpu + m.Vmalloc }

// ReadKernelMemory reads /proc/meminfo.
func ReadKernelMemory() (KernelMemory, error) {
	values, err := node.Kibibytes("/proc/meminfo")
	if err != nil {
		return KernelMemory{}, err
	}
	return KernelMemory{
		Slab:    values["SUnreclaim"] << 10,
		Percpu:  values["Percpu"] << 10,
		Vmalloc: values["VmallocUsed"] << 10,
	}, nil
}

// Resident returns the resident memory of a process in bytes.
func Resident(pid int) (int64, error) {
	values, err := node.Kibibytes(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return values["VmRSS"] << 10, nil
}

// settledMemory waits for deferred frees (RCU, work queues): until two consecutive readings agree, at most two seconds.
func settledMemory() (int64, error) {
	var last int64 = -1
	for range 10 {
		time.Sleep(200 * time.Millisecond)
		m, err := ReadKernelMemory()
		if err != nil {
			return 0, err
		}
		if diff := m.Total() - last; last >= 0 && diff > -32<<10 && diff < 32<<10 {
			return m.Total(), nil
		}
		last = m.Total()
	}
	return last, nil
}

// Objects has the numbers of BPF programs and maps on the machine, and the bytes that the kernel charges for them
// (memlock in fdinfo).
type Objects struct {
	Programs, Maps int
	Charged        int64
}

// ReadObjects iterates over all ids, for which it needs CAP_SYS_ADMIN. It skips objects that are removed meanwhile.
func ReadObjects() (Objects, error) {
	var o Objects
	programs := walk(ebpf.ProgramGetNextID, func(id ebpf.ProgramID) error {
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			return err
		}
		defer p.Close()
		info, err := p.Info()
		if err == nil {
			o.Programs++
			o.charge(info.Memlock())
		}
		return err
	})
	maps := walk(ebpf.MapGetNextID, func(id ebpf.MapID) error {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return err
		}
		defer m.Close()
		info, err := m.Info()
		if err == nil {
			o.Maps++
			o.charge(info.Memlock())
		}
		return err
	})
	return o, errors.Join(programs, maps)
}

// charge adds the bytes that the kernel charges for an object, if they are known.
func (o *Objects) charge(bytes uint64, known bool) {
	if known {
		o.Charged += int64(bytes)
	}
}

// walk visits all ids of a kind of object. It ignores objects that were removed after their id was read.
func walk[ID ~uint32](next func(ID) (ID, error), visit func(ID) error) error {
	for id := ID(0); ; {
		after, err := next(id)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err == nil {
			id = after
			err = visit(id)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
}
