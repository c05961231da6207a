// SPDX-License-Identifier: Apache-2.0

// Package scratch gives benchmarks and tests directories of their own, and removes those of processes that were killed, together
// with what their agents have pinned.
package scratch

import (
	"errors"
	"os"
	"path/filepath"
	"sync"

	"github.com/kerb-edge/kerb/internal/claim"
)

const (
	prefix = "kerb-scratch-"
	pins   = "/sys/fs/bpf"
	// claims has a name for every directory: they may be anywhere, and cleared away before what is pinned.
	claims = claim.Dir("/run/kerb-scratch")
)

// owned are the claims of this process, by directory.
var owned sync.Map

// Dir makes a directory. It is this process's until that removes it or ends. Only root's are found by others, who pin nothing.
func Dir() (string, error) {
	dir, err := os.MkdirTemp("", prefix)
	if err != nil || os.Geteuid() != 0 {
		return dir, err
	}
	f, err := claims.Take(filepath.Base(dir), dir)
	if err != nil {
		return "", errors.Join(err, os.Remove(dir))
	}
	owned.Store(dir, f)
	return dir, nil
}

// Pins is where the agent whose directory it is pins its programs and maps.
func Pins(dir string) string { return filepath.Join(pins, filepath.Base(dir)) }

// Remove removes a directory.
func Remove(dir string) error {
	err := os.RemoveAll(dir)
	if f, ok := owned.LoadAndDelete(dir); ok && err == nil {
		err = claim.Release(f.(*os.File))
	}
	return err
}

// Sweep removes what processes that are no more have left.
func Sweep() error {
	return claims.Sweep(func(name, dir string) error { return errors.Join(os.RemoveAll(Pins(name)), os.RemoveAll(dir)) })
}
