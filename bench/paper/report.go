// SPDX-License-Identifier: Apache-2.0

package paper

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/version"
)

// Report has the results for a work: a part for each measured table.
type Report struct {
	Work  string `json:"work"`
	Mode  Mode   `json:"mode"`
	Parts []Part `json:"parts"`
}

// Part has the results of one table, with its machine and its reference.
type Part struct {
	Work    string        `json:"work"`
	Mode    Mode          `json:"mode"`
	Table   string        `json:"table"`
	Version string        `json:"version,omitempty"` // of Kerb
	Seconds float64       `json:"seconds"`           // duration
	Report  *bench.Report `json:"report"`
}

func (r *Report) part(table string) *Part {
	for i := range r.Parts {
		if r.Parts[i].Table == table {
			return &r.Parts[i]
		}
	}
	return nil
}

// resume is a directory with a file for each finished table. If it is empty, nothing is stored.
type resume string

const partEnd = ".json"

// open creates the directory, and rejects one with other files.
func (d resume) open(w *Work, mode Mode) error {
	if d == "" {
		return nil
	}
	if err := os.MkdirAll(string(d), 0o755); err != nil {
		return fmt.Errorf("--resume %s: %w", d, err)
	}
	files, err := os.ReadDir(string(d))
	if err != nil {
		return fmt.Errorf("--resume %s: %w", d, err)
	}
	for _, f := range files {
		if strings.HasPrefix(f.Name(), ".") {
			continue // temporary file of a killed run
		}
		var p Part
		err := bench.ReadJSON(filepath.Join(string(d), f.Name()), &p)
		if err == nil && p.Table+partEnd != f.Name() {
			err = errors.New("not a table of a work")
		}
		if err == nil && (p.Work != w.Name || p.Mode != mode || p.Report == nil) {
			err = fmt.Errorf("table of %s, mode %s", p.Work, p.Mode)
		}
		if err != nil {
			return fmt.Errorf("--resume %s has tables of another run than %s, mode %s: %s: %w; choose an empty directory", d,
				w.Name, mode, f.Name(), err)
		}
	}
	return nil
}

// finished returns the part of a table that was measured before, by the same program on the same kernel, and is valid.
func (d resume) finished(table string) (p Part, ok bool, err error) {
	if d == "" {
		return p, false, nil
	}
	err = bench.ReadJSON(d.path(table), &p)
	if errors.Is(err, fs.ErrNotExist) {
		return p, false, nil
	}
	return p, err == nil && p.isCurrent(), err
}

func (p Part) isCurrent() bool {
	return p.Report != nil && p.Report.Err() == nil && p.Version == version.Version() &&
		p.Report.Kernel == bench.KernelRelease()
}

// keep stores a part, unless it must be measured again.
func (d resume) keep(p Part) error {
	if d == "" || p.Report.Err() != nil {
		return nil
	}
	return bench.WriteJSON(d.path(p.Table), p)
}

func (d resume) path(table string) string { return filepath.Join(string(d), table+partEnd) }

// readReport reads a file of --out.
func readReport(path string, w *Work) (*Report, error) {
	r := &Report{}
	if err := bench.ReadJSON(path, r); err != nil {
		return nil, err
	}
	if r.Work != w.Name {
		return nil, fmt.Errorf("%s is a report of %q, expected %s", path, r.Work, w.Name)
	}
	for _, p := range r.Parts {
		_, err := w.table(p.Table)
		switch {
		case err != nil:
		case p.Report == nil:
			err = errors.New("incomplete")
		case p.Work != w.Name || p.Mode != r.Mode:
			err = fmt.Errorf("belongs to %q, mode %s; the report to %s, mode %s", p.Work, p.Mode, w.Name, r.Mode)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: table %q: %w", path, p.Table, err)
		}
	}
	return r, nil
}
