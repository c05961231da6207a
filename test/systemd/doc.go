// SPDX-License-Identifier: Apache-2.0

// Package systemd tests deploy/systemd/kerb.service as shipped: the distribution's systemd boots in a container, starts
// the unit, and every built-in module is applied. `make test-systemd` runs it.
package systemd
