// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/bench"
)

// senderReport is the output of the sender.
type senderReport struct {
	Sent    uint64
	Seconds float64

	agent *float64 // CPUs used by agent and control planes; nil without an agent
}

// receiverReport is the output of a receiver: times in us, Memory in MiB, and voluntary (Waits) and involuntary
// (Preempted) context switches.
type receiverReport struct {
	bench.Times

	ToProgram bench.Times `json:"to_program"` // since the sender created the message

	Received, Disorder, Told, Over100 uint64
	Unstamped                         uint64 // without T1
	Waits, Preempted                  uint64
	Seconds, CPU, Memory              float64
}

// attempts is the number of attempts of a round if the agent detaches the program that takes T1, as it does once after
// its start.
const attempts = 3

// measure measures one round of a config. Configs that receive the same packets are recorded under their own names.
func (e *experiment) measure(ctx context.Context, c config, p *place, l load) ([]bench.Sample, error) {
	running, err := e.sharedReceivers(c)
	if err != nil {
		return nil, err
	}
	var sent senderReport
	var received []receiverReport
	for attempt := 0; attempt == 0 || received[0].Unstamped > 0; attempt++ {
		if attempt == attempts {
			return nil, fmt.Errorf("%d of %d packets have no T1: %s removes the program that writes it",
				received[0].Unstamped, received[0].Received, p.nic)
		}
		if sent, received, err = e.deliver(ctx, running, p, l); err != nil {
			return nil, err
		}
	}
	for i, c := range running[1:] {
		e.run.Record(c.name, l.name, e.samples(c, l, sent, received[1+i])...)
	}
	return e.samples(c, l, sent, received[0]), nil
}

// sharedReceivers returns a config and those that receive the same packets, if they are available on this machine.
func (e *experiment) sharedReceivers(c config) ([]config, error) {
	running := []config{c}
	for _, other := range alongside {
		if other.hook != c.hook {
			continue
		}
		err := other.possible()
		if e.run.LeftOut(other.name, err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		running = append(running, other)
	}
	return running, nil
}

// deliver sends the packets of a round to the receivers of some configs at the same time.
func (e *experiment) deliver(ctx context.Context, to []config, p *place,
	l load) (sent senderReport, received []receiverReport, err error) {
	length := l.length(e.length, e.run.Quick, e.run.Scale)
	ctx, cancel := context.WithTimeout(ctx, length+grace)
	defer cancel() // stops receivers after an error
	if err := p.attachFront(); err != nil {
		return sent, nil, err
	}
	var receivers []*receiver
	for _, c := range to {
		r, err := e.startReceiver(ctx, c, p)
		if err != nil {
			return sent, nil, err
		}
		receivers = append(receivers, r)
	}
	if sent, err = e.send(ctx, p, l, length, receivers); err != nil {
		return sent, nil, err
	}
	for _, r := range receivers {
		one, err := r.result()
		if err != nil {
			return sent, nil, err
		}
		received = append(received, one)
	}
	return sent, received, nil
}

// samples returns the results of a receiver.
func (e *experiment) samples(c config, l load, sent senderReport, received receiverReport) []bench.Sample {
	cost := []bench.Sample{bench.P50("cpu", "cores", received.CPU)}
	if c.program == "kerb" && sent.agent != nil {
		cost[0].Value += *sent.agent
		cost = append(cost, bench.P50("agent_cpu", "cores", *sent.agent))
	}
	if l.rate == 0 {
		return cost
	}
	e.run.Spread(bench.Histogram{Config: c.name, Group: c.class, Load: l.name, Metric: "delay", Unit: "us",
		Bins: received.Bins})
	all := append(received.Samples("delay", "p50", "p99", "p99.9", "max"), cost...)
	if c.program == "clock" { // receives no packets
		return all
	}
	e.check(c, l, sent, received)
	all = append(all, received.ToProgram.Samples("to_program", "p50", "p99", "p99.9", "max")...)
	return append(all, bench.P50("memory", "MiB", received.Memory),
		bench.P50("waits", "1/s", float64(received.Waits)/received.Seconds),
		bench.P50("preempted", "1/s", float64(received.Preempted)/received.Seconds),
		bench.Count("over100", received.Over100),
		bench.Count("lost", sent.Sent-min(sent.Sent, received.Received)))
}

// grace is additional time for a receiver that is not scheduled.
const grace = 20 * time.Second

// check invalidates the run if packets were duplicated or reordered, or were lost without a report to the receiver.
func (e *experiment) check(c config, l load, sent senderReport, received receiverReport) {
	if received.Disorder > 0 || received.Received > sent.Sent {
		e.run.Invalidate("%s, %s: %d of %d packets out of order, of %d sent", c.name, l.name, received.Disorder,
			received.Received, sent.Sent)
	}
	if lost := sent.Sent - min(sent.Sent, received.Received); c.byLibrary() && lost != received.Told {
		e.run.Invalidate("%s, %s: %d packets lost, %d of them reported to the receiver", c.name, l.name, lost, received.Told)
	}
	if reached := float64(sent.Sent) / sent.Seconds; reached < 0.98*float64(l.rate) {
		e.run.Note("%s: in at least one round the sender reached only %.0f packets/s", l.name, reached)
	}
}

// receiver is a running program of src.
type receiver struct {
	*bench.Process
	name  string
	ended chan struct{}
	said  []byte // output, set with err after it exited
	err   error
}

// startReceiver starts a receiver, and returns when it waits for packets.
func (e *experiment) startReceiver(ctx context.Context, c config, p *place) (*receiver, error) {
	cmd := p.lab.Node().Command(ctx, e.tools.Path(c.executable()), c.arguments(p, e.tools.receiver)...)
	if e.packets != "" {
		cmd.Env = append(os.Environ(), "PACKETS="+filepath.Join(e.packets, c.name))
	}
	files, err := p.inherited(c)
	if err != nil {
		return nil, err
	}
	defer closeAll(files)
	cmd.SysProcAttr.Setsid = true // as for services: nice values apply within a session, by which the kernel groups tasks
	cmd.ExtraFiles = files
	r := &receiver{name: c.name, ended: make(chan struct{})}
	if r.Process, err = bench.StartProcess(cmd); err != nil {
		return nil, fmt.Errorf("%s receives nothing: %w", c.name, err)
	}
	go func() {
		defer close(r.ended)
		said, err := io.ReadAll(r.Out)
		r.said, r.err = said, errors.Join(err, cmd.Wait())
	}()
	return r, nil
}

// result waits until the program has received the end message.
func (r *receiver) result() (received receiverReport, err error) {
	<-r.ended
	if r.err != nil {
		return received, fmt.Errorf("%s: %w: %s", r.name, r.err, &r.Stderr)
	}
	if err := json.Unmarshal(r.said, &received); err != nil {
		return received, fmt.Errorf("%s printed %q: %w", r.name, r.said, err)
	}
	return received, nil
}

// send returns when the receivers have exited; the sender repeats the end message until then.
func (e *experiment) send(ctx context.Context, p *place, l load, length time.Duration,
	receivers []*receiver) (sent senderReport, err error) {
	before, err := p.unsent()
	if err != nil {
		return sent, err
	}
	used, err := p.agentCPU()
	if err != nil {
		return sent, err
	}
	sender, err := e.startSender(ctx, p, port, l.size, l.rate, length)
	if err != nil {
		return sent, err
	}
	line, _ := sender.Out.ReadBytes('\n')
	if err := json.Unmarshal(line, &sent); err != nil {
		return sent, fmt.Errorf("sender: %w: %w: %s", err, sender.Cmd.Wait(), &sender.Stderr)
	}
	usedThen, err := p.agentCPU()
	if err != nil {
		return sent, err
	}
	if p.node != nil {
		share := (usedThen - used).Seconds() / sent.Seconds
		sent.agent = &share
	}
	after, err := p.unsent()
	if err != nil {
		return sent, err
	}
	sent.Sent -= min(sent.Sent, after-before)
	for _, r := range receivers {
		<-r.ended
	}
	_ = sender.Stop() // it may have exited
	return sent, nil
}

// startSender starts a sender of packets to a port of the receiver's node. The program reports after the length what it
// has sent, and continues.
func (e *experiment) startSender(ctx context.Context, p *place, port, size, rate int,
	length time.Duration) (*bench.Process, error) {
	return bench.StartThreads(p.sender.Command(ctx, e.tools.Path("sender"), p.lab.Gateway4().String(),
		strconv.Itoa(port), strconv.Itoa(size), strconv.Itoa(rate), strconv.Itoa(int(length.Milliseconds())),
		strconv.Itoa(e.tools.sender)), 0)
}

// dup duplicates a descriptor for a child process.
func dup(fd int, name string) ([]*os.File, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return []*os.File{os.NewFile(uintptr(n), name)}, nil
}
