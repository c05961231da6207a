// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"math"

	"github.com/cilium/ebpf/asm"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/ebpfvm"
)

// codeReader is a chain of one program whose code can be read.
type codeReader interface {
	Linked
	Code() (asm.Instructions, error)
}

// instructions returns the numbers of verified and executed instructions. Kernels before 5.16 do not report the former.
func (s *testbed) instructions(ch Chain) (samples []bench.Sample, err error) {
	c, is := ch.(codeReader)
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
	executed, err := s.executed(p)
	if err != nil {
		return nil, err
	}
	return append(samples, bench.Sample{Metric: "executed", Stat: "max", Unit: "instructions",
		Value: float64(executed)}), nil
}

// executed returns the instructions that an ordinary packet executes. The first packets determine which one of 4,096
// has its latency measured.
func (s *testbed) executed(p *ebpfvm.Program) (least int, err error) {
	vm := ebpfvm.New()
	for range 4 {
		r, err := vm.Run(p, ebpfvm.Input{Frame: s.frame, Random: math.MaxUint32 / 2})
		if err != nil {
			return 0, err
		}
		if least == 0 || r.Executed < least {
			least = r.Executed
		}
	}
	return least, nil
}
