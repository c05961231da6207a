// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/rotate"
)

// flowsFile has the flags for writing flows to a file.
type flowsFile struct {
	path, maxSize string
	keep          int
}

// smallestFile has room for some lines.
const smallestFile = 4096

// open returns nil if no file is requested.
func (f *flowsFile) open(follow bool, errs io.Writer) (*flowsLog, error) {
	if f.path == "" {
		return nil, nil
	}
	if !follow {
		return nil, &usageError{errors.New("--file is for --follow; without it, write: kerb flows -o json >FILE")}
	}
	size, err := pkgs.ParseBytes(f.maxSize)
	if err != nil {
		return nil, &usageError{fmt.Errorf("--max-size: %w", err)}
	}
	if size < smallestFile || f.keep < 1 || f.keep > 1000 {
		return nil, &usageError{fmt.Errorf("--max-size %s --keep %d: must be at least 4Ki, and 1 to 1000", f.maxSize, f.keep)}
	}
	file, err := rotate.Open(f.path, size, f.keep)
	if err != nil {
		return nil, fmt.Errorf("write flows: %w", err)
	}
	return &flowsLog{file, errs, 0}, nil
}

// flowsLog writes lines of flows.
type flowsLog struct {
	file interface {
		WriteLine(line []byte) error
		Close() error
	}
	errs io.Writer
	lost int // lines since the last one that was written
}

// copy writes the agent's stream until it ends.
func (f *flowsLog) copy(body io.Reader) error {
	defer f.report(nil)
	return eachLine(body, func(l v1alpha1.FlowLine) error {
		if l.Error != "" {
			return errors.New(l.Error)
		}
		text, err := json.Marshal(l)
		if err == nil {
			f.report(f.file.WriteLine(append(text, '\n')))
		}
		return err
	})
}

// report prints once that lines are being lost, and afterwards how many were lost.
func (f *flowsLog) report(err error) {
	switch {
	case err != nil:
		if f.lost++; f.lost == 1 {
			fmt.Fprintf(f.errs, "flows are lost, until they can be written again: %v\n", err)
		}
	case f.lost > 0:
		fmt.Fprintf(f.errs, "%d lines of flows were lost\n", f.lost)
		f.lost = 0
	}
}

func (f *flowsLog) close() {
	if f != nil {
		_ = f.file.Close() // each line was written
	}
}
