// SPDX-License-Identifier: Apache-2.0

// Package accelerator shows that connections which the accelerator moves off the network stack still carry every byte,
// and end as they should: under processes that do all that programs do to sockets, while they, the agent or the module
// go away, and under real programs. KERB_SOAK=duration makes the integrity tests last, KERB_CONNECTIONS=100000 makes as
// many connections end, KERB_MEMORY=1 measures the memory of 10,000. KERB_PLAIN=1 runs everything on plain TCP: what
// fails then, too, is no fault of the accelerator.
package accelerator
