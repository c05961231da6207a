// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
)

//go:embed templates
var templateFS embed.FS

var packageName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

// skeleton is a file of a new package: the template it is made of, in which {{.Name}} stands for the name of the
// package, and its name.
type skeleton struct {
	template, file string
	mode           fs.FileMode
}

// Kinds of control planes that New knows.
const (
	NewWithoutControl = ""
	NewWithPython     = "python"
)

// skeletons returns the files of a new package with a kind of control plane.
func skeletons(name, control string) ([]skeleton, error) {
	switch control {
	case NewWithoutControl:
		return []skeleton{
			{"kerb.yaml", ManifestName, 0o644},
			{"module.bpf.c", name + ".bpf.c", 0o644},
			{"README.md", "README.md", 0o644},
			{"test.yaml", "test.yaml", 0o644},
			{"test.sh", "test.sh", 0o755},
		}, nil
	case NewWithPython:
		return []skeleton{
			{"python/kerb.yaml", ManifestName, 0o644},
			{"python/module.bpf.c", name + ".bpf.c", 0o644},
			{"python/control.py", "control.py", 0o644},
			{"python/kerb.py", "kerb.py", 0o644},
			{"python/README.md", "README.md", 0o644},
			{"test.sh", "test.sh", 0o755},
		}, nil
	}
	return nil, fmt.Errorf("%q is no kind of control plane that a package can be begun with: use %s, or none", control,
		NewWithPython)
}

// New writes a small package that works into dir, which must be absent or empty. It watches UDP ports: something to
// build, run and change.
func New(dir, name, control string) error {
	if !packageName.MatchString(name) || len(name) > 63 {
		return fmt.Errorf("%q is not a package name: use lower-case letters, digits and dashes, at most 63", name)
	}
	files, err := skeletons(name, control)
	if err != nil {
		return err
	}
	if err := makeEmpty(dir); err != nil {
		return err
	}
	for _, f := range files {
		if err := render(f.template, filepath.Join(dir, f.file), f.mode, name); err != nil {
			return err
		}
	}
	return nil
}

// makeEmpty makes a directory, or finds it empty.
func makeEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s is not empty: %w", dir, fs.ErrExist)
	}
	return os.MkdirAll(dir, 0o755)
}

func render(name, path string, mode fs.FileMode, module string) error {
	text, err := templateFS.ReadFile("templates/" + name)
	if err != nil {
		return err
	}
	return os.WriteFile(path, bytes.ReplaceAll(text, []byte("{{.Name}}"), []byte(module)), mode)
}
