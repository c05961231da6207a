// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"testing"

	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// The verifier's work bounds how many modules fit into one program with the responder (1,000,000 in all). Linux 6.1 and
// 5.10 follow half as many again as later kernels.
const maxVerified = 400000

// TestVerifies has every application in one program.
func TestVerifies(t *testing.T) {
	const config = `{"listeners": [{"app": "echo", "port": 7000}, {"app": "speedlimit", "port": 8080},
		{"app": "coap", "port": 5683, "resources": [{"path": "/a"}]}]}`
	onHooks(t, config, func(t *testing.T, k *kernel) {
		sdktest.CheckVerified(t, k.prog, maxVerified)
	})
}
