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
)

//go:embed src/*.c src/*.h *.bpf.*
var files embed.FS

// tools are the compiled programs, in a directory of their own.
type tools struct {
	bench.Programs
	clients, others []int // CPUs of the client and of the servers
}

var sources = []string{"src/client.c", "src/server.c", "src/afxdp.c", "src/stream.c"}

func compile(ctx context.Context) (*tools, error) {
	t := &tools{}
	err := t.divide()
	if err == nil {
		t.Programs, err = bench.Compile(ctx, nil, files, sources...)
	}
	return t, err
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
