// SPDX-License-Identifier: Apache-2.0

// Package kmod controls the kernel module in this directory: an alternative delivery of time-critical packets to
// programs, for kernels and devices without the required eBPF features. README.md describes how to build it, and its
// guarantees.
package kmod

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Device exists while the module is loaded.
const Device = "/dev/kerb-intercept"

// PatternSize is the maximum number of payload bytes that a rule compares.
const PatternSize = 16

// Actions, of enum icpt_action in record.h. With Copy, the network stack gets delivered packets, too; with Steal it
// does not.
const (
	Copy  = 3
	Steal = 4
)

// Rule is struct icpt_rule. From Family on, zero matches anything.
type Rule struct {
	Watchdog              uint64 // ns for which records may stay unread before packets pass
	Ifindex               uint32
	Ring                  uint32 // bytes, a power of two and whole pages
	Action                uint32 // Copy or Steal
	Caplen                uint32 // maximum bytes of a frame that are delivered; 0: all
	Slot                  uint16 // copied to records
	Family, Protocol      uint8  // 4 or 6; IANA number
	FirstPort, LastPort   uint16 // destination ports
	PatternAt, PatternLen uint16 // offset in the payload, length
	Pattern, Mask         [PatternSize]byte
}

// Stats is struct icpt_stats, the counters of matching packets.
type Stats struct{ Packets, Bytes, Delivered, Lost, Passed uint64 }

// ErrNotLoaded is wrapped if the module is not loaded.
var ErrNotLoaded = errors.New("the kernel module kerb_intercept is not loaded: make -C kmod, insmod " +
	"kmod/kerb_intercept.ko")

// Load loads a .ko file into the kernel.
func Load(object string) error {
	f, err := os.Open(object)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

// Unload unloads the module. It fails while a class is open.
func Unload() error { return unix.DeleteModule("kerb_intercept", unix.O_NONBLOCK) }

// ioctl requests, as defined in kerb_intercept.h with _IOW and _IOR.
const (
	attachRequest = 1<<30 | unsafe.Sizeof(Rule{})<<16 | 'K'<<8 | 0x60
	statsRequest  = 2<<30 | unsafe.Sizeof(Stats{})<<16 | 'K'<<8 | 0x61
)

// Attach creates a class in the caller's network namespace. Every process with the file, also by inheritance, can map
// and read the ring. The class ends when all descriptors are closed.
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

// Count returns the counters of a class.
func Count(f *os.File) (s Stats, err error) {
	return s, request(f, statsRequest, unsafe.Pointer(&s))
}

func request(f *os.File, number uintptr, argument unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), number, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}
