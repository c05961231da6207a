// SPDX-License-Identifier: Apache-2.0

// Package examples contains third-party modules, with tests that build and run them. Packages: ratelimit, kv and
// urgent, without control plane, topports and judge, with one in Python. Programs: speedlimit-server and
// speedlimit-client, and with lib/intercept or the Go package intercept: intercept-log, intercept-watch,
// intercept-steady, and intercept-pendulum.
package examples

import "embed"

// Topports embeds the directory topports, for the benchmark of control planes. The pattern also matches in a fresh
// checkout, without compiled files.
//
//go:embed topports/*.[bptxy]*
var Topports embed.FS

// Pendulum embeds the directory intercept-pendulum, for the demo.
//
//go:embed intercept-pendulum/*.c intercept-pendulum/*.h intercept-pendulum/*.yaml
var Pendulum embed.FS
