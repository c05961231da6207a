// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/tempdir"
	"github.com/kerb-edge/kerb/lib"
	"github.com/kerb-edge/kerb/modules/intercept"
)

//go:embed src/*.c src/*.h *.bpf.*
var files embed.FS

var sources = []string{"src/sender.c", "src/socket.c", "src/afxdp.c", "src/array.c", "src/clock.c",
	"src/kerb.c intercept"}

// tools are the compiled programs, in a directory of their own, and the CPUs they run on.
type tools struct {
	dir              string
	sender, receiver int
}

func compile(ctx context.Context) (*tools, error) {
	t := &tools{}
	if err := t.divide(); err != nil {
		return nil, err
	}
	var err error
	if t.dir, err = tempdir.New(); err != nil {
		return nil, err
	}
	err = errors.Join(os.CopyFS(t.dir, lib.Files), os.WriteFile(filepath.Join(t.dir, "intercept", "record.h"),
		intercept.Header, 0o644))
	if err == nil {
		err = bench.CompileC(ctx, t.dir, files, sources...)
	}
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// divide takes the first and the last CPU: where there are threads of one core, they are not these.
func (t *tools) divide() error {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return fmt.Errorf("cpu affinity: %w", err)
	}
	if set.Count() < 2 {
		return errors.New("one CPU: sender and receiver would wait for each other; two are needed")
	}
	for t.sender = 0; !set.IsSet(t.sender); t.sender++ {
	}
	for cpu, left := t.sender, set.Count(); left > 0; cpu++ {
		if set.IsSet(cpu) {
			t.receiver, left = cpu, left-1
		}
	}
	return nil
}

func (t *tools) path(name string) string { return bench.Program(t.dir, "src/"+name+".c") }

func (t *tools) close() error { return tempdir.Remove(t.dir) }
