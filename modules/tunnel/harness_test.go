// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

func compileConfig(t testing.TB, text string) *config {
	t.Helper()
	return sdktest.Compile[*config](t, Control(), text)
}

func module(t testing.TB, c *config) dataplane.Module {
	t.Helper()
	p := pkgstest.Package(t)
	return dataplane.Module{
		Name: "tun",
		ID:   "0123456789",
		// the identity of the values
		Values: chain.ShortHash(fmt.Append(nil, *c)),
		Spec: func(h chain.Hook) (*ebpf.CollectionSpec, error) {
			if !p.HasHook(string(h)) {
				return nil, nil
			}
			return p.Spec(string(h))
		},
		ConfigMaps: p.Maps.Config,
		Settings:   c.Settings(),
		Fill:       c.Fill,
	}
}

// kernel is a tunnel loaded for both directions, but not attached, with the instances that the agent would report.
type kernel struct {
	*tunnel
	t         testing.TB
	loaded    *dataplane.Loaded
	wrap      *ebpf.Program
	unwrap    func() *ebpf.Program
	live      sdk.Live
	instances []sdk.Attachment
}

// Interfaces of the instances; nothing is sent in test runs.
const (
	underlayIndex = 77
	serviceIndex  = 78
)

var (
	serviceMAC = "02:00:00:00:00:05"
	service    = sdk.Attachment{Service: "web", Interface: "veth0", Ifindex: serviceIndex, MAC: serviceMAC, MTU: 1500,
		Addresses: []string{"10.1.0.5/24", "fd01::5/64"}}
	underlay = sdk.Attachment{Interface: "eth0", Ifindex: underlayIndex, MTU: 1500,
		Addresses: []string{"192.0.2.1/24", "2001:db8::1/64", "fe80::1/64"}, IPsec: &sdk.IPsec{}}
)

func loadTunnel(t testing.TB, config string) *kernel {
	t.Helper()
	sdktest.NeedRoot(t)
	c := compileConfig(t, config)
	mod := module(t, c)
	l, err := dataplane.Load(chain.OnTCIngress, chain.Egress, mod)
	sdktest.Explain(t, err)
	t.Cleanup(l.Close)
	unwrap := pkgstest.Relink(t, l, chain.Spec{Side: chain.OnTCIngress, Direction: chain.Ingress,
		Members: []chain.Member{{Name: mod.Name, ID: mod.ID}}})
	k := &kernel{t: t, loaded: l, wrap: l.Program, unwrap: unwrap, instances: []sdk.Attachment{service, underlay}}
	k.live = sdk.Live{Module: "tun", Maps: l.Maps[mod.Name], Attachments: func() []sdk.Attachment { return k.instances }}
	k.restart(c)
	k.tell(sdk.VirtualServiceUpdate{Reset: true, Complete: true})
	return k
}

// restart starts another map set on the same maps.
func (k *kernel) restart(c *config) {
	k.t.Helper()
	k.tunnel = sdktest.Open[*tunnel](k.t, c, k.live)
}

func (k *kernel) tell(update sdk.VirtualServiceUpdate) {
	k.t.Helper()
	if err := k.VirtualServices(update); err != nil {
		k.t.Fatal(err)
	}
}

// change sets another config in the data plane without replacing the program. The previous control plane keeps running.
func (k *kernel) change(c *config) {
	k.t.Helper()
	if err := k.loaded.SetValues(module(k.t, c)); err != nil {
		k.t.Fatal(err)
	}
}

// Actions of TC.
const (
	tcNext     = -1
	tcShot     = 2
	tcRedirect = 7
)

// skBuff is the beginning of struct __sk_buff (linux/bpf.h) that test runs accept.
type skBuff struct {
	_       [41]uint32
	GSOSegs uint32
	_       [2]uint32
	GSOSize uint32
	_       [3]uint32
}

// run passes a frame through a program. On some kernels the buffer must be larger than the result.
func (k *kernel) run(p *ebpf.Program, frame []byte, gso uint32) (int32, []byte) {
	k.t.Helper()
	opts := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)}
	if gso != 0 {
		opts.Context = skBuff{GSOSize: gso}
	}
	ret, err := p.Run(opts)
	if err != nil {
		k.t.Fatal(err)
	}
	return int32(ret), opts.DataOut
}

// reason runs a frame and returns its drop reason, or "" if it was not dropped.
func (k *kernel) reason(p *ebpf.Program, frame []byte) (int32, string) {
	k.t.Helper()
	before := k.drops()
	ret, _ := k.run(p, frame, 0)
	for i, n := range k.drops() {
		if n != before[i] {
			return ret, reasonName(k.t, i)
		}
	}
	return ret, ""
}

func (k *kernel) drops() []uint64 {
	k.t.Helper()
	d, err := k.loaded.Drops("tun")
	if err != nil {
		k.t.Fatal(err)
	}
	return d
}

func reasonName(t testing.TB, n int) string {
	p := pkgstest.Package(t)
	for name, number := range p.DropReasons {
		if number == n {
			return name
		}
	}
	return fmt.Sprintf("kerb_%d", n)
}
