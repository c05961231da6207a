// SPDX-License-Identifier: Apache-2.0

// Package combinations tests that the built-in modules work together: every two and every three of them on services of
// two nodes, with real connections.
package combinations
