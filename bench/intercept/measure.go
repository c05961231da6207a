// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/bench"
)

// sentBy is what the sender prints.
type sentBy struct {
	Sent    uint64
	Seconds float64
}

// receivedBy is what a receiver prints; times are in us.
type receivedBy struct {
	Received, Disorder, Told, Over100 uint64
	Seconds, CPU                      float64
	P50, P99, Max                     float64
	P999                              float64 `json:"p99.9"`
	Bins                              []bench.Bin
}

// measure is one round of a config.
func (e *experiment) measure(ctx context.Context, c config, p *place, l load) ([]bench.Sample, error) {
	length := l.length(e.run.Quick)
	ctx, cancel := context.WithTimeout(ctx, length+grace)
	defer cancel()
	r, err := e.startReceiver(ctx, c, p)
	if err != nil {
		return nil, err
	}
	sent, err := e.send(ctx, p, l, length, r)
	received, err2 := r.result()
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	e.check(c, l, sent, received)
	cpu := bench.Sample{Metric: "cpu", Stat: "p50", Unit: "cores", Value: received.CPU}
	if l.rate == 0 {
		return []bench.Sample{cpu}, nil
	}
	e.run.Spread(c.name, l.name, "delay", "us", received.Bins)
	delay := func(stat string, value float64) bench.Sample {
		return bench.Sample{Metric: "delay", Stat: stat, Unit: "us", Value: value}
	}
	count := func(metric string, n uint64) bench.Sample {
		return bench.Sample{Metric: metric, Stat: "sum", Unit: "count", Value: float64(n)}
	}
	return []bench.Sample{delay("p50", received.P50), delay("p99", received.P99), delay("p99.9", received.P999), delay("max", received.Max),
		count("over100", received.Over100), count("lost", sent.Sent-min(sent.Sent, received.Received)), cpu}, nil
}

// grace is for a receiver that others keep from its CPU.
const grace = 20 * time.Second

// check voids the run if packets came twice or out of order, or got lost without the receiver having been told.
func (e *experiment) check(c config, l load, sent sentBy, received receivedBy) {
	if received.Disorder > 0 || received.Received > sent.Sent {
		e.run.Unsound("%s, %s: %d of %d packets out of order, of %d sent", c.name, l.name, received.Disorder, received.Received, sent.Sent)
	}
	if lost := sent.Sent - min(sent.Sent, received.Received); c.hook == "kerb" && lost != received.Told {
		e.run.Unsound("%s, %s: %d packets lost, the receiver was told of %d", c.name, l.name, lost, received.Told)
	}
	if reached := float64(sent.Sent) / sent.Seconds; reached < 0.98*float64(l.rate) {
		e.run.Note("%s: the sender reached only %.0f packets/s at least once", l.name, reached)
	}
}

// receiver is a running program of src.
type receiver struct {
	name   string
	cmd    *exec.Cmd
	out    *bufio.Reader
	stderr bytes.Buffer
	exit   chan error
	said   []byte
}

// startReceiver returns when the program waits for packets.
func (e *experiment) startReceiver(ctx context.Context, c config, p *place) (*receiver, error) {
	r := &receiver{name: c.name, cmd: p.lab.Node().Command(ctx, e.tools.path(c.program), c.arguments(p, e.tools.receiver)...), exit: make(chan error, 1)}
	files, err := p.files()
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	r.cmd.ExtraFiles, r.cmd.Stderr = files, &r.stderr
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	r.out = bufio.NewReader(out)
	if line, _ := r.out.ReadString('\n'); strings.TrimSpace(line) != "ready" {
		_ = r.cmd.Process.Kill()
		return nil, fmt.Errorf("%s does not receive: %w: %s", c.name, r.cmd.Wait(), &r.stderr)
	}
	go r.wait()
	return r, nil
}

func (r *receiver) wait() {
	said, err := io.ReadAll(r.out)
	r.said = said
	r.exit <- errors.Join(err, r.cmd.Wait())
}

// result is there when the program has had the last message.
func (r *receiver) result() (received receivedBy, err error) {
	if err := <-r.exit; err != nil {
		return received, fmt.Errorf("%s: %w: %s", r.name, err, &r.stderr)
	}
	if err := json.Unmarshal(r.said, &received); err != nil {
		return received, fmt.Errorf("%s said %q: %w", r.name, r.said, err)
	}
	return received, nil
}

// send returns when the receiver has ended, who repeats the last message until then.
func (e *experiment) send(ctx context.Context, p *place, l load, length time.Duration, r *receiver) (sent sentBy, err error) {
	cmd := p.sender.Command(ctx, e.tools.path("sender"), p.lab.Gateway4().String(), strconv.Itoa(port), strconv.Itoa(l.size), strconv.Itoa(l.rate),
		strconv.Itoa(int(length.Milliseconds())), strconv.Itoa(e.tools.sender))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return sent, err
	}
	if err := cmd.Start(); err != nil {
		_ = r.cmd.Process.Kill()
		return sent, err
	}
	line, _ := bufio.NewReader(out).ReadBytes('\n')
	if err := json.Unmarshal(line, &sent); err != nil {
		_ = r.cmd.Process.Kill()
		return sent, fmt.Errorf("sender: %w: %w: %s", err, cmd.Wait(), &stderr)
	}
	ended := <-r.exit
	r.exit <- ended // result reads it again
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	return sent, nil
}

// dup gives a child its own descriptor of something that stays open here.
func dup(fd int, name string) ([]*os.File, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return []*os.File{os.NewFile(uintptr(n), name)}, nil
}
