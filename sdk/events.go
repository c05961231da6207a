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
)

// eventsDelay is how long an event may wait that the data plane sent without waking the reader.
const eventsDelay = 200 * time.Millisecond

// Events reads a ring buffer until ctx ends, then ends the sequence. A record is only valid until the next one. Only
// one reader may be at a ring buffer at a time, which map sets share: read in Run, which the agent runs for one
// map set at a time. After an error the sequence ends.
func Events(ctx context.Context, ring *ebpf.Map) iter.Seq2[[]byte, error] {
	return events(ctx, ring, func() time.Time { return time.Now().Add(eventsDelay) })
}

// PromptEvents is Events for a data plane that sends all events without flags: nothing runs here while it sends none.
func PromptEvents(ctx context.Context, ring *ebpf.Map) iter.Seq2[[]byte, error] {
	return events(ctx, ring, func() time.Time { return time.Time{} })
}

// events yields records of the ring until ctx ends; a record is valid only until the next iteration. nextLook returns
// the deadline after which the ring is read without a wake-up by the kernel; the zero time means never.
func events(ctx context.Context, ring *ebpf.Map, nextLook func() time.Time) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
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

// closeOn closes the reader when ctx ends, which interrupts it. The function returned closes it at any rate, and
// returns when nothing of this is left.
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
