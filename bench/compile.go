// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/kerb-edge/kerb/internal/lab/tempdir"
	"github.com/kerb-edge/kerb/internal/pkgs"
)

//go:embed include/*.h
var headers embed.FS

// ProgramCacheEnv is the environment variable with a directory in which CompileC keeps its programs, for machines
// without a compiler. They are static and run on every processor of the architecture. Existing files are used as they
// are.
const ProgramCacheEnv = "KERB_BENCH_PROGRAMS"

// Programs is a directory with programs that Compile has compiled from the sources in src/.
type Programs struct{ Dir string }

// Compile compiles programs in a temporary directory, to which prepare, if it is not nil, adds sources.
func Compile(ctx context.Context, prepare func(dir string) error, files fs.FS, sources ...string) (Programs, error) {
	dir, err := tempdir.New()
	if err != nil {
		return Programs{}, err
	}
	if prepare != nil {
		err = prepare(dir)
	}
	if err == nil {
		err = CompileC(ctx, dir, files, sources...)
	}
	if err != nil {
		return Programs{}, errors.Join(err, tempdir.Remove(dir))
	}
	return Programs{dir}, nil
}

// Path returns the program of the source src/NAME.c.
func (p Programs) Path(name string) string { return Program(p.Dir, "src/"+name+".c") }

// Add compiles another source that Compile has copied, with additional compiler flags.
func (p Programs) Add(ctx context.Context, source string, flags ...string) error {
	return compileC(ctx, p.Dir, Program(p.Dir, source), []string{source}, append(flags, "-march=native")...)
}

// Close removes the directory.
func (p Programs) Close() error { return tempdir.Remove(p.Dir) }

// CompileC copies files to a directory and compiles each C source there, optimised for this machine. References in user
// space are written in C, so that the language does not slow them down. All sources can include headers of include/. A
// source followed by directories of dir, as in "src/a.c lib", can include their headers and is linked with their
// sources. Program(dir, source) is the result.
func CompileC(ctx context.Context, dir string, files fs.FS, sources ...string) error {
	for _, all := range []fs.FS{files, headers} {
		if err := os.CopyFS(dir, all); err != nil {
			return err
		}
	}
	hash, err := hashOf(os.DirFS(dir))
	if err != nil {
		return err
	}
	var group errgroup.Group
	for _, source := range sources {
		group.Go(func() error { return makeProgram(ctx, dir, hash, strings.Fields(source)) })
	}
	return group.Wait()
}

// makeProgram compiles a program, or links the cached one if ProgramCacheEnv is set.
func makeProgram(ctx context.Context, dir, hash string, words []string) error {
	program := Program(dir, words[0])
	if os.Getenv(ProgramCacheEnv) == "" {
		return compileC(ctx, dir, program, words, "-march=native")
	}
	kept, err := filepath.Abs(filepath.Join(os.Getenv(ProgramCacheEnv), filepath.Base(program)+"-"+hash))
	if err != nil {
		return err
	}
	if _, err := os.Stat(kept); err != nil {
		if err := errors.Join(os.MkdirAll(filepath.Dir(kept), 0o755),
			compileC(ctx, dir, kept, words, "-static")); err != nil {
			return err
		}
	}
	return os.Symlink(kept, program)
}

// hashOf returns a hash of the names and contents of all files.
func hashOf(files fs.FS) (string, error) {
	sum := sha256.New()
	err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := fs.ReadFile(files, name)
		fmt.Fprintf(sum, "%s %d\n%s", name, len(data), data)
		return err
	})
	return hex.EncodeToString(sum.Sum(nil)[:8]), err
}

func compileC(ctx context.Context, dir, program string, words []string, flags ...string) error {
	clang, err := pkgs.FindClang(ctx, "")
	if err != nil {
		return err
	}
	args := append(flags, "-O3", "-pthread", "-I", filepath.Join(dir, "include"), "-o", program,
		filepath.Join(dir, words[0]))
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

// Program returns the path of the program that CompileC compiles from a source.
func Program(dir, source string) string { return filepath.Join(dir, strings.TrimSuffix(source, ".c")) }
