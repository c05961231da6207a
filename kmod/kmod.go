// SPDX-License-Identifier: Apache-2.0

// Package kmod speaks to the kernel module that lies alongside it: Kerb's other way to hand time-critical packets to a
// program, for kernels and devices where eBPF cannot. README.md describes how the module is built and what it promises.
package kmod

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Device is there when the module is loaded.
const Device = "/dev/kerb-intercept"

// PatternSize is the most bytes of payload that a rule compares.
const PatternSize = 16

// Actions, of enum icpt_action in record.h: the stack gets what the ring got, too, or does not.
const (
	Copy  = 3
	Steal = 4
)

// Rule is struct icpt_rule. From Family on, zero matches anything.
type Rule struct {
	Watchdog              uint64 // ns that records may wait before what is to be stolen passes
	Ifindex               uint32
	Ring                  uint32 // bytes, a power of two and whole pages
	Action                uint32 // Copy or Steal
	Caplen                uint32 // bytes of a frame that are delivered; 0: all
	Slot                  uint16 // comes back in records
	Family, Protocol      uint8  // 4 or 6; IANA number
	FirstPort, LastPort   uint16 // destination
	PatternAt, PatternLen uint16 // in the payload
	Pattern, Mask         [PatternSize]byte
}

// Stats is struct icpt_stats: of the packets that matched.
type Stats struct{ Packets, Bytes, Delivered, Lost, Passed uint64 }

// ErrNotLoaded is wrapped when the kernel does not have the module.
var ErrNotLoaded = errors.New("the kernel module kerb_intercept is not loaded: make -C kmod, insmod " +
	"kmod/kerb_intercept.ko")

// Load puts a .ko file into the kernel.
func Load(object string) error {
	f, err := os.Open(object)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

// Unload takes the module out, unless a class is open.
func Unload() error { return unix.DeleteModule("kerb_intercept", unix.O_NONBLOCK) }

// Requests, as kerb_intercept.h makes them with _IOW and _IOR.
const (
	attachRequest = 1<<30 | unsafe.Sizeof(Rule{})<<16 | 'K'<<8 | 0x60
	statsRequest  = 2<<30 | unsafe.Sizeof(Stats{})<<16 | 'K'<<8 | 0x61
)

// Attach makes a class in the caller's network namespace. Who has the file, by inheritance too, maps the ring and
// reads; that it is closed everywhere ends the class.
func Attach(rule Rule) (*os.File, error) {
	f, err := os.OpenFile(Device, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrNotLoaded, err)
	}
	if err != nil {
		return nil, err
	}
	if err := request(f, attachRequest, unsafe.Pointer(&rule)); err != nil {
		f.Close()
		return nil, fmt.Errorf("class %d on interface %d: %w", rule.Slot, rule.Ifindex, err)
	}
	return f, nil
}

// Count returns a class's counters.
func Count(f *os.File) (s Stats, err error) {
	return s, request(f, statsRequest, unsafe.Pointer(&s))
}

func request(f *os.File, number uintptr, argument unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), number, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}
