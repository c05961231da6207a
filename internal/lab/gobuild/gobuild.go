// SPDX-License-Identifier: Apache-2.0

// Package gobuild builds Go programs for tests.
package gobuild

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// cacheDir is the directory of cached programs, below the root of the module.
const cacheDir = "out/test"

// Build builds a static program without symbols from a package, given as import path or as directory that starts with a
// dot, with additional flags for "go build". It is safe for concurrent use, also by several processes.
//
// The Go command caches compiled packages, but not linked programs. Build caches these, so that the Go command links
// only programs that have changed, which takes a tenth of the time. The caller gets a copy, which later builds do not
// change.
func Build(program, pkg string, flags ...string) error {
	kept, err := cachePath(&pkg, flags)
	if err != nil {
		return err
	}
	lock, err := os.OpenFile(kept+".lock", os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	cmd := exec.Command("go", append(append([]string{"build", "-ldflags=-s"}, flags...), "-o", kept, pkg)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return copyProgram(program, kept)
}

// cachePath returns the path of the cached program for these arguments, and makes a directory in pkg absolute.
func cachePath(pkg *string, flags []string) (string, error) {
	if strings.HasPrefix(*pkg, ".") {
		dir, err := filepath.Abs(*pkg)
		if err != nil {
			return "", err
		}
		*pkg = dir
	}
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, cacheDir)
	hash := sha256.Sum256([]byte(strings.Join(append([]string{*pkg}, flags...), "\x00")))
	return filepath.Join(dir, fmt.Sprintf("%s-%x", filepath.Base(*pkg), hash[:8])), os.MkdirAll(dir, 0o755)
}

// moduleRoot returns the directory of the module that the working directory is in.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod above the working directory: run tests in their packages")
		}
		dir = parent
	}
}

func copyProgram(to, from string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	program, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, program, 0o755)
}
