// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"log/slog"
	"sync"

	"github.com/kerb-edge/kerb/internal/sockprobe"
	"github.com/kerb-edge/kerb/sdk"
)

// grantKernelFacts reports to a control plane how this kernel behaves, for which it may have to wait.
func grantKernelFacts(o *Options, _ string) any {
	return kernelGrant(o.Kernel)
}

type kernelGrant func(context.Context) sdk.Kernel

func (g kernelGrant) describe(ctx context.Context, start *sdk.MapSetRequest) {
	start.Kernel = g(ctx)
}

// KernelFacts returns a function that returns the behaviour of redirected sockets on this kernel, or nothing if ctx
// ends before it is known. The first call measures it, which takes some seconds; file stores the result until the next
// reboot.
func KernelFacts(file string, log *slog.Logger) func(context.Context) sdk.Kernel {
	var facts sdk.Kernel
	known := make(chan struct{})
	find := sync.OnceFunc(func() {
		go func() {
			defer close(known)
			facts = findFacts(file, log)
		}()
	})
	return func(ctx context.Context) sdk.Kernel {
		find()
		select {
		case <-known:
			return facts
		case <-ctx.Done():
			return sdk.Kernel{}
		}
	}
}

// findFacts measures how this kernel treats redirected sockets, or reads what an earlier run of the agent has measured.
// Without a result facts are empty, and control planes use none of the features that depend on them.
func findFacts(file string, log *slog.Logger) sdk.Kernel {
	result, err := sockprobe.RunOnce(context.Background(), file)
	if err != nil {
		log.Warn("cannot find out or store how redirected sockets behave on this kernel", "error", err)
	}
	facts := sdk.Kernel{Sockets: result.ByName()}
	for _, t := range result.RoundTrips {
		facts.RoundTrips = append(facts.RoundTrips, sdk.RoundTrip{Bytes: uint32(t.Bytes), Plain: t.Plain,
			Redirected: t.Redirected})
	}
	return facts
}
