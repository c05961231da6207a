// SPDX-License-Identifier: Apache-2.0

// Package accelerator tests that connections which the accelerator moves off the network stack still deliver every
// byte, and end correctly: with processes that use sockets in all ways, while they, the agent or the module end, and
// with real programs. KERB_SOAK=duration sets the time of the integrity tests, KERB_CONNECTIONS=100000 the number of
// connections that end, KERB_MEMORY=1 measures the memory of 10,000. KERB_PLAIN=1 runs everything on plain TCP: a test
// that fails there, too, shows no fault of the accelerator.
package accelerator
