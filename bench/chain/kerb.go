// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/kerb-edge/kerb/bench/kerbmods"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/pkttest"
	builtin "github.com/kerb-edge/kerb/modules"
)

// packages are the packages of kerbmods that count UDP packets.
var packages = map[family]string{ipv4: "pass", ipv6: "pass6"}

type load func(chain.Side, chain.Direction, ...dataplane.Module) (*dataplane.Loaded, error)

// withKerb loads n counting modules for hook "xdp" or "tc" into a chain, as the agent does.
func withKerb(load load, of family) func(hook string, n int) (Chain, error) {
	return func(hook string, n int) (Chain, error) { return loadKerb(load, packages[of], hook, n) }
}

// withFlows is withKerb with the built-in module flows after the others: all packets belong to a flow that it has
// recorded.
func withFlows(of family) func(hook string, n int) (Chain, error) {
	return func(hook string, n int) (Chain, error) {
		m, err := flowsModule()
		if err != nil {
			return nil, err
		}
		return loadKerb(dataplane.Load, packages[of], hook, n, m)
	}
}

// flowsModule is opened once, as in the agent.
var flowsModule = sync.OnceValues(func() (m dataplane.Module, err error) {
	all := pkgs.NewCatalog(builtin.Packages(), builtin.Controls()).Builtin()
	i := slices.IndexFunc(all, func(p *pkgs.Package) bool { return p.Name == "flows" })
	if i < 0 {
		return m, errors.New("this build lacks the package flows: run make bpf, then build again")
	}
	compiled, err := all[i].ControlPlane.Compile(json.RawMessage(`{}`))
	if err != nil {
		return m, err
	}
	m = pkttest.ModuleOf(all[i])
	m.Settings, m.Fill = compiled.Settings(), compiled.Fill
	return m, nil
})

// kerb is a chain that the data plane has linked.
type kerb struct {
	spec     chain.Spec
	counting []string // modules that count packets
	loaded   *dataplane.Loaded
	replaced []*ebpf.Program
}

func loadKerb(load load, pkg, hook string, n int, behind ...dataplane.Module) (Linked, error) {
	k := &kerb{spec: chain.Spec{Side: chain.OnTCIngress, Direction: chain.Ingress}}
	if hook == "xdp" {
		k.spec.Side = chain.OnXDP
	}
	var mods []dataplane.Module
	for i := range n {
		m, err := kerbmods.Module(pkg, fmt.Sprintf("m%d", i), nil)
		if err != nil {
			return nil, err
		}
		mods, k.counting = append(mods, m), append(k.counting, m.Name)
	}
	mods = append(mods, behind...)
	for _, m := range mods {
		k.spec.Members = append(k.spec.Members, chain.Member{Name: m.Name, ID: m.ID})
	}
	var err error
	if k.loaded, err = load(k.spec.Side, k.spec.Direction, mods...); err != nil {
		return nil, err
	}
	return k, nil
}

func (k *kerb) Program() *ebpf.Program { return k.loaded.Program }

// Code returns the instructions that the kernel executes.
func (k *kerb) Code() (asm.Instructions, error) {
	_, code, err := k.loaded.RelinkWithCode(k.spec)
	return code, err
}

// Packets implements Chain.
func (k *kerb) Packets() ([]uint64, error) {
	var out []uint64
	for _, name := range k.counting {
		n, err := packets(k.loaded.Maps[name]["totals"])
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, nil
}

// Replace links the chain again, as the agent does for a changed module.
func (k *kerb) Replace() (*ebpf.Program, error) {
	p, err := k.loaded.Relink(k.spec)
	if err == nil {
		k.replaced = append(k.replaced, p)
	}
	return p, err
}

func (k *kerb) Close() error {
	for _, p := range k.replaced {
		p.Close()
	}
	k.loaded.Close()
	return nil
}
