// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"testing"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// The verifier's work bounds how many modules fit into one program with the responder (1,000,000 in all). Linux 6.1
// needs 184,000 instructions, 6.18 needs 94,000, 7.3 needs 90,000.
const maxVerified = 220000

// TestVerifies loads every application in one program.
func TestVerifies(t *testing.T) {
	const config = `{"listeners": [{"app": "echo", "port": 7000}, {"app": "speedlimit", "port": 8080},
		{"app": "coap", "port": 5683, "resources": [{"path": "/a"}]}, {"app": "linear", "port": 9000, "reply": "00"}]}`
	onHooks(t, config, func(t *testing.T, k *kernel) {
		sdktest.CheckVerified(t, k.prog, maxVerified)
	})
}

// Modules after the responder can read the packet, also if the responder could not complete a checksum.
func TestPacketBehindVerifies(t *testing.T) {
	sdktest.NeedRoot(t)
	for _, side := range []chain.Side{chain.OnXDP, chain.OnTCEgress} {
		l, err := dataplane.Load(side, chain.Ingress,
			module(t, compileConfig(t, `{"listeners": [{"app": "echo", "port": 7000}]}`)), pkgstest.Reader(chain.Ingress))
		sdktest.Explain(t, err)
		l.Close()
	}
}
