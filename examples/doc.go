// SPDX-License-Identifier: Apache-2.0

// Package examples holds packages of the kind that others write, built and driven by its tests: ratelimit, without control
// plane, and topports, with one in Python.
package examples
