// SPDX-License-Identifier: Apache-2.0

// Package kubernetes has the definitions of Kerb's resources in Kubernetes, for benchmarks with an API server.
package kubernetes

import (
	"embed"
	"io/fs"
)

//go:embed crds/*.yaml
var files embed.FS

// Definitions returns the texts of all CustomResourceDefinitions.
func Definitions() ([]string, error) {
	paths, err := fs.Glob(files, "crds/*.yaml")
	if err != nil {
		return nil, err
	}
	var all []string
	for _, path := range paths {
		text, err := files.ReadFile(path)
		if err != nil {
			return nil, err
		}
		all = append(all, string(text))
	}
	return all, nil
}
