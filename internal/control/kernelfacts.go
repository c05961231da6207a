// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"

	"github.com/kerb-edge/kerb/sdk"
)

// grantKernelFacts reports to a control plane how this kernel behaves, for which it may have to wait.
func grantKernelFacts(o *Options, _ string) any {
	return kernelGrant(o.Kernel)
}

type kernelGrant func(context.Context) sdk.Kernel

func (g kernelGrant) describe(ctx context.Context, start *sdk.GenerationRequest) {
	start.Kernel = g(ctx)
}
