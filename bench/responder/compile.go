// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kerb-edge/kerb/bench"
)

//go:embed src/*.c src/*.h *.bpf.*
var files embed.FS

// tools has the compiled programs.
type tools struct {
	bench.Programs
	clients, others []int // CPUs of the client and of the servers
}

var sources = []string{"src/client.c", "src/server.c", "src/afxdp.c", "src/stream.c"}

// compile compiles the programs and divides the CPUs. 0 servers' CPUs means half of all, or all if the client is on
// another machine.
func compile(ctx context.Context, serverCPUs int, remote bool) (*tools, error) {
	all, err := bench.CPUs()
	if err != nil {
		return nil, err
	}
	t := &tools{}
	if t.others = all; !remote || serverCPUs != 0 {
		t.clients, t.others, err = divide(all, serverCPUs)
	}
	if err == nil {
		t.Programs, err = bench.Compile(ctx, nil, files, sources...)
	}
	return t, err
}

// divide assigns the last CPUs to servers, by default the upper half, and the others to the client.
func divide(all []int, servers int) (client, others []int, err error) {
	if len(all) < 2 {
		return nil, nil, errors.New("this machine has one CPU: client and server need one each")
	}
	if servers == 0 {
		servers = len(all) - len(all)/2
	}
	if servers < 1 || servers >= len(all) {
		return nil, nil, fmt.Errorf("--server-cpus %d: this machine has %d CPUs, and client and servers need at least one "+
			"each", servers, len(all))
	}
	return all[:len(all)-servers], all[len(all)-servers:], nil
}

// cpus returns the client's and the servers' CPUs as lists such as "0,1".
func (t *tools) cpus() (client, server string) { return list(t.clients), list(t.others) }

func (t *tools) allCPUs() string { return list(slices.Concat(t.clients, t.others)) }

func list(cpus []int) string {
	var text []string
	for _, c := range cpus {
		text = append(text, strconv.Itoa(c))
	}
	return strings.Join(text, ",")
}
