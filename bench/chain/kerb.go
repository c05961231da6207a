// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/kerb-edge/kerb/bench/kerbmods"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
)

// packages are those of kerbmods that count UDP packets.
var packages = map[family]string{ipv4: "pass", ipv6: "pass6"}

type load func(chain.Side, chain.Direction, ...dataplane.Module) (*dataplane.Loaded, error)

// withKerb loads n counting modules for hook "xdp" or "tc", as the agent makes a chain.
func withKerb(load load, of family) func(hook string, n int) (Chain, error) {
	return func(hook string, n int) (Chain, error) { return loadKerb(load, packages[of], hook, n) }
}

// kerb is a chain that the data plane has linked, as for the agent.
type kerb struct {
	spec     chain.Spec
	loaded   *dataplane.Loaded
	replaced []*ebpf.Program
}

func loadKerb(load load, pkg, hook string, n int) (Linked, error) {
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
		mods = append(mods, m)
		k.spec.Members = append(k.spec.Members, chain.Member{Name: m.Name, ID: m.ID})
	}
	var err error
	if k.loaded, err = load(k.spec.Side, k.spec.Direction, mods...); err != nil {
		return nil, err
	}
	return k, nil
}

func (k *kerb) Program() *ebpf.Program { return k.loaded.Program }

// Code is what the kernel runs.
func (k *kerb) Code() (asm.Instructions, error) {
	_, code, err := k.loaded.RelinkWithCode(k.spec)
	return code, err
}

// Packets is what each module has counted.
func (k *kerb) Packets() ([]uint64, error) {
	var out []uint64
	for _, m := range k.spec.Members {
		n, err := packets(k.loaded.Maps[m.Name]["totals"])
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, nil
}

// Replace links the chain again, which is what a changed module takes.
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
