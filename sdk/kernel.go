// SPDX-License-Identifier: Apache-2.0

package sdk

import "time"

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
