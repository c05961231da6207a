// SPDX-License-Identifier: Apache-2.0

// Package unit tests deploy/systemd/kerb.service as it is shipped: the distribution's systemd boots in a container, starts
// the unit, and every built-in module is applied. `make test-unit` runs it.
package unit
