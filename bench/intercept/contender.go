// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/kmod"
)

// port is the destination of all packets, as published.
const port = 8080

// config is a way of receiving.
type config struct {
	name    string
	hook    string // place, named by the receiver's kernel part
	program string // of src
	wait    string // how the program waits
	class   string // of scheduling
	device  bool   // the program passes an AF_XDP socket to the module
}

// alongside are configs that receive the same packets as the config of the hook "both", so that T1, T2 and T3 belong to
// the same packet.
var alongside = []config{
	{"same-t3", "both", "socket", "block", "other", false},
	{"same-kmod", "both", "kmod", "adaptive", "eager", false}, // if the kernel module is loaded
}

// Scheduling classes: default; default with a higher weight; SCHED_FIFO; and a higher weight with idle CPUs that poll.
var (
	spinning = []string{"other", "eager", "fifo"}
	sleeping = append(spinning, "ready") // for receivers that sleep and wait for a wakeup
)

// Kerb's configs come first, starting with the library's defaults. For each combination of waiting and scheduling there
// is a socket to compare with.
var configs = slices.Concat(
	[]config{{"ringbuf", "kerb", "kerb", "adaptive", "eager", false}},
	classes("ringbuf-sleep", "kerb", "kerb", "sleep", sleeping),
	withSocket(classes("xsk", "kerb", "kerb", "sleep", sleeping)),
	classes("ringbuf-adaptive", "kerb", "kerb", "adaptive", []string{"other", "fifo", "ready"}),
	classes("ringbuf-spin", "kerb", "kerb", "spin", spinning),
	[]config{
		{"ringbuf-patient", "kerb", "kerb", "patient", "eager", false},
		{"same-t2", "both", "kerb", "adaptive", "eager", false},
		{"kmod", "kmod", "kmod", "adaptive", "eager", false},
		{"afxdp", "xsk", "afxdp", "spin", "other", false},
		{"afxdp-sleep", "xsk", "afxdp", "sleep", "other", false},
		{"array", "array", "array", "spin", "other", false},
	},
	classes("socket", "stamp", "socket", "block", sleeping),
	classes("socket-adaptive", "stamp", "socket", "adaptive", sleeping),
	classes("socket-spin", "stamp", "socket", "spin", spinning),
	[]config{
		{"socket-busy", "stamp", "socket", "busy", "other", false},
		{"socket-mmsg", "stamp", "socket", "mmsg", "other", false},
		{"clock-fifo", "stamp", "clock", "spin", "fifo", false},
	},
)

// classes returns a config for each scheduling class.
func classes(name, hook, program, wait string, of []string) (all []config) {
	for _, class := range of {
		all = append(all, config{strings.TrimSuffix(name+"-"+class, "-other"), hook, program, wait, class, false})
	}
	return all
}

// withSocket returns the configs with programs that pass AF_XDP sockets to the module.
func withSocket(all []config) []config {
	for i := range all {
		all[i].device = true
	}
	return all
}

// quickConfigs are the configs of --quick: rings and sockets with the same waiting and scheduling.
var quickConfigs = []string{"ringbuf", "ringbuf-adaptive-*", "ringbuf-sleep-*", "ringbuf-spin-fifo",
	"socket", "socket-eager", "socket-fifo", "socket-ready", "socket-adaptive-*", "socket-spin-fifo", "clock-fifo"}

// longConfigs are the configs of the long loads.
var longConfigs = []string{"ringbuf", "socket"}

// matchesName reports whether a pattern matches the config.
func (c config) matchesName(pattern string) bool {
	ok, _ := path.Match(pattern, c.name) // a malformed pattern matches nothing
	return ok
}

func names() (all []string) {
	for _, c := range configs {
		all = append(all, c.name)
	}
	return all
}

// byLibrary reports whether the receiver uses Kerb's library, which counts lost packets.
func (c config) byLibrary() bool { return c.program == "kerb" || c.program == "kmod" }

// executable returns the name of the receiver program in src.
func (c config) executable() string {
	if c.byLibrary() {
		return "kerb"
	}
	return c.program
}

// possible returns an error if the config is not available: kernels with PREEMPT_RT have no busy polling of sockets,
// containers lack some devices.
func (c config) possible() error {
	if c.program == "kmod" {
		if _, err := os.Stat(kmod.Device); err != nil {
			return fmt.Errorf("%w: %w", bench.ErrLeftOut, kmod.ErrNotLoaded)
		}
	}
	if c.class == "ready" {
		if err := unix.Access("/dev/cpu_dma_latency", unix.W_OK); err != nil {
			return fmt.Errorf("%w: /dev/cpu_dma_latency: %w", bench.ErrLeftOut, err)
		}
	}
	if c.wait != "busy" {
		return nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUSY_POLL, 1); errors.Is(err, unix.ENOPROTOOPT) {
		return fmt.Errorf("%w: this kernel has no SO_BUSY_POLL", bench.ErrLeftOut)
	}
	return nil
}

// arguments returns the arguments of the receiver.
func (c config) arguments(p *place, cpu int) []string {
	where := strconv.Itoa(port)
	switch c.program {
	case "afxdp":
		where = p.nic
	case "array":
		where = "-"
	case "kerb":
		where = p.socket
	case "kmod":
		where = strconv.Itoa(ringSize)
	}
	out := []string{c.wait, c.class, strconv.Itoa(cpu), where}
	if c.device {
		out = append(out, p.nic)
	}
	return out
}

// place opens a hook's hosts once; an error is kept, too.
func (e *experiment) place(hook string) (*place, error) {
	if p := e.places[hook]; p != nil {
		return p, p.err
	}
	p, err := openPlace(hook)
	if err != nil {
		p = &place{err: fmt.Errorf("%s: %w", hook, err)}
	}
	e.places[hook] = p
	return p, p.err
}
