// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/modules/responder/app"
	"github.com/kerb-edge/kerb/modules/responder/apps/speedlimit"
	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

func compileConfig(t testing.TB, config string) *Responder {
	t.Helper()
	return sdktest.Compile[*Responder](t, Control(), config)
}

// module returns the package as the agent would deploy it.
func module(t testing.TB, f *Responder) dataplane.Module {
	t.Helper()
	p := pkgstest.Package(t)
	return dataplane.Module{
		Name:       "resp",
		ID:         "0123456789",
		Values:     chain.ShortHash(fmt.Append(nil, *f.config)),
		Spec:       func(h chain.Hook) (*ebpf.CollectionSpec, error) { return p.Spec(string(h)) },
		ConfigMaps: p.Maps.Config,
		Settings:   f.Settings(),
		Fill:       f.Fill,
		Frags:      p.Frags,
	}
}

// kernel is a responder loaded on one hook, but not attached.
type kernel struct {
	*Responder
	t      testing.TB
	hook   chain.Hook
	loaded *dataplane.Loaded
	prog   *ebpf.Program
	maps   sdk.Maps
}

var hooks = []chain.Hook{chain.XDP, chain.TC}

// onHooks runs a test on each hook.
func onHooks(t *testing.T, config string, test func(t *testing.T, k *kernel)) {
	for _, hook := range hooks {
		t.Run(string(hook), func(t *testing.T) { test(t, load(t, hook, config)) })
	}
}

func load(t testing.TB, hook chain.Hook, config string) *kernel {
	t.Helper()
	sdktest.NeedRoot(t)
	f := compileConfig(t, config)
	side := chain.OnXDP
	if hook == chain.TC {
		side = chain.OnTCEgress
	}
	l, err := dataplane.Load(side, chain.Ingress, module(t, f))
	sdktest.Explain(t, err)
	t.Cleanup(l.Close)
	return &kernel{f, t, hook, l, l.Program, l.Maps["resp"]}
}

// testIndex is the interface of test runs: on XDP and on TC loopback by default.
const testIndex = 1

// at returns the addresses of the interface.
func (k *kernel) at(addresses ...string) *kernel {
	k.t.Helper()
	if err := writeLocals(k.maps,
		[]sdk.Attachment{{Interface: "lo", Ifindex: testIndex, Kind: "veth", Addresses: addresses}}); err != nil {
		k.t.Fatal(err)
	}
	return k
}

// verdict of a packet.
type verdict string

const (
	passed   verdict = "passed"
	dropped  verdict = "dropped"
	answered verdict = "answered"
)

var actions = map[chain.Hook]map[int32]verdict{
	chain.XDP: {2: passed, 1: dropped, 3: answered},
	chain.TC:  {-1: passed, 2: dropped, 7: answered},
}

// run passes a frame to the program, and returns the resulting frame.
func (k *kernel) run(frame []byte) (verdict, []byte) {
	k.t.Helper()
	opts := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+2048), Repeat: 1}
	ret, err := k.prog.Run(&opts)
	if err != nil {
		k.t.Fatalf("test run with %d bytes: %v", len(frame), err)
	}
	v, ok := actions[k.hook][int32(ret)]
	if !ok {
		k.t.Fatalf("action %d", int32(ret))
	}
	return v, opts.DataOut
}

// packets returns the packets of a listener by outcome; "" means no listener.
func (k *kernel) packets(name string) map[string]uint64 {
	k.t.Helper()
	report, err := k.open(sdk.Live{Maps: k.maps}).report()
	if err != nil {
		k.t.Fatal(err)
	}
	for _, l := range report.Listeners {
		if l.Name == name {
			return l.Packets
		}
	}
	return report.Other
}

// testRun reuses its buffers for many runs.
type testRun struct{ opts ebpf.RunOptions }

func newRun() *testRun { return &testRun{ebpf.RunOptions{DataOut: make([]byte, 4096), Repeat: 1}} }

func (r *testRun) run(k *kernel, frame []byte) (verdict, []byte) {
	r.opts.Data, r.opts.DataOut = frame, r.opts.DataOut[:cap(r.opts.DataOut)]
	ret, err := k.prog.Run(&r.opts)
	if err != nil {
		k.t.Fatalf("test run with %d bytes: %v", len(frame), err)
	}
	v, ok := actions[k.hook][int32(ret)]
	if !ok {
		k.t.Fatalf("action %d", int32(ret))
	}
	return v, r.opts.DataOut
}

// open returns the control plane's state for the maps, as for a map set that was just started.
func (k *kernel) open(live sdk.Live) *Running {
	k.t.Helper()
	return sdktest.Open[*Running](k.t, k.Responder, live)
}

// state returns the state of a listener from the routes.
func (k *kernel) state(name string) any {
	k.t.Helper()
	h := k.open(sdk.Live{Maps: k.maps})
	l, p, err := h.one(name)
	if err == nil {
		var s *State
		if s, err = h.state(l, p); err == nil {
			return s.State
		}
	}
	k.t.Fatal(err)
	return nil
}

// cars of a speed limit.
func (k *kernel) cars(name string) int64 { return k.state(name).(speedlimit.State).Cars }

type (
	appPlaced  = app.PlacedListener
	rawMessage = json.RawMessage
)
