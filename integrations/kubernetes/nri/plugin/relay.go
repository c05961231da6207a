// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/nri"
)

// Relay runs the plugin and relays its events, as kerb-nri, until the context or the input ends, or Run fails.
func Relay(ctx context.Context, socket string, in io.Reader, out io.Writer, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	buffered := bufio.NewWriter(out)
	r := &relay{out: buffered, encode: json.NewEncoder(buffered), waiting: map[uint64]chan string{}}
	ended := make(chan error, 1)
	go func() {
		defer cancel()
		ended <- r.answers(in)
	}()
	if err := Run(ctx, socket, r, log); err != nil {
		return err
	}
	select {
	case err := <-ended:
		return err
	default:
		return ctx.Err()
	}
}

// relay writes events as lines, and waits for responses to some.
type relay struct {
	mu      sync.Mutex
	out     *bufio.Writer
	encode  *json.Encoder
	last    uint64 // number of a start
	waiting map[uint64]chan string
}

var _ nri.Pods = (*relay)(nil)

// answers reads responses until the parent process ends.
func (r *relay) answers(in io.Reader) error {
	for lines := json.NewDecoder(in); ; {
		var a nri.Answer
		if err := lines.Decode(&a); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		r.mu.Lock()
		answer := r.waiting[a.Number]
		delete(r.waiting, a.Number)
		r.mu.Unlock()
		if answer != nil {
			answer <- a.Error
		}
	}
}

// send writes events together. Where the reader has ended, so does the input.
func (r *relay) send(events ...nri.Event) {
	for _, e := range events {
		_ = r.encode.Encode(e)
	}
	_ = r.out.Flush()
}

func (r *relay) Replace(runtime string, all iter.Seq[nri.Pod]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.encode.Encode(nri.Event{Event: nri.Connected, Runtime: runtime})
	for p := range all {
		_ = r.encode.Encode(nri.Event{Event: nri.Listed, Pod: &p})
	}
	r.send(nri.Event{Event: nri.Complete})
}

func (r *relay) Start(ctx context.Context, p nri.Pod) error {
	deadline, _ := ctx.Deadline()
	answer := make(chan string, 1)
	r.mu.Lock()
	r.last++
	number := r.last
	r.waiting[number] = answer
	// The reader's timeout is shorter, so that it responds first, with a reason.
	r.send(nri.Event{Event: nri.Start, Pod: &p, Number: number, Millis: (time.Until(deadline) * 9 / 10).Milliseconds()})
	r.mu.Unlock()
	select {
	case text := <-answer:
		if text != "" {
			return errors.New(text)
		}
		return nil
	case <-ctx.Done():
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.waiting, number)
		return errors.New("kerb-kube-node does not answer")
	}
}

func (r *relay) Stop(p nri.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.send(nri.Event{Event: nri.Stop, Pod: &nri.Pod{ID: p.ID, Namespace: p.Namespace, Name: p.Name, UID: p.UID}})
}

func (r *relay) Disconnected(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.send(nri.Event{Event: nri.Disconnected, Error: err.Error()})
}
