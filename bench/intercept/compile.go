// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"context"
	"embed"
	"errors"
	"os"
	"path/filepath"

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

// divide takes the first and the last CPU.
func (t *tools) divide() error {
	all, err := bench.CPUs()
	if err != nil {
		return err
	}
	if len(all) < 2 {
		return errors.New("one CPU: sender and receiver would wait for each other; two are needed")
	}
	t.sender, t.receiver = all[0], all[len(all)-1]
	return nil
}

func (t *tools) path(name string) string { return bench.Program(t.dir, "src/"+name+".c") }

func (t *tools) close() error { return tempdir.Remove(t.dir) }
