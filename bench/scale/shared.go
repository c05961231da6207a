// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"os"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// shared is one program for all services, with one TCX link per hook: the minimum cost of a chain in one program. Time
// and memory of an additional service do not depend on the content of the program.
type shared struct {
	spec    *ebpf.CollectionSpec
	program *ebpf.Collection
	lab     *netlab.Lab
	mu      sync.Mutex // guards links
	links   []link.Link
}

func openShared(lab *netlab.Lab) (Node, error) {
	spec, err := bench.Object(files, "module.bpf.o")
	if err != nil {
		return nil, err
	}
	program, err := ebpf.NewCollection(spec)
	return &shared{spec: spec, program: program, lab: lab}, err
}

func (s *shared) Attach(services []*netlab.Host) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lab.Node().Do(func() error {
		for _, service := range services {
			for _, hook := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
				l, err := link.AttachTCX(link.TCXOptions{
					Interface: service.OuterIndex(), Program: s.program.Programs["count_packet"], Attach: hook})
				if err != nil {
					return err
				}
				s.links = append(s.links, l)
			}
		}
		return nil
	})
}

func (s *shared) Rechain() error {
	program, err := ebpf.NewCollection(s.spec)
	if err != nil {
		return err
	}
	for _, l := range s.links {
		if err := l.Update(program.Programs["count_packet"]); err != nil {
			program.Close()
			return err
		}
	}
	s.program.Close()
	s.program = program
	return nil
}

func (s *shared) PID() int { return os.Getpid() }

func (s *shared) Close() error {
	s.program.Close()
	return bench.CloseAll(s.links)
}
