// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

//go:embed templates
var templateFS embed.FS

var packageName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

// skeleton is a file of a new package: its template, in which {{.Name}} is the package's name, and its file name.
type skeleton struct {
	template, file string
	mode           fs.FileMode
}

// Kinds of control planes for New.
const (
	NewWithoutControl = ""
	NewWithPython     = "python"
)

// Kinds of packages for New: one that watches UDP ports, one that replies to requests, and one that evaluates a model
// on features of packets.
const (
	NewWatch     = "watch"
	NewResponder = "responder"
	NewExtractor = "extractor"
)

// Kinds lists the kinds of packages.
var Kinds = []string{NewWatch, NewResponder, NewExtractor}

// source returns the data plane of a new package.
func source(name, template string) skeleton { return skeleton{template, name + ".bpf.c", 0o644} }

// named returns files with the names of their templates in dir.
func named(dir string, files ...string) []skeleton {
	var all []skeleton
	for _, file := range files {
		mode := fs.FileMode(0o644)
		if filepath.Ext(file) == ".sh" {
			mode = 0o755
		}
		all = append(all, skeleton{path.Join(dir, file), file, mode})
	}
	return all
}

// skeletons returns the files of a new package of a kind, with a kind of control plane.
func skeletons(name, kind, control string) ([]skeleton, error) {
	if control != NewWithoutControl && control != NewWithPython {
		return nil, fmt.Errorf("%q is no kind of control plane that a package can be begun with: use %s, or none", control,
			NewWithPython)
	}
	switch kind {
	case NewWatch:
		if control == NewWithPython {
			return slices.Concat(named("python", ManifestName, "control.py", "kerb.py", "README.md"), named("", "test.sh"),
				[]skeleton{source(name, "python/module.bpf.c")}), nil
		}
		return append(named("", ManifestName, "README.md", "test.yaml", "test.sh"), source(name, "module.bpf.c")), nil
	case NewResponder:
		if control == NewWithPython {
			return nil, fmt.Errorf("a new package of kind %s has no control plane: omit --control", kind)
		}
		return slices.Concat(named(kind, ManifestName, "README.md", "test.yaml"), named("", "test.sh"),
			[]skeleton{source(name, "responder/module.bpf.c")}), nil
	case NewExtractor: // its control plane, in Python, writes the model
		return slices.Concat(named(kind, ManifestName, "README.md", "control.py", "model.json", "test.sh"),
			named("python", "kerb.py"), []skeleton{source(name, "extractor/module.bpf.c")}), nil
	}
	return nil, fmt.Errorf("%q is no kind of package that can be begun: use one of %s", kind, strings.Join(Kinds, ", "))
}

// New writes a small working package, as a starting point, to dir, which must be absent or empty.
func New(dir, name, kind, control string) error {
	if !packageName.MatchString(name) || len(name) > 63 {
		return fmt.Errorf("%q is not a package name: use lower-case letters, digits and dashes, at most 63", name)
	}
	files, err := skeletons(name, kind, control)
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

// makeEmpty creates a directory, or checks that it is empty.
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

func render(name, to string, mode fs.FileMode, module string) error {
	text, err := templateFS.ReadFile("templates/" + name)
	if err != nil {
		return err
	}
	return os.WriteFile(to, bytes.ReplaceAll(text, []byte("{{.Name}}"), []byte(module)), mode)
}
