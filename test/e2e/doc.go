// SPDX-License-Identifier: Apache-2.0

// Package e2e tests Kerb as operators use it: the real binary as agent and command line, real network namespaces with
// real traffic, SIGKILL at any moment, full disks, foreign programs and invalid input. It needs root and the objects
// that `make bpf` builds. KERB_E2E_SECONDS sets the time of traffic under which the agent is killed, KERB_UPGRADES how
// often modules are upgraded at 100,000 packets/s.
package e2e
