// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"github.com/cilium/ebpf/asm"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/ebpfvm"
)

// interpretable is a chain of one program whose code is known.
type interpretable interface {
	Linked
	Code() (asm.Instructions, error)
}

// instructions counts what the verifier walked and what a packet executes. The
// kernel may not report the former (before Linux 5.16).
func (s *stage) instructions(ch Chain) (samples []bench.Sample, err error) {
	c, is := ch.(interpretable)
	if !is {
		return nil, nil
	}
	program := c.Program()
	info, err := program.Info()
	if err != nil {
		return nil, err
	}
	if n, known := info.VerifiedInstructions(); known {
		samples = append(samples, bench.Sample{Metric: "verified", Stat: "max", Unit: "instructions", Value: float64(n)})
	}
	code, err := c.Code()
	if err != nil {
		return nil, err
	}
	p, err := ebpfvm.Load(code, program.Type())
	if err != nil {
		return nil, err
	}
	r, err := ebpfvm.New().Run(p, ebpfvm.Input{Frame: s.frame})
	if err != nil {
		return nil, err
	}
	return append(samples, bench.Sample{Metric: "executed", Stat: "max", Unit: "instructions",
		Value: float64(r.Executed)}), nil
}
