// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"context"
	"embed"
	"errors"
	"os"
	"path/filepath"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bpf"
	"github.com/kerb-edge/kerb/lib"
	"github.com/kerb-edge/kerb/modules/intercept"
)

//go:embed src/*.c src/*.h *.bpf.*
var files embed.FS

var sources = []string{"src/sender.c", "src/socket.c", "src/afxdp.c", "src/array.c", "src/clock.c",
	"src/kerb.c intercept"}

// tools are the compiled programs, in a directory of their own, and the CPUs they run on.
type tools struct {
	bench.Programs
	sender, receiver int
}

func compile(ctx context.Context, sources []string) (*tools, error) {
	t := &tools{}
	err := t.divide()
	if err == nil {
		t.Programs, err = bench.Compile(ctx, writeLibrary, files, sources...)
	}
	return t, err
}

// writeLibrary writes the sources of the library for receivers.
func writeLibrary(dir string) error {
	buckets, err := bpf.Headers.ReadFile("include/kerb/buckets.h")
	at := filepath.Join(dir, "intercept")
	return errors.Join(err, os.CopyFS(dir, lib.Files),
		os.WriteFile(filepath.Join(at, "record.h"), intercept.Header, 0o644),
		os.Mkdir(filepath.Join(at, "kerb"), 0o755), os.WriteFile(filepath.Join(at, "kerb", "buckets.h"), buckets, 0o644))
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
