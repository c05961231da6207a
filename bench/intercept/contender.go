// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"errors"
	"fmt"
	"strconv"
)

// port is where all packets go: the published one.
const port = 8080

// config is a way to receive.
type config struct {
	name    string
	hook    string // what takes T1: names the place
	program string // of src
	wait    string // how the program waits
	class   string // of scheduling
}

// Ours first. Each that sleeps, spins or is SCHED_FIFO has a socket that does the same to be compared with.
var configs = []config{
	{"ringbuf", "kerb", "kerb", "sleep", "other"},
	{"ringbuf-adaptive", "kerb", "kerb", "adaptive", "other"},
	{"ringbuf-spin", "kerb", "kerb", "spin", "other"},
	{"ringbuf-fifo", "kerb", "kerb", "sleep", "fifo"},
	{"ringbuf-adaptive-fifo", "kerb", "kerb", "adaptive", "fifo"},
	{"ringbuf-spin-fifo", "kerb", "kerb", "spin", "fifo"},
	{"kmod", "kmod", "kerb", "adaptive", "other"},
	{"afxdp", "socket", "afxdp", "spin", "other"},
	{"afxdp-sleep", "socket", "afxdp", "sleep", "other"},
	{"array", "array", "array", "spin", "other"},
	{"socket", "stamp", "socket", "block", "other"},
	{"socket-busy", "stamp", "socket", "busy", "other"},
	{"socket-mmsg", "stamp", "socket", "mmsg", "other"},
	{"socket-adaptive", "stamp", "socket", "adaptive", "other"},
	{"socket-spin", "stamp", "socket", "spin", "other"},
	{"socket-fifo", "stamp", "socket", "block", "fifo"},
	{"socket-adaptive-fifo", "stamp", "socket", "adaptive", "fifo"},
	{"socket-spin-fifo", "stamp", "socket", "spin", "fifo"},
}

// enduring are the configs of the long loads.
var enduring = []string{"ringbuf-adaptive", "socket"}

// errLeftOut is wrapped when something cannot be measured here.
var errLeftOut = errors.New("cannot be measured")

// arguments are the receiver's.
func (c config) arguments(p *place, cpu int) []string {
	where := strconv.Itoa(port)
	switch c.program {
	case "afxdp":
		where = p.nic
	case "array":
		where = "-"
	case "kerb":
		where = p.socket
	}
	return []string{c.wait, c.class, strconv.Itoa(cpu), where}
}

// place opens a hook's hosts once.
func (e *experiment) place(hook string) (*place, error) {
	if p := e.places[hook]; p != nil {
		return p, nil
	}
	p, err := openPlace(hook)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", hook, err)
	}
	e.places[hook] = p
	return p, nil
}
