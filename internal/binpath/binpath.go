// SPDX-License-Identifier: Apache-2.0

// Package binpath finds the other programs of an installation: kerb runs kerb-bench and kerb-oakestra, and kerb-bench
// runs kerb.
package binpath

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// The programs.
const (
	Kerb     = "kerb"          // the agent and its command line
	Bench    = "kerb-bench"    // benchmarks and the demo
	Oakestra = "kerb-oakestra" // the integration with Oakestra
)

// KerbEnv is the environment variable with the path of the kerb that kerb-bench runs.
const KerbEnv = "KERB_PROGRAM"

// NextTo returns the path of a program in the directory of this one. What the agent runs with its rights comes from
// nowhere else.
func NextTo(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	return nextTo(filepath.Dir(self), name)
}

func nextTo(dir, name string) (string, error) {
	path, err := exec.LookPath(filepath.Join(dir, name))
	if err != nil {
		return "", fmt.Errorf("%s is not in %s: install it there; `make build` in a checkout of Kerb builds it", name, dir)
	}
	return path, nil
}

// Find returns the path of a program: in the directory of this one, or else on PATH.
func Find(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	return find(filepath.Dir(self), name)
}

func find(dir, name string) (string, error) {
	if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
		return path, nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is neither in %s nor on PATH; `make build` in a checkout of Kerb builds all programs: "+
			"install them in one directory", name, dir)
	}
	return path, nil
}

// FindKerb returns the path of the kerb that experiments run: $KERB_PROGRAM, or else what Find returns.
func FindKerb() (string, error) {
	if path := os.Getenv(KerbEnv); path != "" {
		return path, nil
	}
	return Find(Kerb)
}
