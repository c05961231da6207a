// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
)

// pinDir builds a directory of pins under a temporary name and renames it into place, so that it is complete or does
// not exist, even if the agent is killed.
func pinDir(dir string, fill func(tmp string) error) error {
	tmp := temp(dir)
	if err := removePins(tmp); err != nil {
		return err
	}
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		return err
	}
	if err := fill(tmp); err != nil {
		return errors.Join(err, removePins(tmp))
	}
	if err := os.Rename(tmp, dir); err != nil {
		return errors.Join(err, removePins(tmp))
	}
	return nil
}

// removePins removes a directory of pins. It renames the directory first: if the agent is killed, a directory with the
// original name is complete.
func removePins(dir string) error {
	tmp := dir
	if !strings.HasPrefix(filepath.Base(dir), tempPrefix) {
		tmp = temp(dir)
		if err := removeAll(tmp); err != nil {
			return err
		}
		if err := os.Rename(dir, tmp); errors.Is(err, os.ErrNotExist) {
			return nil
		} else if err != nil {
			return fmt.Errorf("unpin: %w", err)
		}
	}
	return removeAll(tmp)
}

func removeAll(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("unpin: %w", err)
	}
	return nil
}

// pinCopy pins an object that may be pinned elsewhere already: the library stores only one path for each handle.
func pinCopy(m *ebpf.Map, path string) error {
	c, err := m.Clone()
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Pin(path)
}

// pinOnce pins a map unless the path exists: chains of the same members share their pins.
func pinOnce(m *ebpf.Map, path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return pinCopy(m, path)
}

// sweepTemp removes directories that a killed agent was building or removing.
func sweepTemp(dirs ...string) error {
	var errs []error
	for _, dir := range dirs {
		leftovers, err := filepath.Glob(filepath.Join(dir, tempPrefix+"*"))
		errs = append(errs, err)
		for _, path := range leftovers {
			errs = append(errs, removePins(path))
		}
	}
	return errors.Join(errs...)
}
