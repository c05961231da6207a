// SPDX-License-Identifier: Apache-2.0

// Package e2e tests Kerb as an operator meets it: the real binary as agent and as command line, real network namespaces
// with real traffic, kill -9 at any moment, full disks, foreign programs and bad input. It needs root and the objects
// that `make bpf` builds. KERB_E2E_SECONDS lengthens the traffic under which the agent is killed, KERB_UPGRADES sets
// how often modules are upgraded at 100,000 packets/s.
package e2e
