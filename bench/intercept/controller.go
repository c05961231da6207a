// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/path"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

func init() {
	c := &controller{experiment: experiment{places: map[string]*place{}}}
	var names []string
	for _, b := range boxes {
		names = append(names, b.name)
	}
	bench.Register(bench.Experiment{
		Name: "controller",
		Short: "a controller that receives CTRL, DATA and LOG messages under load: delay to the program, and of the " +
			"reply",
		Baseline:   "socket",
		Loads:      []string{"idle", "cpu", "memory", "io", "fork", "flood"},
		QuickLoads: []string{"flood"},
		Configs:    names,
		Flags:      c.flags,
		Run:        c.execute,
	})
}

// controller is the state of `kerb bench controller`: sensors send three kinds of messages to a box, which sends
// instructions back.
type controller struct {
	experiment

	floods []float64 // packets/s of the flood in each round that has one
	noDPDK error     // why boxes with DPDK cannot be measured
}

// box is a way in which the controller receives and replies.
type box struct {
	name, hook, program, way string
	threads                  int
}

var boxes = []box{
	{"socket", "plain", "box", "socket", 1},
	{"sockets-priority", "plain", "box", "sockets-priority", 3},
	{"packet-mmap", "plain", "box", "packet-mmap", 1},
	{"afxdp", "xsk", "box", "afxdp", 1},
	{"io_uring", "plain", "box", "io_uring", 1},
	{"dpdk", "dpdk", "dpdk", "net_af_xdp", 1},
	{"dpdk-packet", "dpdk", "dpdk", "net_af_packet", 1},
	{"ring", "ring", "classes", "sendto", 3},
	{"ring-reply", "ring", "classes", "reply", 3},
	{"kernel", "law", "classes", "kernel", 2},
}

var controllerSources = []string{"src/sender.c", "src/clock.c", "src/client.c", "src/box.c", "src/classes.c intercept"}

// kinds are the kinds of messages, the most urgent first. The clock measures the first only.
var kinds = []string{"ctrl", "data", "log"}

// stream is the output of both ends for one kind of message; times in us.
type stream struct {
	bench.Times

	Sent, Unsent, Answered, Received, Told uint64
}

// tails are the stats of times.
var tails = []string{"p1", "p25", "p50", "p75", "p99", "p99.9", "max"}

type endReport struct {
	Seconds, CPU    float64
	Ctrl, Data, Log stream

	memory bench.Sample // of box, agent, control planes and the maps of modules
}

func (e *endReport) of(kind int) *stream { return []*stream{&e.Ctrl, &e.Data, &e.Log}[kind] }

// startController deploys a class for each kind of message, matched by the message type.
func (p *place) startController(action string, answer any) error {
	n, err := node.Start(p.lab.Node())
	if err != nil {
		return err
	}
	p.Later(n.Close)
	p.node = n
	p.socket = n.ModuleSocket("intercept")
	var classes []map[string]any
	for i, kind := range kinds {
		c := map[string]any{"name": kind, "action": "steal", "match": map[string]any{"protocol": "udp",
			"ports":   []any{port},
			"payload": []any{map[string]any{"offset": 4, "bytes": fmt.Sprintf("%02x000000", 10+i)}}}}
		if c["ring"], c["watchdog"] = strconv.Itoa(ringSize), "10s"; i == 0 && answer != nil {
			delete(c, "ring")
			delete(c, "watchdog")
			c["action"], c["answer"] = action, answer
		}
		classes = append(classes, c)
	}
	if err := n.Apply(p.module("intercept", map[string]any{"classes": classes})); err != nil {
		return err
	}
	if answer != nil {
		if err := p.acceptReplies(); err != nil {
			return err
		}
	}
	return p.awaitSocket()
}

// acceptReplies makes the sender's end of the veth accept frames of XDP_TX, for which it needs an XDP program.
func (p *place) acceptReplies() error {
	pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2),
		asm.Return()}})
	if err != nil {
		return err
	}
	defer pass.Close()
	l, err := bench.AttachXDP(p.sender.Namespace, p.sender.Interface(), pass)
	if err == nil {
		p.Later(l.Close)
	}
	return err
}

func (c *controller) execute(ctx context.Context, r *bench.Run) (err error) {
	c.run = r
	if c.tools, err = compile(ctx, controllerSources); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if c.wantsDPDK() {
		c.noDPDK = c.tools.compileDPDK(ctx)
	}
	r.Expected = time.Duration(len(r.Loads())*r.Rounds*(len(boxes)+1)) * (c.duration() + 300*time.Millisecond)
	for _, name := range r.Loads() {
		if err := c.runLoad(ctx, name); err != nil {
			return err
		}
	}
	c.notes()
	return nil
}

func (c *controller) notes() {
	c.noteFloods()
	if c.wantsDPDK() && c.noDPDK == nil {
		c.run.Note("dpdk and dpdk-packet are DPDK's drivers for interfaces that remain with Linux (net_af_xdp and " +
			"net_af_packet, without huge pages). They poll: cpu is measured from the first message to the last. The thread " +
			"has nice -20 and slices of 100 us: with SCHED_FIFO, on a CPU that Linux uses too, it would wait for up to 50 ms " +
			"of every second. DPDK's documentation recommends a CPU isolated at boot. Instructions are sent by the driver. " +
			"Drivers that take a NIC away from Linux are not measured: bind a second NIC to vfio-pci, and send to it from " +
			"another machine")
	}
	c.run.Note("kmod is left out: the kernel module has one ring per port, and no classes by payload. For one class: " +
		"make -C kmod, insmod kmod/kerb_intercept.ko, kerb bench intercept --contenders kmod,ringbuf")
	c.run.Note("to_program and to_sender start when the client has built the message; an instruction contains the " +
		"message it answers; LOG messages get none. Messages answered in the kernel do not reach a program")
	c.run.Note("client (one thread per kind of sensor) and flood run on CPU %d with SCHED_FIFO, the controller on CPU "+
		"%d, its threads with SCHED_FIFO too; the hook, and replies sent there, run on the client's CPU, as with any veth",
		c.tools.sender, c.tools.receiver)
	c.run.Note("ctrl/alone is CTRL without DATA, LOG and flood, in rounds that alternate with flood; cpu is the CPU " +
		"time of the controller, the agent and its control planes; all/... is what a round takes of the whole machine, " +
		"including sensors and flood: softirqs, context switches, memory of the controller and of Kerb (PSS and maps: both " +
		"include rings of 32 MiB), and with --bystander the speed of a compute job; clock/... is the delay that the " +
		"machine adds for any receiver")
}

func (c *controller) duration() time.Duration {
	switch {
	case c.length > 0:
		return c.length
	case c.run.Quick:
		return 200 * time.Millisecond
	}
	return time.Second
}

func (c *controller) runLoad(ctx context.Context, name string) (err error) {
	var trials []bench.Trial
	all := len(c.run.Configs) == 0
	for _, b := range boxes {
		quickConfigs := slices.Contains([]string{"socket", "ring", "kernel"}, b.name)
		if !c.run.Wants(b.name) || all && c.run.Quick && !quickConfigs {
			continue
		}
		p, err := c.place(b.hook)
		if err == nil {
			err = c.possible(b)
		}
		if c.run.LeftOut(b.name, err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
		if name == "flood" {
			trials = append(trials, c.trial(b, p, "alone"))
		}
		trials = append(trials, c.trial(b, p, name))
	}
	if p, err := c.place("stamp"); err == nil && all {
		trials = append(trials, bench.Trial{Config: "clock-fifo", Load: "clock/" + name,
			Measure: func(ctx context.Context) ([]bench.Sample, error) { return nil, c.clock(ctx, p, name) }})
	}
	s, err := startStress(name)
	if errors.Is(err, bench.ErrLeftOut) {
		c.run.Note("%s is left out: %v", name, err)
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	return c.run.Interleave(ctx, name, trials...)
}

// clock measures the load without messages.
func (c *controller) clock(ctx context.Context, p *place, name string) error {
	end, err := c.startFlood(ctx, p, name)
	if err != nil {
		return err
	}
	defer end()
	clock := config{"clock-fifo", "stamp", "clock", "spin", "fifo", false}
	l := load{name: "clock/" + name, size: 64, rate: 1000}
	c.length = c.duration()
	samples, err := c.experiment.measure(ctx, clock, p, l)
	for i := range samples {
		if samples[i].Metric == "delay" {
			samples[i].Metric = "to_program"
		}
	}
	c.run.Record(clock.name, l.name, samples...)
	return err
}

func (c *controller) trial(b box, p *place, name string) bench.Trial {
	return bench.Trial{Config: b.name, Load: "all/" + name, Measure: func(ctx context.Context) ([]bench.Sample, error) {
		return nil, c.measureBox(ctx, b, p, name)
	}}
}

// measureBox records one round under the loads KIND/NAME.
func (c *controller) measureBox(ctx context.Context, b box, p *place, name string) error {
	ctx, cancel := context.WithTimeout(ctx, c.duration()+grace)
	defer cancel()
	client, program, err := c.exchange(ctx, b, p, name)
	if err != nil {
		return fmt.Errorf("%s, %s: %w", b.name, name, err)
	}
	c.run.Record(b.name, "all/"+name, program.memory)
	cpu := program.CPU / client.Seconds
	for i, kind := range kinds {
		if sent, got := client.of(i), program.of(i); sent.Sent > 0 {
			c.record(b, i, kind+"/"+name, sent, got, cpu)
		}
	}
	return nil
}

func (p *place) agentCPU() (time.Duration, error) {
	if p.node == nil {
		return 0, nil
	}
	return p.node.CPU()
}

func (c *controller) record(b box, kind int, load string, sent, got *stream, cpu float64) {
	all := []bench.Sample{bench.P50("cpu", "cores", cpu)}
	arrived := sent.Answered
	if inKernel := b.way == "kernel" && kind == 0; !inKernel {
		arrived = got.Received
		all = append(all, got.Samples("to_program", tails...)...)
	}
	if kind < 2 {
		all = append(append(all, sent.Samples("to_sender", tails...)...),
			bench.Count("unanswered", sent.Sent-min(sent.Sent, sent.Answered)))
	}
	if arrived > sent.Sent || sent.Answered > sent.Sent || arrived == 0 {
		c.run.Invalidate("%s, %s: %d messages sent, %d arrived, %d answered", b.name, load, sent.Sent, arrived, sent.Answered)
	}
	lost := sent.Sent - min(sent.Sent, arrived+sent.Unsent)
	if b.program == "classes" && got.Told > lost {
		c.run.Invalidate("%s, %s: %d messages lost, %d of them reported to the receiver", b.name, load, lost, got.Told)
	}
	c.run.Record(b.name, load, append(all, bench.Count("lost", lost), bench.Count("lost_at_ring", got.Told),
		bench.Count("unsent", sent.Unsent))...)
}

// exchange runs box, clients and flood. The CPU time of the program includes that of agent and control planes.
func (c *controller) exchange(ctx context.Context, b box, p *place, name string) (client, program endReport,
	err error) {
	where := p.nic
	switch b.program {
	case "classes":
		where = p.socket
	case "dpdk":
		where = dpdkOptions(b.way, p.nic, c.tools.Dir)
	}
	files, err := p.files()
	if err != nil {
		return client, program, err
	}
	defer closeAll(files)
	before, err := p.agentCPU()
	if err != nil {
		return client, program, err
	}
	cmd := p.lab.Node().Command(ctx, c.tools.Path(b.program), b.way, strconv.Itoa(c.tools.receiver), strconv.Itoa(port),
		where)
	cmd.ExtraFiles = files
	receives, err := bench.StartThreads(cmd, b.threads)
	if err != nil {
		return client, program, fmt.Errorf("the receiver gets no messages: %w", err)
	}
	sendErr := c.runClients(ctx, b, p, name, &client)
	after, cpuErr := p.agentCPU()
	memory, memoryErr := p.memory(cmd.Process.Pid)
	_ = cmd.Process.Signal(syscall.SIGTERM)
	line, _ := receives.Out.ReadBytes('\n')
	if err := errors.Join(sendErr, cpuErr, memoryErr, cmd.Wait()); err != nil {
		return client, program, fmt.Errorf("%w: %s", err, &receives.Stderr)
	}
	err = json.Unmarshal(line, &program)
	program.CPU += (after - before).Seconds()
	program.memory = memory
	return client, program, err
}

// memory returns the memory of a program, and of Kerb if it runs.
func (p *place) memory(pid int) (bench.Sample, error) {
	u := path.Usage{PIDs: []int{pid}}
	if p.node != nil {
		u.Agents = []*node.Node{p.node}
	}
	return u.MemorySample()
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// The flood: packets to a port without a receiver, on the interface of the messages.
const floodPort, floodRate = 9, 100_000

// runClients runs the clients with all kinds of messages, or only CTRL.
func (c *controller) runClients(ctx context.Context, b box, p *place, name string, client *endReport) error {
	ms, cpu := strconv.Itoa(int(c.duration().Milliseconds())), strconv.Itoa(c.tools.sender)
	to, n := p.lab.Gateway4().String(), strconv.Itoa(len(kinds))
	if name == "alone" {
		n = "1"
	}
	args := []string{to}
	for i := range kinds {
		if b.way != "sockets-priority" {
			i = 0
		}
		args = append(args, strconv.Itoa(port+i))
	}
	endFlood, err := c.startFlood(ctx, p, name)
	if err != nil {
		return err
	}
	defer endFlood()
	out, err := p.sender.Command(ctx, c.tools.Path("client"), append(args, n, ms, cpu)...).Output()
	if err != nil {
		return fmt.Errorf("clients: %w", err)
	}
	return json.Unmarshal(out, client)
}

// startFlood starts the flood of the load flood. end waits for its report and checks it.
func (c *controller) startFlood(ctx context.Context, p *place, name string) (end func(), err error) {
	if name != "flood" {
		return func() {}, nil
	}
	flood, err := c.startSender(ctx, p, floodPort, 64, floodRate, c.duration())
	if err != nil {
		return nil, fmt.Errorf("flood: %w", err)
	}
	return func() {
		line, _ := flood.Out.ReadBytes('\n') // the flood continues
		_ = flood.Cmd.Process.Kill()
		c.checkFlood(line, flood.Cmd.Wait(), flood.Stderr.String())
	}, nil
}

// checkFlood invalidates a run whose flood exited early, since that round had less flood than others. ended is the
// result of Wait.
func (c *controller) checkFlood(line []byte, ended error, stderr string) {
	var exit *exec.ExitError
	killed := false
	if errors.As(ended, &exit) {
		status, ok := exit.Sys().(syscall.WaitStatus)
		killed = ok && status.Signal() == syscall.SIGKILL
	}
	var flood senderReport
	if err := json.Unmarshal(line, &flood); err != nil || !killed {
		c.run.Invalidate("flood: reported %q and exited early: %v: %s", line, ended, stderr)
		return
	}
	c.floods = append(c.floods, float64(flood.Sent)/flood.Seconds)
}

// noteFloods reports the rates of all floods in one note, if any was too slow.
func (c *controller) noteFloods() {
	if len(c.floods) == 0 || slices.Min(c.floods) >= 0.98*floodRate {
		return
	}
	c.run.Note("flood: %.0f to %.0f packets/s were sent, of %d requested, in %d rounds", slices.Min(c.floods),
		slices.Max(c.floods), floodRate, len(c.floods))
}
