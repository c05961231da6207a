// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

var errNoImage = errors.New("the packages hold no kernel image")

// kernel is an unpacked kernel.
type kernel struct {
	release string // output of uname -r
	image   string // path of the bzImage, or of the Image on arm64
	modules string // path of the directory lib/modules/RELEASE
}

// fetchKernel finds the newest kernel for the spec and unpacks it below dir, unless it exists already. One kernel is
// kept for each spec.
func fetchKernel(ctx context.Context, debian *archive, dir string, s spec) (kernel, error) {
	pkgs, err := debian.find(ctx, s)
	if err != nil {
		return kernel{}, err
	}
	dir = filepath.Join(dir, s.name)
	target := filepath.Join(dir, pkgs[0].name+"_"+pkgs[0].version)
	if k, err := openKernel(target); err == nil {
		return k, nil
	}
	progress("%s: fetch %s %s", s.name, pkgs[0].name, pkgs[0].version)
	if err := os.RemoveAll(dir); err != nil {
		return kernel{}, err
	}
	partial := filepath.Join(dir, "partial")
	if err := os.MkdirAll(partial, 0o755); err != nil {
		return kernel{}, err
	}
	if err := debian.unpack(ctx, partial, pkgs); err != nil {
		return kernel{}, err
	}
	if err := os.Rename(partial, target); err != nil {
		return kernel{}, err
	}
	return openKernel(target)
}

// openKernel finds the kernel's files in the paths of Debian's releases.
func openKernel(root string) (kernel, error) {
	var images, trees []string
	for _, pattern := range []string{"boot/vmlinuz-*", "usr/lib/modules/*/vmlinuz", "lib/modules/*/vmlinuz"} {
		found, _ := filepath.Glob(filepath.Join(root, pattern))
		images = append(images, found...)
	}
	for _, pattern := range []string{"lib/modules/*/kernel", "usr/lib/modules/*/kernel"} {
		found, _ := filepath.Glob(filepath.Join(root, pattern))
		trees = append(trees, found...)
	}
	if len(images) == 0 || len(trees) == 0 {
		return kernel{}, fmt.Errorf("%s: %w", root, errNoImage)
	}
	modules := filepath.Dir(trees[0])
	return kernel{release: filepath.Base(modules), image: images[0], modules: modules}, nil
}
