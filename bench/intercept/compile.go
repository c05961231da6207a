// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"context"
	"embed"
	"errors"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/lib"
)

//go:embed src/*.c src/*.h *.bpf.*
var files embed.FS

var sources = []string{"src/sender.c", "src/socket.c", "src/afxdp.c", "src/array.c", "src/clock.c",
	"src/kerb.c intercept"}

// tools has the compiled programs and their CPUs.
type tools struct {
	bench.Programs
	sender, receiver int
}

func compile(ctx context.Context, sources []string) (*tools, error) {
	t := &tools{}
	err := t.divide()
	if err == nil {
		t.Programs, err = bench.Compile(ctx, lib.Write, files, sources...)
	}
	return t, err
}

// divide assigns the first CPU to the sender and the last one to the receiver.
func (t *tools) divide() error {
	all, err := bench.CPUs()
	if err != nil {
		return err
	}
	if len(all) < 2 {
		return errors.New("this machine has one CPU: two are needed, since sender and receiver would wait for each other")
	}
	t.sender, t.receiver = all[0], all[len(all)-1]
	return nil
}
