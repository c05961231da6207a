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
// this machine: references in user space are in C, so that none is slow for its language. Headers of include/ are found by all.
// Program(dir, source) is the result.
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
		group.Go(func() error {
			cmd := exec.CommandContext(ctx, clang, "-O3", "-march=native", "-pthread", "-I", filepath.Join(dir, "include"), "-o", Program(dir, source), filepath.Join(dir, source), "-lm")
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("compile %s: %w: %s", source, err, out)
			}
			return nil
		})
	}
	return group.Wait()
}

// Program is where CompileC puts what it makes of a source.
func Program(dir, source string) string { return filepath.Join(dir, strings.TrimSuffix(source, ".c")) }
