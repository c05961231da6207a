// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/inject"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
)

// skBuff is the beginning of struct __sk_buff (linux/bpf.h), with the interface for a test run.
type skBuff struct {
	Len, PktType, Mark, QueueMapping, Protocol   uint32
	VLANPresent, VLANTCI, VLANProto, Priority    uint32
	IngressIfindex, Ifindex, TCIndex             uint32
	CB                                           [5]uint32
	Hash, TCClassid, Data, DataEnd, NapiID, Rest uint32
}

const (
	testRunRepeat = 200_000
	testRuns      = 7
)

// testRun returns the time of the program alone for an allowed packet, in ns.
func (g *topology) testRun(firewall Runnable) (float64, error) {
	p, err := firewall.Program()
	if err != nil {
		return 0, err
	}
	defer p.Close()
	frame, index := g.frame(), uint32(g.service.OuterIndex())
	opts := &ebpf.RunOptions{Data: frame, Repeat: testRunRepeat}
	if p.Type() == ebpf.XDP {
		opts.Context = inject.XDPMD{DataEnd: uint32(len(frame)), IngressIfindex: index}
	} else {
		opts.Context = skBuff{Ifindex: index}
	}
	var times []float64
	err = traffic.RunOnCPU(1, func() error {
		for range testRuns {
			ns, err := inject.Run(g.lab.Node(), p, opts)
			if err != nil {
				return fmt.Errorf("test run: %w", err)
			}
			times = append(times, ns)
		}
		return nil
	})
	return bench.Median(times), err
}
