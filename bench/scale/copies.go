// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"errors"
	"os"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// copies is the way of tools that handle each interface separately: every service has four programs with separate maps,
// as clsact filters on both hooks.
type copies struct {
	spec     *ebpf.CollectionSpec
	lab      *netlab.Lab
	mu       sync.Mutex // guards services
	services []copied
}

type copied struct {
	qdisc   *netlink.Clsact
	modules [Modules]*ebpf.Collection
}

func openCopies(lab *netlab.Lab) (Node, error) {
	spec, err := bench.Object(files, "module.bpf.o")
	return &copies{spec: spec, lab: lab}, err
}

func (c *copies) Attach(services []*netlab.Host) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lab.Node().Do(func() error {
		for _, service := range services {
			if err := c.attachOne(service.OuterIndex()); err != nil {
				return err
			}
		}
		return nil
	})
}

func (c *copies) attachOne(ifindex int) error {
	qdisc, err := bench.AddClsact(ifindex)
	if err != nil {
		return err
	}
	c.services = append(c.services, copied{qdisc: qdisc})
	for i := range Modules {
		if err := c.load(&c.services[len(c.services)-1], i); err != nil {
			return err
		}
	}
	return nil
}

// load attaches a new copy of module i to both hooks.
func (c *copies) load(s *copied, i int) error {
	module, err := ebpf.NewCollection(c.spec)
	if err != nil {
		return err
	}
	if s.modules[i] != nil {
		s.modules[i].Close()
	}
	s.modules[i] = module
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		if err := bench.PutFilter(s.qdisc.LinkIndex, parent, 1, i+1, module.Programs["count_packet"]); err != nil {
			return err
		}
	}
	return nil
}

// Rechain replaces the second module of every service.
func (c *copies) Rechain() error {
	return c.lab.Node().Do(func() error {
		for i := range c.services {
			if err := c.load(&c.services[i], 1); err != nil {
				return err
			}
		}
		return nil
	})
}

func (c *copies) PID() int { return os.Getpid() }

func (c *copies) Close() error {
	return c.lab.Node().Do(func() error {
		var errs []error
		for _, s := range c.services {
			errs = append(errs, netlink.QdiscDel(s.qdisc))
			for _, m := range s.modules {
				if m != nil {
					m.Close()
				}
			}
		}
		return errors.Join(errs...)
	})
}
