// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"fmt"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// The verifier's work bounds how many modules fit into one program with the firewall (1,000,000 in all). Linux 6.18
// needs 71,000 instructions, 6.1 needs 136,000.
const maxVerified = 200000

func TestVerifies(t *testing.T) {
	sdktest.NeedRoot(t)
	for _, c := range []struct {
		side chain.Side
		dir  chain.Direction
	}{{chain.OnXDP, chain.Egress}, {chain.OnTCIngress, chain.Egress}, {chain.OnTCEgress, chain.Ingress}} {
		for _, shallow := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s shallow %v", c.side, shallow), func(t *testing.T) {
				m := module(t, compileConfig(t, `{"extensionHeaders": "deny"}`))
				m.Settings.Constants["shallow"] = shallow
				l, err := dataplane.Load(c.side, c.dir, m)
				sdktest.Explain(t, err)
				defer l.Close()
				sdktest.CheckVerified(t, l.Program, maxVerified)
				sdktest.Explain(t, l.Time(time.Hour))
				trace, err := dataplane.NewTrace(dataplane.TraceFilter{})
				sdktest.Explain(t, err)
				defer trace.Close()
				traced, err := l.Trace(trace, chain.Spec{Side: c.side, Direction: c.dir, Members: []chain.Member{{Name: m.Name}}})
				sdktest.Explain(t, err)
				traced.Close()
			})
		}
	}
}
