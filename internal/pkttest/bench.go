// SPDX-License-Identifier: Apache-2.0

package pkttest

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/sdk"
)

// Sides of a service's interface on the host, by hook and direction.
var Sides = map[string]map[chain.Direction]chain.Side{
	"xdp": {chain.Egress: chain.OnXDP, chain.Ingress: chain.OnXDP},
	"tc":  {chain.Egress: chain.OnTCIngress, chain.Ingress: chain.OnTCEgress},
}

// ModuleOf returns the package as a module without settings.
func ModuleOf(p *pkgs.Package) dataplane.Module {
	return dataplane.Module{
		Name: p.Name, ID: "verify", ConfigMaps: p.Maps.Config, SharedMaps: p.Maps.Shared,
		FailClosed: p.FailurePolicy == "closed", Frags: p.Frags, BuiltIn: p.Source == pkgs.SourceBuiltin,
		Spec: func(hook chain.Hook) (*ebpf.CollectionSpec, error) {
			if !p.HasHook(string(hook)) {
				return nil, nil
			}
			return p.Spec(string(hook))
		},
	}
}

// Bench is a package that is loaded for test runs on one hook. Both directions share the maps, as on a node. Nothing is
// attached.
type Bench struct {
	module  string
	reasons map[uint64]string
	loaded  *dataplane.Loaded
	trace   *dataplane.Trace         // reports what the module returns, which the action of the hook does not show
	by      map[string]*ebpf.Program // by direction
}

// Result is the result of one packet.
type Result struct {
	Verdict string // of the module: next, drop, reply, redirect or invalid
	Reason  string // why it was dropped
	Packet  []byte // as the module left it
}

// NewBench loads a module of a package.
func NewBench(p *pkgs.Package, hook string, module dataplane.Module) (*Bench, error) {
	spec, err := p.Spec(hook)
	if err != nil {
		return nil, err
	}
	b := &Bench{module: module.Name, reasons: map[uint64]string{}, by: map[string]*ebpf.Program{}}
	for name, number := range p.DropReasons {
		b.reasons[uint64(number)] = name
	}
	if spec.Programs["kerb_egress"] == nil && spec.Programs["kerb_ingress"] == nil {
		return nil, fmt.Errorf("package %s has no program for hook %s", p.Name, hook)
	}
	if b.trace, err = dataplane.NewTrace(dataplane.TraceFilter{}); err != nil {
		return nil, err
	}
	for _, dir := range []chain.Direction{chain.Egress, chain.Ingress} {
		if spec.Programs["kerb_"+string(dir)] == nil {
			continue
		}
		if err := b.load(Sides[hook][dir], dir, module); err != nil {
			b.Close()
			return nil, err
		}
	}
	return b, nil
}

func (b *Bench) load(side chain.Side, dir chain.Direction, module dataplane.Module) (err error) {
	if b.loaded == nil {
		if b.loaded, err = dataplane.Load(side, dir, module); err != nil {
			return err
		}
	}
	member := chain.Member{Name: module.Name, ID: module.ID, FailClosed: module.FailClosed}
	spec := chain.Spec{Side: side, Direction: dir, Members: []chain.Member{member}}
	b.by[string(dir)], err = b.loaded.Trace(b.trace, spec)
	return err
}

// Close frees everything.
func (b *Bench) Close() {
	for _, p := range b.by {
		p.Close()
	}
	b.trace.Close()
	if b.loaded != nil {
		b.loaded.Close()
	}
}

// Maps returns the module's maps.
func (b *Bench) Maps() sdk.Maps { return b.loaded.Maps[b.module] }

// Program returns what the kernel verified, without the reports of verdicts: egress, or ingress of a package without
// egress.
func (b *Bench) Program() *ebpf.Program { return b.loaded.Program }

// Run sends a packet through the chain.
func (b *Bench) Run(direction string, frame []byte) (r Result, err error) {
	program := b.by[direction]
	if program == nil {
		if direction != "ingress" && direction != "egress" {
			return r, fmt.Errorf("direction %q is neither ingress nor egress", direction)
		}
		return Result{Verdict: kerbabi.Next.String(), Packet: frame}, nil // the agent does not put the module there
	}
	before, err := b.loaded.Drops(b.module)
	if err != nil {
		return r, err
	}
	result := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+1024)}
	if _, err := program.Run(result); err != nil {
		return r, fmt.Errorf("test run: %w", err)
	}
	r.Packet = result.DataOut
	if r.Verdict, err = b.verdict(); err != nil {
		return r, err
	}
	after, err := b.loaded.Drops(b.module)
	for i := range after {
		if after[i] > before[i] {
			r.Reason = b.reason(uint64(i))
		}
	}
	return r, err
}

// verdict is what the module has returned for the last packet.
func (b *Bench) verdict() (verdict string, err error) {
	for {
		e, err := b.trace.Read(time.Now())
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return verdict, nil
		}
		if err != nil {
			return "", fmt.Errorf("read the verdict: %w", err)
		}
		if !e.Head() {
			verdict = kerbabi.Verdict(e.Verdict).String()
		}
	}
}

func (b *Bench) reason(number uint64) string {
	if name := b.reasons[number]; name != "" {
		return name
	}
	return kerbabi.DropReasonName(uint32(number))
}
