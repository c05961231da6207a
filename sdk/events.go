// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

// eventsDelay is the longest time that an event waits which the data plane sent without waking the reader.
const eventsDelay = 200 * time.Millisecond

// Events yields the records of a ring buffer until ctx ends or reading fails. A record is valid only until the next
// one. Map sets share the ring buffer, which can have only one reader at a time: call Events in Run, which the agent
// runs for one map set at a time.
func Events(ctx context.Context, ring *ebpf.Map) iter.Seq2[[]byte, error] {
	return events(ctx, ring, func() time.Time { return time.Now().Add(eventsDelay) })
}

// PromptEvents is Events for a data plane that sends all events without flags: the reader sleeps while there are none.
func PromptEvents(ctx context.Context, ring *ebpf.Map) iter.Seq2[[]byte, error] {
	return events(ctx, ring, func() time.Time { return time.Time{} })
}

// events yields records of the ring until ctx ends; a record is valid only until the next iteration. nextLook returns
// the deadline after which the ring is read without a wake-up by the kernel; the zero time means never.
func events(ctx context.Context, ring *ebpf.Map, nextLook func() time.Time) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		if err := awaitEvents(ctx, ring, time.Until(nextLook())); err != nil {
			yield(nil, fmt.Errorf("wait for events: %w", err))
			return
		}
		if ctx.Err() != nil {
			return
		}
		rd, err := ringbuf.NewReader(ring)
		if err != nil {
			yield(nil, fmt.Errorf("read events: %w", err))
			return
		}
		defer closeOn(ctx, rd)()
		var record ringbuf.Record
		for ctx.Err() == nil {
			rd.SetDeadline(nextLook())
			err := rd.ReadInto(&record)
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded):
			case errors.Is(err, os.ErrClosed):
				return
			case err != nil:
				yield(nil, fmt.Errorf("read events: %w", err))
				return
			case !yield(record.RawSample, nil):
				return
			}
		}
	}
}

// awaitEvents returns when the ring has an event, or when ctx ends. Unless delay is negative, it also checks the ring
// after each delay. The ring is not mapped while it waits: all of it would count, twice, as memory of a process that
// reads nothing.
func awaitEvents(ctx context.Context, ring *ebpf.Map, delay time.Duration) error {
	own, err := ring.Clone()
	if err != nil {
		return err
	}
	defer own.Close()
	ended, end, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ended.Close()
	defer context.AfterFunc(ctx, func() { _ = end.Close() })()
	defer end.Close()
	for ctx.Err() == nil {
		fds := []unix.PollFd{{Fd: int32(own.FD()), Events: unix.POLLIN}, {Fd: int32(ended.Fd()), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, max(-1, int(delay.Milliseconds()))); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if fds[0].Revents != 0 {
			return nil
		}
	}
	return nil
}

// closeOn closes the reader when ctx ends, which interrupts it. The returned function closes it in any case, and waits
// for the goroutine to end.
func closeOn(ctx context.Context, rd *ringbuf.Reader) func() {
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		rd.Close()
		close(closed)
	})
	return func() {
		if stop() {
			rd.Close()
			return
		}
		<-closed
	}
}
