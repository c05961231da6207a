// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// notEmulated skips tests that load the firewall often: each load takes seconds on the emulated machines of the kernel
// matrix, where other tests have loaded it already.
func notEmulated(t testing.TB) {
	t.Helper()
	if os.Getenv("KERB_MATRIX") != "" {
		t.Skip("loads the firewall too often for an emulated machine")
	}
}

// module returns the package as the agent would deploy it.
func module(t testing.TB, f *Firewall) dataplane.Module {
	t.Helper()
	p := pkgstest.Package(t)
	return dataplane.Module{
		Name:       "fw",
		ID:         chain.ShortHash(fmt.Append(nil, f.set)),
		Spec:       func(h chain.Hook) (*ebpf.CollectionSpec, error) { return p.Spec(string(h)) },
		ConfigMaps: p.Maps.Config,
		Settings:   f.Settings(),
		Fill:       f.Fill,
		FailClosed: true,
		Frags:      p.Frags,
	}
}

func compileConfig(t testing.TB, config any) *Firewall {
	t.Helper()
	raw, ok := config.(string)
	if !ok {
		text, err := json.Marshal(config)
		if err != nil {
			t.Fatal(err)
		}
		raw = string(text)
	}
	return sdktest.Compile[*Firewall](t, Control(), raw)
}

// kernel is a firewall loaded for both directions, but not attached.
type kernel struct {
	*Firewall
	t       testing.TB
	loaded  *dataplane.Loaded
	egress  *ebpf.Program
	ingress func() *ebpf.Program
	maps    sdk.Maps
	reports *ringbuf.Reader
}

func loadFirewall(t testing.TB, config any) *kernel {
	t.Helper()
	return loadWith(t, config, nil)
}

// loadWith overrides constants of the control plane.
func loadWith(t testing.TB, config any, constants map[string]any) *kernel {
	t.Helper()
	sdktest.NeedRoot(t) // before the rules are compiled
	return loadCompiled(t, compileConfig(t, config), constants)
}

func loadCompiled(t testing.TB, f *Firewall, constants map[string]any) *kernel {
	t.Helper()
	sdktest.NeedRoot(t)
	mod := module(t, f)
	maps.Copy(mod.Settings.Constants, constants)
	l, err := dataplane.Load(chain.OnTCIngress, chain.Egress, mod)
	sdktest.Explain(t, err)
	t.Cleanup(l.Close)
	ingress := pkgstest.Relink(t, l, chain.Spec{Side: chain.OnTCEgress, Direction: chain.Ingress,
		Members: []chain.Member{{Name: mod.Name, ID: mod.ID, FailClosed: true}}})
	return &kernel{f, t, l, l.Program, ingress, l.Maps[mod.Name], nil}
}

// open returns the control plane's state for the maps, as for a map set that was just started.
func (k *kernel) open(live sdk.Live) *running {
	k.t.Helper()
	return sdktest.Open[*running](k.t, k.Firewall, live)
}

const (
	tcNext     = -1
	tcShot     = 2
	tcRedirect = 7
)

// pass runs a frame through the firewall.
func (k *kernel) pass(frame []byte, ingress bool) bool {
	k.t.Helper()
	action, _ := k.run(frame, ingress)
	if action != tcNext && action != tcShot {
		k.t.Fatalf("action %d", action)
	}
	return action == tcNext
}

// run returns the action, and the resulting frame.
func (k *kernel) run(frame []byte, ingress bool) (action int32, out []byte) {
	k.t.Helper()
	p := k.egress
	if ingress {
		p = k.ingress()
	}
	opts := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+128)}
	ret, err := p.Run(&opts)
	if err != nil {
		k.t.Fatal(err)
	}
	return int32(ret), opts.DataOut
}

// refillAnswers refills the rate limit of answers.
func (k *kernel) refillAnswers() {
	k.t.Helper()
	if err := k.maps["kerb_answers"].Put(uint32(0), make([]uint64, ebpf.MustPossibleCPU())); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kernel) hits(slot uint32) uint64 {
	k.t.Helper()
	hits, err := readHits(k.maps, mapHits, []uint32{slot})
	if err != nil {
		k.t.Fatal(err)
	}
	return hits[slot].Packets
}

func (k *kernel) drops(reason int) uint64 {
	k.t.Helper()
	d, err := k.loaded.Drops("fw")
	if err != nil {
		k.t.Fatal(err)
	}
	return d[reason]
}

// other returns the counters of decisions without a rule.
func (k *kernel) other() map[string]Hits {
	k.t.Helper()
	hits, err := otherHits(k.maps)
	if err != nil {
		k.t.Fatal(err)
	}
	for name, h := range hits {
		if h.Packets == 0 {
			delete(hits, name)
		}
	}
	return hits
}

// outdate marks all connections as allowed by another rule set.
func (k *kernel) outdate(m *Model) {
	k.t.Helper()
	m.outdate()
	for _, name := range []string{mapEstablished4, mapOpening4, mapPending4} {
		outdateTable[key4](k, name)
	}
	for _, name := range []string{mapEstablished6, mapOpening6, mapPending6} {
		outdateTable[key6](k, name)
	}
}

func (m *Model) outdate() {
	for _, conns := range []map[connKey]*connState{m.conns, m.alongside} {
		for _, c := range conns {
			c.generation--
		}
	}
}

func outdateTable[K interface{ id() connID }](k *kernel, name string) {
	k.t.Helper()
	all := map[any]conn{}
	keep := func(key K, c *conn) bool { all[key] = *c; return true }
	if err := sdk.EachElement(k.maps, name, connBatch, keep); err != nil {
		k.t.Fatal(err)
	}
	for key, c := range all {
		c.Generation--
		if err := k.maps[name].Put(key, c); err != nil {
			k.t.Fatal(err)
		}
	}
}
