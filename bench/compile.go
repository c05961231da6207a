// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/kerb-edge/kerb/internal/pkgs"
)

//go:embed include/*.h
var headers embed.FS

// CompileC copies files into a directory and makes a program of each C source there, as fast as the compiler can make it for
// this machine: references in user space are in C, so that none is slow for its language. Headers of include/ are found by all, and
// those of directories of dir that are named after a source, with whose sources it is linked: "src/a.c lib". Program(dir, source)
// is the result.
func CompileC(ctx context.Context, dir string, files fs.FS, sources ...string) error {
	clang, err := pkgs.FindClang(ctx, "")
	if err != nil {
		return err
	}
	for _, all := range []fs.FS{files, headers} {
		if err := os.CopyFS(dir, all); err != nil {
			return err
		}
	}
	var group errgroup.Group
	for _, source := range sources {
		group.Go(func() error { return compileC(ctx, clang, dir, strings.Fields(source)) })
	}
	return group.Wait()
}

func compileC(ctx context.Context, clang, dir string, words []string) error {
	args := []string{"-O3", "-march=native", "-pthread", "-I", filepath.Join(dir, "include"), "-o", Program(dir, words[0]), filepath.Join(dir, words[0])}
	for _, library := range words[1:] {
		parts, err := filepath.Glob(filepath.Join(dir, library, "*.c"))
		if err != nil {
			return err
		}
		args = append(append(args, "-I", filepath.Join(dir, library)), parts...)
	}
	if out, err := exec.CommandContext(ctx, clang, append(args, "-lm")...).CombinedOutput(); err != nil {
		return fmt.Errorf("compile %s: %w: %s", words[0], err, out)
	}
	return nil
}

// Program is where CompileC puts what it makes of a source.
func Program(dir, source string) string { return filepath.Join(dir, strings.TrimSuffix(source, ".c")) }
