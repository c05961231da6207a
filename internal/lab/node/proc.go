// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Proportional returns a process's proportional set size (PSS) in bytes: shared pages are divided among processes, so
// that values of processes can be added.
func Proportional(pid int) (int64, error) {
	values, err := Kibibytes(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	return values["Pss"] << 10, err
}

// Kibibytes reads the lines of the form "Name:   123 kB" from a file in /proc.
func Kibibytes(path string) (map[string]int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	values := map[string]int64{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		number, isSize := strings.CutSuffix(strings.TrimSpace(rest), " kB")
		if !isSize {
			continue
		}
		if values[name], err = strconv.ParseInt(number, 10, 64); err != nil {
			return nil, fmt.Errorf("%s, %s: %w", path, name, err)
		}
	}
	return values, lines.Err()
}

// Descendants returns the children of a process, and their descendants.
func Descendants(pid int) ([]int, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil, err
	}
	var all []int
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) { // the thread has ended
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, field := range strings.Fields(string(text)) {
			child, err := strconv.Atoi(field)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			further, err := Descendants(child)
			if err != nil {
				return nil, err
			}
			all = append(append(all, child), further...)
		}
	}
	return all, nil
}
