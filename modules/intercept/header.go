// SPDX-License-Identifier: Apache-2.0

package intercept

import _ "embed"

// Header is record.h, for the programs that Kerb compiles where it runs.
//
//go:embed record.h
var Header []byte
