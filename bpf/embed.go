// SPDX-License-Identifier: Apache-2.0

// Package bpf carries the data plane's C side in the binary: the headers that modules include, and the compiled fixed
// parts of every chain.
package bpf

import "embed"

// FS holds include/kerb/*.h, chain.bpf.c, and, once `make bpf` has run, chain.tc.o, chain.xdp.o and chain.xdp-frags.o.
// The patterns match source files too, so that a fresh checkout compiles before its first objects are there.
//
//go:embed include chain*
var FS embed.FS
