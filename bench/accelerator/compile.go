// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/bench"
)

//go:embed src/*.c src/*.h src/*.lua src/*.py
var files embed.FS

// tools has the compiled programs, and the file to transfer.
type tools struct {
	bench.Programs
	cpus [2]string // of the client's side and of the server's
	file *os.File
}

// The sides of a connection.
const (
	clientSide = iota
	serverSide
)

func compile(ctx context.Context, cpus string) (*tools, error) {
	t := &tools{}
	err := t.divide(cpus)
	if err == nil {
		t.Programs, err = bench.Compile(ctx, nil, files, "src/client.c", "src/server.c", "src/run.c",
			"src/memtier.c", "src/mqtt.c")
	}
	return t, err
}

// divide pins both sides to the last CPU, or the client's side to the first one.
func (t *tools) divide(cpus string) error {
	all, err := bench.CPUs()
	if err != nil {
		return err
	}
	last := strconv.Itoa(all[len(all)-1])
	t.cpus = [2]string{last, last}
	if cpus != "two" {
		return nil
	}
	if len(all) == 1 {
		return errors.New("--cpus two: this machine has one CPU")
	}
	t.cpus[clientSide] = strconv.Itoa(all[0])
	return nil
}

// fileOf returns the path of a file in memory, so that the disk is not measured. It is created once.
func (t *tools) fileOf(bytes int) (string, error) {
	if t.file == nil {
		fd, err := unix.MemfdCreate("kerb-bench", unix.MFD_CLOEXEC)
		if err != nil {
			return "", err
		}
		t.file = os.NewFile(uintptr(fd), "kerb-bench")
		for chunk := make([]byte, 1<<20); bytes > 0; bytes -= len(chunk) {
			if _, err := t.file.Write(chunk); err != nil {
				return "", err
			}
		}
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), t.file.Fd()), nil
}

// Close removes the programs and the file.
func (t *tools) Close() error {
	if t.file != nil {
		t.file.Close()
	}
	return t.Programs.Close()
}
