// SPDX-License-Identifier: Apache-2.0

package swap

import (
	"embed"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

//go:embed *.bpf.*
var files embed.FS

// reference is the stamping module as a TCX program on the service's ingress, the egress of its outer interface.
type reference struct {
	spec     *ebpf.CollectionSpec
	lab      *netlab.Lab
	service  *netlab.Host
	reattach bool // detach, then attach, as tools without atomic replacement do
	link     link.Link
}

func openUpdating(lab *netlab.Lab, service *netlab.Host) (Replacer, error) {
	return openReference(lab, service, false)
}

func openReattaching(lab *netlab.Lab, service *netlab.Host) (Replacer, error) {
	return openReference(lab, service, true)
}

func openReference(lab *netlab.Lab, service *netlab.Host, reattach bool) (Replacer, error) {
	spec, err := bench.Object(files, "stamp.bpf.o")
	if err != nil {
		return nil, err
	}
	r := &reference{spec: spec, lab: lab, service: service, reattach: reattach}
	return r, r.Replace(1)
}

func (r *reference) Replace(generation uint32) error {
	p, err := r.load(generation)
	if err != nil {
		return fmt.Errorf("load generation %d: %w", generation, err)
	}
	defer p.Close()
	if r.link != nil && !r.reattach {
		return r.link.Update(p)
	}
	return r.attach(p)
}

func (r *reference) load(generation uint32) (*ebpf.Program, error) {
	if err := r.spec.Variables["generation"].Set(generation); err != nil {
		return nil, err
	}
	coll, err := ebpf.NewCollection(r.spec)
	if err != nil {
		return nil, err
	}
	defer coll.Close()
	return coll.DetachProgram("stamp"), nil
}

func (r *reference) attach(p *ebpf.Program) error {
	if r.link != nil {
		if err := r.link.Close(); err != nil {
			return err
		}
		r.link = nil
	}
	return r.lab.Node().Do(func() (err error) {
		r.link, err = link.AttachTCX(link.TCXOptions{
			Interface: r.service.OuterIndex(), Program: p, Attach: ebpf.AttachTCXEgress})
		return err
	})
}

func (r *reference) Close() error {
	if r.link == nil {
		return nil
	}
	return r.link.Close()
}
