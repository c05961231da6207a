// SPDX-License-Identifier: Apache-2.0

// Package nri receives pods with their labels from the container runtime through its Node Resource Interface (NRI).
// Since NRI's libraries take several megabytes of memory, they are in a separate program, kerb-nri (package plugin),
// which runs as a child process and exchanges lines of JSON with this package on standard input and output.
package nri

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// Program is the name of kerb-nri, which must be in the directory of the program that starts it.
const Program = "kerb-nri"

// retry is the pause before the program is started again.
const retry = time.Second

// Pod is a sandbox of a pod with its own network namespace.
type Pod struct {
	ID        string            `json:"id"` // of the sandbox
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	UID       string            `json:"uid"`
	Netns     string            `json:"netns,omitempty"`  // path; empty if the runtime does not name it
	Labels    map[string]string `json:"labels,omitempty"` // without those that the kubelet and containerd add
}

// Pods receives the runtime's events.
type Pods interface {
	// Replace receives all sandboxes of the runtime. It is called first after each connection.
	Replace(runtime string, all iter.Seq[Pod])
	// Start returns when containers of a new sandbox may start. After an error the runtime removes the sandbox, and the
	// kubelet tries again with another one.
	Start(context.Context, Pod) error
	// Stop is called when a sandbox ends, also after an error of Start.
	Stop(Pod)
	// Disconnected is called when the runtime cannot be reached, or has ended the connection.
	Disconnected(error)
}

// Events that the program writes. Connected is followed by Pods of Listed, and by Complete.
const (
	Connected    = "connected"
	Listed       = "listed"
	Complete     = "complete"
	Start        = "start"
	Stop         = "stop"
	Disconnected = "disconnected"
)

// Event is a line from the program.
type Event struct {
	Event   string `json:"event"`
	Pod     *Pod   `json:"pod,omitempty"`     // of Listed, Start and Stop
	Runtime string `json:"runtime,omitempty"` // of Connected
	Error   string `json:"error,omitempty"`   // of Disconnected
	Number  uint64 `json:"number,omitempty"`  // of Start, which the Answer repeats
	Millis  int64  `json:"millis,omitempty"`  // of Start: timeout for the response
}

// Answer is a line to the program.
type Answer struct {
	Number uint64 `json:"number"`
	Error  string `json:"error,omitempty"` // empty: containers may start
}

// Run runs the program, which connects to the socket of a runtime, until the context ends.
func Run(ctx context.Context, socket string, pods Pods, log *slog.Logger) {
	for ctx.Err() == nil {
		if err := run(ctx, socket, pods); ctx.Err() == nil {
			pods.Disconnected(fmt.Errorf("%s has ended: %w", Program, err))
			log.Warn("started again", "program", Program, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
}

// run starts the program, and returns when it has ended: it ends when its standard input does.
func run(ctx context.Context, socket string, pods Pods) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(self), Program), socket)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = receive(ctx, out, in, pods)
	cancel()
	return errors.Join(err, cmd.Wait())
}

// receive passes events to pods, and responds to each Start when pods.Start has returned.
func receive(ctx context.Context, out io.Reader, in io.Writer, pods Pods) error {
	ctx, cancel := context.WithCancel(ctx)
	var starts sync.WaitGroup
	defer func() { cancel(); starts.Wait() }()
	var mu sync.Mutex
	answers := json.NewEncoder(in)
	events := json.NewDecoder(bufio.NewReader(out))
	for {
		var e Event
		if err := events.Decode(&e); err != nil {
			return err
		}
		if (e.Event == Start || e.Event == Stop) && e.Pod == nil {
			return fmt.Errorf("the event %s has no pod", e.Event)
		}
		switch e.Event {
		case Connected:
			if err := replace(events, e.Runtime, pods); err != nil {
				return err
			}
		case Start:
			starts.Go(func() {
				answer := Answer{Number: e.Number}
				ctx, cancel := context.WithTimeout(ctx, time.Duration(e.Millis)*time.Millisecond)
				defer cancel()
				if err := pods.Start(ctx, *e.Pod); err != nil {
					answer.Error = err.Error()
				}
				mu.Lock()
				defer mu.Unlock()
				_ = answers.Encode(answer) // if the program has exited, reading the next event fails
			})
		case Stop:
			pods.Stop(*e.Pod)
		case Disconnected:
			pods.Disconnected(errors.New(e.Error))
		default:
			return fmt.Errorf("unknown event %q", e.Event)
		}
	}
}

// replace reads the pods that follow an event Connected.
func replace(events *json.Decoder, runtime string, pods Pods) (err error) {
	pods.Replace(runtime, func(yield func(Pod) bool) {
		for {
			var e Event
			if err = events.Decode(&e); err != nil || e.Event == Complete {
				return
			}
			if e.Event != Listed || e.Pod == nil {
				err = fmt.Errorf("event %q among the pods", e.Event)
				return
			}
			if !yield(*e.Pod) {
				return
			}
		}
	})
	return err
}
