// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"context"
	"embed"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/tempdir"
)

//go:embed src/*.c src/*.h *.bpf.*
var files embed.FS

// tools are the compiled programs, in a directory of their own.
type tools struct {
	dir             string
	clients, others []int // CPUs of the client and of the servers
}

var sources = []string{"src/client.c", "src/server.c", "src/afxdp.c", "src/stream.c"}

func compile(ctx context.Context) (*tools, error) {
	t := &tools{}
	if err := t.divide(); err != nil {
		return nil, err
	}
	var err error
	if t.dir, err = tempdir.New(); err != nil {
		return nil, err
	}
	if err := bench.CompileC(ctx, t.dir, files, sources...); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// divide gives the client the lower half of the CPUs and servers the upper one.
func (t *tools) divide() error {
	all, err := bench.CPUs()
	if err != nil {
		return err
	}
	half := len(all) / 2
	if half == 0 {
		return errors.New("client and server need two CPUs, this machine has one")
	}
	t.clients, t.others = all[:half], all[half:]
	return nil
}

func (t *tools) path(name string) string { return bench.Program(t.dir, "src/"+name+".c") }

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

func (t *tools) close() error { return tempdir.Remove(t.dir) }
