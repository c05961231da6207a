// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"sync"

	"github.com/kerb-edge/kerb/internal/sockets"
	"github.com/kerb-edge/kerb/sdk"
)

// kernelFacts are how redirected sockets behave on this kernel: tried when the first module on sockets comes, which takes some
// seconds, and kept in the run directory, which ends with a reboot.
type kernelFacts struct {
	file  string
	log   *slog.Logger
	begin sync.Once
	done  chan struct{}
	facts sdk.Kernel // after done
}

func newKernelFacts(file string, log *slog.Logger) *kernelFacts {
	return &kernelFacts{file: file, log: log, done: make(chan struct{})}
}

// seek begins to find out. It does not wait.
func (k *kernelFacts) seek() {
	k.begin.Do(func() {
		go func() {
			defer close(k.done)
			k.facts = k.find()
		}()
	})
}

func (k *kernelFacts) find() sdk.Kernel {
	result, err := sockets.TestOnce(context.Background(), k.file)
	if err != nil {
		k.log.Warn("how redirected sockets behave on this kernel is not known, or will be found out again", "error", err)
	}
	facts := sdk.Kernel{Sockets: result.Good()}
	for _, t := range result.Turns {
		facts.Turns = append(facts.Turns, sdk.Turn{Bytes: uint32(t.Bytes), Plain: t.Plain, Redirected: t.Redirected})
	}
	return facts
}

// get waits until they are known, or ctx ends.
func (k *kernelFacts) get(ctx context.Context) sdk.Kernel {
	k.seek()
	select {
	case <-k.done:
		return k.facts
	case <-ctx.Done():
		return sdk.Kernel{}
	}
}

// examine tells a control plane what program a process runs.
func (a *Agent) examine(p sdk.Process) sdk.Executable {
	out := sdk.Executable{Process: p}
	facts, err := a.examiner.Process(p.PID, p.Start)
	if err != nil {
		out.Problem = err.Error()
		return out
	}
	out.Path, out.Device, out.Inode, out.Modified, out.Size = facts.Path, facts.Device, facts.Inode, facts.Modified, facts.Size
	out.Uses, out.Configured, out.Go = facts.Uses, facts.Configured, facts.Go
	return out
}
