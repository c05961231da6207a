// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/kerb-edge/kerb/internal/config"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// stampPort is the port whose packets testdata/stamp stamps.
const stampPort = 7007

// moduleFunctions of a configuration that is read again has the chains swapped, and no packet is lost or passes
// unprocessed. An agent that starts with it leaves the chains as they are.
func TestModuleFunctionsIsReloaded(t *testing.T) {
	n := newNode(t)
	n.stop()
	n.cfg.Reloads = &config.Reloads{}
	n.start(t)
	n.apply(t, n.both(), module("count", testPackage(t, "pass"), "app=web", nil),
		module("stamp", testPackage(t, "stamp"), "app=web", nil))
	inline := func(inline bool) {
		t.Helper()
		n.cfg.ModuleFunctions = !inline
		if err := n.cfg.Reloads.Publish(n.cfg); err != nil {
			t.Error(err)
		}
		wait.Until(t, "all chains are linked as the configuration says", func() bool { return n.isInlined(t, inline) })
	}
	if !n.isInlined(t, true) {
		t.Fatal("small modules are functions by default")
	}
	const swaps = 5
	account, err := traffic.Stream(n.db, n.web, stampPort, func() error {
		for i := range swaps {
			inline(i%2 == 1)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if account.Lost > account.Explained.Socket+account.Explained.Backlog || account.Duplicated+account.Unprocessed+
		account.Doubled > 0 {
		t.Errorf("packets are lost or not processed once: %+v", account)
	}
	before := n.chainsOn(t, n.web)
	n.stop()
	n.start(t)
	<-n.Reconciled()
	if after := n.chainsOn(t, n.web); !n.isInlined(t, false) || after["tc-egress"] != before["tc-egress"] {
		t.Errorf("the restarted agent runs %v, before %v", after, before)
	}
}

// linked returns how many chains have the module count as a function, and how many have it inlined; neither while they
// are swapped.
func (n *node) linked(t *testing.T) (function, inline int) {
	t.Helper()
	chains, err := n.Chains(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range chains {
		if len(c.Points) == 0 {
			continue
		}
		prog, err := ebpf.NewProgramFromID(ebpf.ProgramID(c.Program))
		if err != nil {
			return 0, 0
		}
		info, err := prog.Info()
		prog.Close()
		if err != nil {
			t.Fatal(err)
		}
		infos, err := info.FuncInfos()
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(infos, func(f btf.FuncOffset) bool {
			return strings.HasSuffix(f.Func.Name, "_count") &&
				strings.HasPrefix(f.Func.Name, "m0")
		}) {
			function++
		} else {
			inline++
		}
	}
	return function, inline
}

// isInlined reports whether both chains of web, and no others, are linked in one way.
func (n *node) isInlined(t *testing.T, want bool) bool {
	t.Helper()
	function, inline := n.linked(t)
	if want {
		return function == 0 && inline == 2
	}
	return function == 2 && inline == 0
}
