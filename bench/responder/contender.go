// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/bench"
	usage "github.com/kerb-edge/kerb/bench/internal/path"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

// Ports of all contenders; coapPort is the standard port of CoAP.
const (
	port     = 7007
	coapPort = 5683
)

// contender is a config at a place, with its programs for all loads, and the server process during measurements.
type contender struct {
	config, protocol string
	place            *place
	tools            *tools
	remote           *remote  // nil if the client is on this machine
	program          string   // server program of tools; empty if the kernel answers
	variants         []string // ways of waiting of program, the sleeping one first
	variant          string
	device           bool // the argument of program is the device instead of the port
	sockets          *ebpf.Map
	state            *ebpf.Map // of the published program
	pid              int       // of program while it runs
	steps            int       // of a request for work
	rounds           int       // rounds of cars so far; all configs get the same cars
	agents           []*node.Node
	bench.Closers
}

// labPrefix returns letters for place, protocol and config, so that no two contenders share a lab.
func labPrefix(f family, config string) string {
	places := map[string]string{"direct": "d", "routed": "r", "direct6": "x", "routed6": "y"}
	protocols := map[string]string{"speed": "s", "curve": "v", "coap": "c", "tcp": "t", "work": "w", "cars": "r"}
	configs := map[string]string{"user": "u", "user-best": "b", "afxdp": "a", "mixed": "m", "kernel": "k",
		"reflector": "r", "dropped": "n", "sockmap": "s", publishedPrefix + "mixed": "p", publishedPrefix + "kernel": "q",
		"mixed-100ms": "h", "mixed-10ms": "t", "mixed-change": "c", "user-priority": "f", "kernel-limited": "l",
		"put": "e", "feed": "d"}
	return "kbr" + places[f.place] + protocols[f.protocol] + configs[config]
}

func (e *experiment) open(f family, config string) (*contender, error) {
	c := &contender{config: config, protocol: f.protocol, tools: e.tools, remote: e.remote}
	var err error
	if e.remote != nil {
		c.place, err = e.remote.place()
	} else if c.place, err = openPlace(f.place, labPrefix(f, config), e.tools); err == nil {
		c.Later(c.place.lab.Close)
	}
	if err != nil {
		return nil, err
	}
	return c, c.CloseOn(c.setup())
}

// setup loads the programs of the contender into the kernel, and selects the server program with its variants.
func (c *contender) setup() error {
	switch c.config {
	case "user", "user-priority":
		c.serveBy("server", "plain")
		if c.protocol == "tcp" {
			c.serveBy("stream", "sleep")
		}
	case "user-best":
		c.serveBy("server", "sleep", "poll", "spin")
		if c.protocol == "tcp" {
			c.serveBy("stream", "sleep", "spin")
		}
	case "afxdp":
		c.serveBy("afxdp", "sleep", "spin")
		c.device = true
		return c.attach("to_socket", "")
	case "reflector":
		return c.attach("reflect", "pass")
	case publishedPrefix + "mixed", publishedPrefix + "kernel":
		return c.attachPublished()
	case "dropped":
		return c.attach("drop", "")
	case "sockmap":
		c.serveBy("stream", "sockmap")
		return c.attachStream()
	default:
		return errors.Join(c.attach("", "pass"), c.startKerb())
	}
	return nil
}

func (c *contender) serveBy(program string, variants ...string) {
	c.program, c.variants, c.variant = program, variants, variants[0]
}

func (c *contender) port() int {
	if c.protocol == "coap" {
		return coapPort
	}
	return port
}

// attach attaches the reflector's programs in native mode to the server's interface and to its peer, which must have an
// XDP program before a veth accepts packets that the first one sends back.
func (c *contender) attach(program, peer string) error {
	spec, err := bench.Object(files, "limits.bpf.o")
	if err != nil {
		return err
	}
	if err := spec.Variables["server_port"].Set(uint16(c.port())); err != nil {
		return err
	}
	bpf, err := c.load(spec)
	if err != nil {
		return err
	}
	if program == "to_socket" {
		c.sockets = bpf.Maps["sockets"]
	}
	return errors.Join(
		c.attachTo(c.place.server, c.place.nic, bpf.Programs[program]),
		c.attachTo(c.place.peer, c.place.peerNIC, bpf.Programs[peer]))
}

func (c *contender) attachTo(ns *netlab.Namespace, nic string, program *ebpf.Program) error {
	if program == nil || ns == nil { // the other end is on another machine
		return nil
	}
	l, err := bench.AttachXDP(ns, nic, program)
	if err == nil {
		c.Later(l.Close)
	}
	return err
}

// attachStream attaches the programs that answer requests in the receive path of sockets in a map.
func (c *contender) attachStream() error {
	spec, err := bench.Object(files, "stream.bpf.o")
	if err != nil {
		return err
	}
	bpf, err := c.load(spec)
	if err != nil {
		return err
	}
	c.sockets = bpf.Maps["sockets"]
	err = link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: c.sockets.FD(), Program: bpf.Programs["verdict"], Attach: ebpf.AttachSkSKBVerdict})
	if err != nil {
		return fmt.Errorf("%w: verdict on sockets: %w", bench.ErrLeftOut, err)
	}
	return nil
}

func (c *contender) load(spec *ebpf.CollectionSpec) (*ebpf.Collection, error) {
	bpf, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, err
	}
	c.Later(func() error { bpf.Close(); return nil })
	return bpf, nil
}

// memory returns that of the running server, and of the agent with its maps.
func (c *contender) memory() (bench.Sample, error) {
	u := usage.Usage{Agents: c.agents}
	if c.pid != 0 {
		u.PIDs = []int{c.pid}
	}
	return u.MemorySample()
}

// sleeping returns the variant that sleeps.
func (c *contender) sleeping() string {
	if len(c.variants) == 0 {
		return ""
	}
	return c.variants[0]
}

// serving runs f while the server, if the config has one, runs in a variant.
func (c *contender) serving(variant string, f func() error) error {
	if c.program == "" {
		return f()
	}
	s, err := c.start(variant)
	if err != nil {
		return err
	}
	c.pid = s.Cmd.Process.Pid
	defer func() { c.pid = 0 }()
	return errors.Join(f(), s.Stop())
}

// alongside runs f while another server of speed limits runs on the port after c's.
func (c *contender) alongside(variant string, f func() error) error {
	_, cpus := c.tools.cpus()
	args := append([]string{variant, "speed", strconv.Itoa(c.port() + 1), cpus}, c.family()...)
	s, err := bench.StartProcess(command(c.place.server, c.tools.Path("server"), args...))
	if err != nil {
		return err
	}
	return errors.Join(f(), s.Stop())
}

// family returns the argument of servers for IPv6.
func (c *contender) family() []string {
	if c.place.address.Is6() {
		return []string{"6"}
	}
	return nil
}

// wire returns the name of the protocol in the C programs.
func (c *contender) wire() string {
	if c.protocol == "work" {
		return fmt.Sprintf("work/%d", c.steps)
	}
	return c.protocol
}

// start starts the server, and returns when it is ready.
func (c *contender) start(variant string) (*bench.Process, error) {
	_, cpus := c.tools.cpus()
	where := strconv.Itoa(c.port())
	if c.device {
		where = c.place.nic
	}
	args := []string{variant, c.protocol, where, cpus}
	if c.protocol == "tcp" {
		args = []string{variant, where, cpus}
	}
	if c.program == "server" {
		args = append(args, c.family()...)
	}
	cmd := command(c.place.server, c.tools.Path(c.program), args...)
	if c.sockets != nil {
		fd, err := unix.FcntlInt(uintptr(c.sockets.FD()), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		sockets := os.NewFile(uintptr(fd), "sockets")
		defer sockets.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, sockets) // descriptor 3
	}
	return bench.StartProcess(cmd)
}
