// SPDX-License-Identifier: Apache-2.0

package classifier_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/lab/testrun"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/modules/classifier"
	"github.com/kerb-edge/kerb/modules/classifier/extract"
	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/model"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// kernel is a classifier loaded on one hook, but not attached, with a clock that the test sets.
type kernel struct {
	t      testing.TB
	hook   chain.Hook
	loaded *dataplane.Loaded
	prog   *ebpf.Program
	maps   sdk.Maps
}

var hooks = []chain.Hook{chain.XDP, chain.TC}

// settings are the data plane's constants and values, by name.
type settings = map[string]any

// clockMap has the test's clock, which replaces cls_clock().
const clockMap = "test_clock"

// withClock replaces the body of cls_clock() by one that reads the test's clock.
func withClock(spec *ebpf.CollectionSpec) (*ebpf.CollectionSpec, error) {
	spec.Maps[clockMap] = &ebpf.MapSpec{Name: clockMap, Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}
	for _, p := range spec.Programs {
		first := -1
		for i := range p.Instructions {
			if p.Instructions[i].Symbol() == "cls_clock" {
				first = i
			}
		}
		if first < 0 {
			return nil, errors.New("no function cls_clock")
		}
		end := first + 1
		for end < len(p.Instructions) && p.Instructions[end].Symbol() == "" {
			end++
		}
		body := asm.Instructions{
			asm.LoadMapValue(asm.R1, 0, 0).WithReference(clockMap).WithMetadata(p.Instructions[first].Metadata),
			asm.LoadMem(asm.R0, asm.R1, 0, asm.DWord),
			asm.Return(),
		}
		body[0] = body[0].WithReference(clockMap)
		p.Instructions = append(append(append(asm.Instructions{}, p.Instructions[:first]...), body...),
			p.Instructions[end:]...)
	}
	return spec, nil
}

func compile(t testing.TB, config string) sdk.Compiled {
	t.Helper()
	return sdktest.Compile[sdk.Compiled](t, classifier.Control(), config)
}

// module returns the module with the settings of a config, and overrides.
func module(t testing.TB, c sdk.Compiled, config settings) dataplane.Module {
	t.Helper()
	p, s := pkgstest.Package(t), c.Settings()
	s.Constants["lapse_ns"] = uint64(0) // the test's clock ends windows
	for name, value := range config {
		if _, is := s.Tunables[name]; is {
			s.Tunables[name] = value
		} else {
			s.Constants[name] = value
		}
	}
	return dataplane.Module{
		Name:       "cls",
		ID:         "0123456789",
		Values:     chain.ShortHash(fmt.Append(nil, s.Tunables, c)),
		ConfigMaps: p.Maps.Config,
		Frags:      p.Frags,
		Settings:   s,
		Fill:       c.Fill,
		Spec: func(h chain.Hook) (*ebpf.CollectionSpec, error) {
			spec, err := p.Spec(string(h))
			if err != nil {
				return nil, err
			}
			return withClock(spec)
		},
	}
}

// load loads the default config with overrides.
func load(t testing.TB, hook chain.Hook, config settings) *kernel {
	t.Helper()
	return loadModule(t, hook, module(t, compile(t, "{}"), config))
}

func loadModule(t testing.TB, hook chain.Hook, mod dataplane.Module) *kernel {
	t.Helper()
	sdktest.NeedRoot(t)
	l, err := dataplane.Load(sideOf(hook), chain.Ingress, mod)
	sdktest.Explain(t, err)
	t.Cleanup(l.Close)
	return &kernel{t, hook, l, l.Program, l.Maps["cls"]}
}

// sideOf returns the side on which a hook sees packets to the service.
func sideOf(hook chain.Hook) chain.Side {
	if hook == chain.TC {
		return chain.OnTCEgress
	}
	return chain.OnXDP
}

// otherWay returns the kernel for packets from the service, on the same maps.
func (k *kernel) otherWay() *kernel {
	k.t.Helper()
	side := chain.OnXDP
	if k.hook == chain.TC {
		side = chain.OnTCIngress
	}
	prog, err := k.loaded.Relink(chain.Spec{Side: side, Direction: chain.Egress,
		Members: []chain.Member{{Name: "cls", ID: "0123456789"}}})
	sdktest.Explain(k.t, err)
	k.t.Cleanup(func() { prog.Close() })
	return &kernel{k.t, k.hook, k.loaded, prog, k.maps}
}

// verdict is the verdict on a packet.
type verdict string

const (
	passed  verdict = "passed"
	dropped verdict = "dropped"
)

var actions = map[chain.Hook]map[int32]verdict{chain.XDP: {2: passed, 1: dropped}, chain.TC: {-1: passed, 2: dropped}}

const second = uint64(1e9)

// at sets the clock.
func (k *kernel) at(ns uint64) {
	k.t.Helper()
	if err := k.maps[clockMap].Put(uint32(0), ns); err != nil {
		k.t.Fatal(err)
	}
}

// runs passes a packet to the program a number of times, and checks that it is unchanged.
func (k *kernel) runs(packet []byte, times uint32) verdict {
	k.t.Helper()
	opts := ebpf.RunOptions{Data: packet, DataOut: make([]byte, len(packet)+64), Repeat: times}
	ret, err := testrun.Run(k.prog, &opts)
	if err != nil {
		k.t.Fatalf("test run with %d bytes: %v", len(packet), err)
	}
	if !bytes.Equal(opts.DataOut, packet) {
		k.t.Fatalf("the packet has changed from %x to %x", packet, opts.DataOut)
	}
	v, ok := actions[k.hook][int32(ret)]
	if !ok {
		k.t.Fatalf("action %d", int32(ret))
	}
	return v
}

func (k *kernel) run(packet []byte) verdict {
	k.t.Helper()
	return k.runs(packet, 1)
}

// testIndex is the interface of test runs.
const testIndex = 1

// key mirrors struct cls_source.
type key struct {
	Addr, Local     [16]byte
	Port, LocalPort [2]byte
	Ifindex         uint32
	PAN             uint16
	Proto, Kind     uint8
}

func nodeKey(n extract.Node) (k key) {
	k.Addr[0], k.Addr[1] = 0xfe, 0x80
	be.PutUint64(k.Addr[8:], n.ID)
	k.Ifindex, k.PAN = testIndex, n.PAN
	return
}

// euiKey returns the key of node(n).
func euiKey(n uint64) key { return nodeKey(extract.Node{ID: node(n) ^ 2<<56}) }

// window mirrors struct cls_window.
type window struct {
	Time   uint64
	Values [32]int32
}

// taken returns the pending window of a source for the control plane, and removes it.
func (k *kernel) taken(of key) (window, bool) {
	k.t.Helper()
	var w window
	if err := k.maps["windows"].Lookup(of, &w); errors.Is(err, ebpf.ErrKeyNotExist) {
		return w, false
	} else if err != nil {
		k.t.Fatal(err)
	}
	if err := k.maps["windows"].Delete(of); err != nil {
		k.t.Fatal(err)
	}
	return w, true
}

// count returns a counter of enum cls_count, summed over all CPUs.
func (k *kernel) count(what uint32) (n uint64) {
	k.t.Helper()
	var each []uint64
	if err := k.maps["counts"].Lookup(what, &each); err != nil {
		k.t.Fatal(err)
	}
	for _, v := range each {
		n += v
	}
	return
}

// len counts the entries of a map.
func (k *kernel) len(name string) (n int) {
	k.t.Helper()
	m := k.maps[name]
	it, key, value := m.Iterate(), make([]byte, m.KeySize()), make([]byte, m.ValueSize())
	for it.Next(key, value) {
		n++
	}
	if err := it.Err(); err != nil {
		k.t.Fatal(err)
	}
	return
}

// with returns a config with overrides.
func with(configs ...settings) settings {
	out := settings{}
	for _, c := range configs {
		maps.Copy(out, c)
	}
	return out
}

// onAHook runs a test on one of the hooks, a different one for each test, where hooks do not matter.
func onAHook(t *testing.T, config settings, test func(t *testing.T, k *kernel)) {
	test(t, load(t, hooks[len(t.Name())%len(hooks)], config))
}

// onHooks runs a test on each hook.
func onHooks(t *testing.T, config settings, test func(t *testing.T, k *kernel)) {
	for _, hook := range hooks {
		t.Run(string(hook), func(t *testing.T) { test(t, load(t, hook, config)) })
	}
}

// use activates a model that classifies sources above a threshold of a feature as attackers.
func (k *kernel) use(role model.Role, extractor, feature string, above int) {
	k.t.Helper()
	k.load(role, fmt.Appendf(nil,
		`{"format": "kerb-model/1", "name": "rule", "version": 1, "extractor": %q, "features": [%q], "kind": "tree",
		"classes": ["normal", "attack"], "trees": [[{"feature": 0, "threshold": %d, "left": 1, "right": 2}, {"value": [1, 0]}, {"value": [0, 1]}]]}`,
		extractor, feature, above))
}

// load activates the model of a document.
func (k *kernel) load(role model.Role, document []byte) {
	k.t.Helper()
	doc, err := model.Parse(document)
	if err != nil {
		k.t.Fatal(err)
	}
	packed, err := doc.Pack(classifier.Features[doc.Extractor])
	if err != nil {
		k.t.Fatal(err)
	}
	if err := model.NewSlots(k.maps["models"], k.maps["active"]).Load(role, packed); err != nil {
		k.t.Fatal(err)
	}
	if err := k.maps["harmless"].Put(uint32(role), uint64(1)); err != nil {
		k.t.Fatal(err)
	}
}
