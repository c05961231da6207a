// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/bench"
)

// Chain is n counting modules, loaded and ready to be attached.
type Chain interface {
	// Packets is what each module has counted, in order.
	Packets() ([]uint64, error)
	Close() error
}

// Linked is a chain that the kernel enters at one program.
type Linked interface {
	Chain
	// Program is what stands on the hook: of type XDP, or SchedCLS that may
	// be attached by TCX and lets a packet pass with TCX_NEXT.
	Program() *ebpf.Program
	// Replace loads a new version of module n/2 and makes the chain ready
	// with it. It returns the program for the hook, which may be the old one
	// if the new module is in effect already.
	Replace() (*ebpf.Program, error)
}

// Kerb builds Kerb's side: n counting modules for hook "xdp" or "tc", made the
// way the agent makes a chain. The package that owns the data plane sets it
// before the command runs; without it the report holds the references alone.
// KerbUncounted is Kerb without the counts of packets and verdicts that the agent's chains have.
var Kerb, KerbUncounted func(hook string, n int) (Linked, error)

// row is a chain of several programs, which attach themselves one after the
// other, and last behind them, to the ingress of an interface. Its methods are
// called in the namespace of the interface; detach also after a failed attach.
type row interface {
	Chain
	attach(ifindex int, last *ebpf.Program) error
	swap() error
	detach() error
}

// config is one way to run n modules.
type config struct {
	name string
	load func(hook string, n int) (Chain, error)
	// rowOnly configs exist for TC only and cannot be test-run, having no
	// single program.
	rowOnly bool
}

func (c config) measurable(kind string) bool { return kind == "tc" || !c.rowOnly }

// available lists Kerb first, the references after it.
func available(r *bench.Run) ([]config, error) {
	objs, err := loadObjects()
	if err != nil {
		return nil, err
	}
	var all []config
	if Kerb != nil {
		all = append(all, config{name: "kerb", load: func(hook string, n int) (Chain, error) { return Kerb(hook, n) }},
			config{name: "kerb-uncounted", load: func(hook string, n int) (Chain, error) { return KerbUncounted(hook, n) }})
	} else {
		r.Note("kerb is left out: this build has no chain builder")
	}
	return append(all,
		config{name: "tcx", load: objs.loadTCX, rowOnly: true},
		config{name: "tailcall", load: objs.loadTailcall},
		config{name: "clsact", load: objs.loadClsact, rowOnly: true},
		config{name: "bare", load: objs.loadBare},
	), nil
}
