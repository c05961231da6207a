// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/kerb-edge/kerb/bench"
)

// publishedKeys is the config with the published design instead of the accelerator, for all programs of the contender.
const publishedKeys = "published-keys"

// startPublished attaches published.bpf.c to the contender's cgroup.
func (c *contender) startPublished() error {
	spec, err := bench.Object(objects, "published.bpf.o")
	if err != nil {
		return err
	}
	loaded, err := ebpf.NewCollection(spec)
	if err != nil {
		return fmt.Errorf("load published.bpf.o: %w", err)
	}
	c.Later(func() error { loaded.Close(); return nil })
	messages := link.RawAttachProgramOptions{Target: loaded.Maps["sockets"].FD(),
		Program: loaded.Programs["redirect_message"], Attach: ebpf.AttachSkMsgVerdict}
	if err := link.RawAttachProgram(messages); err != nil {
		return fmt.Errorf("attach published.bpf.o to its map: %w", err)
	}
	c.Later(func() error {
		return link.RawDetachProgram(link.RawDetachProgramOptions{Target: messages.Target, Program: messages.Program,
			Attach: messages.Attach})
	})
	events, err := link.AttachCgroup(link.CgroupOptions{Path: c.group.Dir(), Attach: ebpf.AttachCGroupSockOps,
		Program: loaded.Programs["add_socket"]})
	if err != nil {
		return fmt.Errorf("attach published.bpf.o to a cgroup: %w", err)
	}
	c.Later(events.Close)
	return nil
}

// Timeouts for programs that hang with the published design: for the first use, and for a round.
const (
	firstTimeout = 20 * time.Second
	roundTimeout = 5 * time.Minute
)

// warmPublished skips a workload that does not work with the published design.
func (s *serving) warmPublished(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, firstTimeout)
	defer cancel()
	if _, err := s.w.measure(limited, s); err != nil {
		return fmt.Errorf("%w: %s/%s fails: %w", bench.ErrLeftOut, s.where, s.w.name, err)
	}
	return nil
}

// noteFailures notes later failures of the published design; the run continues without its figures.
func (e *experiment) noteFailures(load string, t bench.Trial) bench.Trial {
	open, measure, failed := t.Open, t.Measure, false
	t.Open = func() (io.Closer, error) {
		c, err := open()
		return closer(func() error {
			if err := c.Close(); !failed {
				return err
			}
			return nil // the server may have exited, too
		}), err
	}
	t.Measure = func(ctx context.Context) ([]bench.Sample, error) {
		if failed {
			return nil, nil
		}
		limited, cancel := context.WithTimeout(ctx, roundTimeout)
		defer cancel()
		samples, err := measure(limited)
		if failed = err != nil && ctx.Err() == nil; !failed {
			return samples, err
		}
		e.run.Note("%s, %s: a round failed, the remaining rounds were skipped: %v", t.Config, load, err)
		return nil, nil
	}
	return t
}

type closer func() error

func (c closer) Close() error { return c() }
