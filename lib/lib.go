// SPDX-License-Identifier: Apache-2.0

// Package lib holds the sources of the libraries in C, for the programs that Kerb compiles where it runs.
package lib

import "embed"

//go:embed intercept/*.c intercept/*.h
var Files embed.FS
