// SPDX-License-Identifier: Apache-2.0

package sdk

import "time"

// Kernel describes behaviour that differs between kernel versions. Absent entries are unknown.
type Kernel struct {
	// Sockets reports, by name of the behaviour, whether sockets whose bytes are redirected by programs on the hook
	// sockets still behave like TCP. Needs capability kernelFacts.
	Sockets map[string]bool `json:"sockets,omitempty"`
	// RoundTrips lists the round-trip times on this machine in ascending order of the message size.
	RoundTrips []RoundTrip `json:"turns,omitempty"`
}

// RoundTrip is the time to send a message over loopback and to receive one of the same size.
type RoundTrip struct {
	Bytes      uint32        `json:"bytes"`
	Plain      time.Duration `json:"plain"`      // by TCP
	Redirected time.Duration `json:"redirected"` // between sockets whose bytes are redirected
}
