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
	"text/template"
)

//go:embed templates
var templateFS embed.FS

var packageName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

// New writes a small package that works into dir, which must be absent or empty. It watches a UDP port: something to
// build, run and change.
func New(dir, name string) error {
	if !packageName.MatchString(name) || len(name) > 63 {
		return fmt.Errorf("%q is not a package name: use lower-case letters, digits and dashes, at most 63", name)
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s is not empty: %w", dir, fs.ErrExist)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, f := range []struct {
		template, file string
		mode           fs.FileMode
	}{
		{"kerb.yaml", ManifestName, 0o644},
		{"module.bpf.c", name + ".bpf.c", 0o644},
		{"README.md", "README.md", 0o644},
		{"test.sh", "test.sh", 0o755},
	} {
		if err := render(f.template, filepath.Join(dir, f.file), f.mode, name); err != nil {
			return err
		}
	}
	return nil
}

func render(name, path string, mode fs.FileMode, module string) error {
	t, err := template.ParseFS(templateFS, "templates/"+name)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := t.Execute(&text, struct{ Name string }{module}); err != nil {
		return err
	}
	return os.WriteFile(path, text.Bytes(), mode)
}
