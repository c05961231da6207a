// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"fmt"
	"sync"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/modules/responder/app"
	"github.com/kerb-edge/kerb/sdk"
)

// change sets the values of another config in the data plane without replacing the program.
func (k *kernel) change(config string) {
	k.t.Helper()
	next := compileConfig(k.t, config)
	if err := k.loaded.SetValues(module(k.t, next)); err != nil {
		k.t.Fatal(err)
	}
	k.Responder = next
	k.open(sdk.Live{Maps: k.maps})
}

// listening returns a config with a road sign, a CoAP server, and more listeners.
func listening(more string) string {
	return `{"listeners": [
		{"app": "speedlimit", "name": "road", "port": 8080, "sourceRate": 0},
		{"app": "coap", "name": "things", "port": 5683, "resources": [{"path": "a", "value": "old"}]}` + more + `}`
}

// to returns a request to another port.
func to(port uint16) packet { return get().with(func(p *packet) { p.dport = port }) }

func (k *kernel) expect(what string, p packet, want verdict) {
	k.t.Helper()
	if got, _ := k.run(p.frame()); got != want {
		k.t.Errorf("%s: %s, want %s", what, got, want)
	}
}

// Listeners are added, changed and removed without replacing the program; the others keep their state.
func TestValuesChange(t *testing.T) {
	const (
		echo7  = `, {"app": "echo", "port": 7000, "sourceRate": 0}]`
		echo71 = `, {"app": "echo", "port": 7001, "sourceRate": 0, "maxReply": 4},
			{"app": "echo", "name": "six", "port": 7002, "sourceRate": 0}], "partialChecksums": "accept"`
		echo73 = `, {"app": "echo", "port": 7003}]`
	)
	onHooks(t, listening(echo7), func(t *testing.T, k *kernel) {
		k.at(fuzzNetworks...)
		car := to(8080).with(func(p *packet) { p.payload = speed(be, 4, 0) })
		coap := to(5683).with(func(p *packet) { p.payload = []byte{0x40, 1, 0, 1, 0xb1, 'a'} })
		value := func() string {
			t.Helper()
			v, out := k.run(coap.frame())
			if v != answered {
				t.Errorf("coap: %s", v)
			}
			return string(out[len(out)-3:])
		}
		cars := int64(0)
		state := k.open(sdk.Live{Maps: k.maps})
		l, p, err := state.one("things")
		if err == nil {
			err = apps[l.number].App.(app.ValueStore).SetValue(k.maps, p, "a", rawMessage(`{"value": "new"}`))
		}
		if err != nil {
			t.Fatal(err)
		}
		shape := fmt.Sprint(module(t, k.Responder).Settings)
		for round := range 3 { // both halves, and each over its contents of another config
			k.change(listening(echo7))
			k.expect("echo", to(7000), answered)
			k.expect("a port of the other config", to(7001), passed)
			k.change(listening(echo71))
			if now := fmt.Sprint(module(t, k.Responder).Settings); now != shape {
				t.Errorf("%s, before %s", now, shape)
			}
			k.expect("a port of the other config", to(7000), passed)
			k.expect("a reply that is too long now", to(7001), passed)
			k.expect("a new listener", to(7002), answered)
			for _, other := range []uint16{7000, 7003} {
				k.expect("from a port of another config", to(7002).with(func(p *packet) { p.sport = other }), answered)
			}
			k.expect("from a port that is answered", to(7002).with(func(p *packet) { p.sport = 7001 }), passed)
			k.expect("car", car, answered)
			if cars++; k.cars("road") != cars {
				t.Errorf("round %d: %d cars, want %d", round, k.cars("road"), cars)
			}
			k.change(listening(echo73))
			if got := value(); got != "new" {
				t.Errorf("value %q", got)
			}
		}
		k.change(listening(echo7))
		// one that is written, but not activated, as when a change fails
		if err := compileConfig(t, listening(echo71)).Fill(k.maps); err != nil {
			t.Fatal(err)
		}
		k.expect("echo, after a change that failed", to(7000), answered)
		k.expect("a port of the config that failed", to(7001), passed)
	})
}

// No packet sees a listener of one config with the unanswered source ports of another.
func TestNoMixture(t *testing.T) {
	const first, other = echoConfig, `{"listeners": [{"app": "echo", "port": 7001, "sourceRate": 0}]}`
	k := load(t, chain.XDP, first).at(fuzzNetworks...)
	var changes sync.WaitGroup
	stop := make(chan struct{})
	changes.Go(func() {
		for config := other; ; {
			select {
			case <-stop:
				return
			default:
				k.change(config)
				config = map[string]string{first: other, other: first}[config]
			}
		}
	})
	// too long to be answered, which is checked after the source port
	frame := to(7000).with(func(p *packet) { p.sport, p.payload = 7001, make([]byte, 1473) }).frame()
	for range 200 {
		opts := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)), Repeat: 1000}
		if _, err := k.prog.Run(&opts); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	changes.Wait()
	k.change(first)
	if n := k.packets("echo-7000"); n["source_port"] != 0 || n["size"] == 0 {
		t.Errorf("%v", n)
	}
}
