// SPDX-License-Identifier: Apache-2.0

package sdk

import "time"

// ExecutableUser is a Running of a package with capability executables. It receives what the agent found out
// about the programs of processes that Live.Examine named. Calls come one at a time.
type ExecutableUser interface {
	Executables(found []Executable) error
}

// Process names one that runs or ran: process ids are used again.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // task->start_boottime: nanoseconds since boot; 0 for whichever has the id now
}

// Executable is what is known of the program that a process runs.
type Executable struct {
	Process
	Path   string `json:"path,omitempty"`   // as the process sees it
	Device uint64 `json:"device,omitempty"` // of the file: st_dev in the kernel's form, as inode->i_sb->s_dev
	Inode  uint64 `json:"inode,omitempty"`
	// Modified is when the file was written, ns since 1970; Size is in bytes.
	Modified uint64 `json:"modified,omitempty"`
	Size     uint64 `json:"size,omitempty"`
	// Uses are calls that its code can make, by itself or in a library that it has mapped, and that matter to modules.
	Uses []string `json:"uses,omitempty"`
	// Configured: Uses depends on how this process is configured; another of the same file may differ.
	Configured bool   `json:"configured,omitempty"`
	Go         string `json:"go,omitempty"` // version of Go that it was built with
	// Problem is why it could not be examined, for example because the process has ended.
	Problem string `json:"problem,omitempty"`
}

// ExecutablesUpdate is the body of executables.
type ExecutablesUpdate struct {
	Generation  string       `json:"generation"`
	Executables []Executable `json:"executables"`
}

// Kernel describes behaviour of the running kernel that differs between versions. What is absent is unknown.
type Kernel struct {
	// Sockets whose bytes are redirected by programs on the hook sockets: whether they still behave as a program expects
	// of TCP, by the name of the behaviour. Needs capability kernelFacts.
	Sockets map[string]bool `json:"sockets,omitempty"`
	// RoundTrips are the times of round trips on this machine by message size, in ascending order.
	RoundTrips []RoundTrip `json:"turns,omitempty"`
}

// RoundTrip is the time to send a message over loopback and to receive one of the same size.
type RoundTrip struct {
	Bytes      uint32        `json:"bytes"`
	Plain      time.Duration `json:"plain"`      // by TCP
	Redirected time.Duration `json:"redirected"` // between sockets whose bytes are redirected
}
