// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

//go:embed src/*.c src/*.h *.bpf.*
var files embed.FS

// tools are the compiled programs, in a directory of their own.
type tools struct {
	dir             string
	clients, others []int // CPUs of the client and of the servers
}

// errNoCompiler is wrapped when the client and the servers cannot be built.
var errNoCompiler = errors.New("no C compiler; the client and the reference servers are C: apt-get install clang libc6-dev")

func compile(ctx context.Context) (*tools, error) {
	t := &tools{}
	if err := t.divide(); err != nil {
		return nil, err
	}
	compiler, err := findCompiler()
	if err != nil {
		return nil, err
	}
	if t.dir, err = os.MkdirTemp("", "kerb-bench-responder-"); err != nil {
		return nil, err
	}
	if err := os.CopyFS(t.dir, files); err != nil {
		return nil, errors.Join(err, t.close())
	}
	var group errgroup.Group
	for _, name := range []string{"client", "server", "afxdp", "stream"} {
		group.Go(func() error {
			source := filepath.Join(t.dir, "src", name+".c")
			out, err := exec.CommandContext(ctx, compiler, "-O2", "-pthread", "-o", t.path(name), source, "-lm").CombinedOutput()
			if err != nil {
				return fmt.Errorf("compile %s.c: %w: %s", name, err, out)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

func findCompiler() (string, error) {
	for _, name := range []string{"clang", "clang-19", "cc"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errNoCompiler
}

// divide gives the client the lower half of the CPUs and servers the upper one.
func (t *tools) divide() error {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return fmt.Errorf("cpu affinity: %w", err)
	}
	var all []int
	for cpu := 0; len(all) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			all = append(all, cpu)
		}
	}
	half := len(all) / 2
	if half == 0 {
		return errors.New("one CPU: client and server cannot be told apart; two are needed")
	}
	t.clients, t.others = all[:half], all[half:]
	return nil
}

func (t *tools) path(name string) string { return filepath.Join(t.dir, name) }

// cpus are the client's and the servers' as lists, "0,1".
func (t *tools) cpus() (client, server string) { return list(t.clients), list(t.others) }

func (t *tools) allCPUs() string { return list(slices.Concat(t.clients, t.others)) }

func list(cpus []int) string {
	var text []string
	for _, c := range cpus {
		text = append(text, strconv.Itoa(c))
	}
	return strings.Join(text, ",")
}

func (t *tools) close() error { return os.RemoveAll(t.dir) }
