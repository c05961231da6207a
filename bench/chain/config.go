// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/dataplane"
)

// Chain is n counting modules, loaded and ready to be attached.
type Chain interface {
	// Packets returns the count of each module, in order.
	Packets() ([]uint64, error)
	Close() error
}

// Linked is a chain with one entry program.
type Linked interface {
	Chain
	// Program returns the program for the hook, of type XDP, or of type SchedCLS for TCX, which passes packets with
	// TCX_NEXT.
	Program() *ebpf.Program
	// Replace loads a new version of module n/2 into the chain. It returns the program for the hook, which is the old one
	// if the new module is already in effect.
	Replace() (*ebpf.Program, error)
}

// multiProgram is a chain of several programs on the ingress of an interface. attach attaches them in order, followed
// by last. The methods are called in the namespace of the interface; detach is also called after a failed attach.
type multiProgram interface {
	Chain
	attach(ifindex int, last *ebpf.Program) error
	swap() error
	detach() error
}

// config is one way to run n modules.
type config struct {
	name string
	load func(hook string, n int) (Chain, error)
	// multiOnly configs exist for TC only. They have no single entry program for test runs.
	multiOnly bool
	// oneOnly configs are measured with one module, since their added cost does not depend on the number.
	oneOnly bool
}

func (c config) measurable(kind string, n int) bool {
	return (kind == "tc" || !c.multiOnly) && (n == 1 || !c.oneOnly)
}

// available returns Kerb's configs first, with and without the counts of packets and verdicts, and with the module
// flows, then the references.
func available(of family) ([]config, error) {
	objs, err := loadObjects(of)
	if err != nil {
		return nil, err
	}
	return []config{
		{name: "kerb", load: withKerb(dataplane.Load, of)},
		{name: "kerb-uncounted", load: withKerb(dataplane.LoadUncounted, of)},
		{name: "kerb-flows", load: withFlows(of), oneOnly: true},
		{name: "tcx", load: objs.loadTCX, multiOnly: true},
		{name: "tailcall", load: objs.loadTailcall},
		{name: "clsact", load: objs.loadClsact, multiOnly: true},
		{name: "bare", load: objs.loadBare},
	}, nil
}
