// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

var errNoTests = errors.New("no package with tests matches")

// testBinary is one compiled Go test package.
type testBinary struct {
	pkg    string // directory below the module's root, with slashes; names the package in the machine and in the table
	source string // the same directory on the host
	binary string
}

// goPackage has the used fields of go list -json.
type goPackage struct {
	Dir, Name                 string
	Match                     []string // the patterns that matched it
	Module                    struct{ Dir string }
	TestGoFiles, XTestGoFiles []string
}

// buildTests compiles every matching package with tests into dir, statically linked.
func buildTests(ctx context.Context, dir string, a arch, patterns []string) ([]testBinary, error) {
	packages, err := listPackages(ctx, a, patterns)
	if err != nil {
		return nil, err
	}
	var tests []testBinary
	for i, p := range packages {
		rel, err := filepath.Rel(p.Module.Dir, p.Dir)
		if err != nil {
			return nil, err
		}
		t := testBinary{filepath.ToSlash(rel), p.Dir, filepath.Join(dir, fmt.Sprintf("%d.test", i))}
		progress("build %s (%d of %d)", t.pkg, i+1, len(packages))
		cmd := exec.CommandContext(ctx, "go", "test", "-c", "-ldflags=-s -w", "-o", t.binary, p.Dir)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+a.name)
		if _, err := output(ctx, cmd); err != nil {
			return nil, err
		}
		tests = append(tests, t)
	}
	return tests, nil
}

// wanted excludes packages without tests, and commands unless they are named: tools such as generators, and tests of
// the source tree, do not depend on the kernel.
func (p goPackage) wanted() bool {
	named := slices.ContainsFunc(p.Match, func(pattern string) bool { return !strings.Contains(pattern, "...") })
	return len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 && (p.Name != "main" || named)
}

// listPackages returns the packages to test, as built without cgo. A pattern with "..." may match nothing.
func listPackages(ctx context.Context, a arch, patterns []string) ([]goPackage, error) {
	args := append([]string{"list", "-json=Dir,Name,Match,Module,TestGoFiles,XTestGoFiles"}, patterns...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+a.name)
	text, err := output(ctx, cmd)
	if err != nil {
		return nil, err
	}
	var found []goPackage
	for d := json.NewDecoder(bytes.NewBufferString(text)); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		if p.wanted() {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: %s", errNoTests, strings.Join(patterns, " "))
	}
	return found, nil
}
