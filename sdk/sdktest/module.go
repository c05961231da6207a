// SPDX-License-Identifier: Apache-2.0

package sdktest

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/internal/pkttest"
	"github.com/kerb-edge/kerb/sdk"
)

// Options of Load.
type Options struct {
	Dir     string      // of the package; by default the working directory of the test
	Hook    string      // tc (default) or xdp
	Control sdk.Control // nil for a package without a control plane: its config properties are constants
	Config  string      // JSON; empty for defaults
}

// Module is a module in the kernel for test runs. It is not attached to anything.
type Module struct {
	Compiled sdk.Compiled // nil without a control plane
	Maps     sdk.Maps     // of both directions, filled
	t        testing.TB
	bench    *pkttest.Bench
	name     string
}

// Result is the result of a module for a packet.
type Result = pkttest.Result

// Load compiles a package and loads it into the kernel like the agent: with the defaults of its schema, and with the
// settings and map contents of its control plane. It skips the test if the kernel lacks a feature that the package
// requires.
func Load(t testing.TB, o Options) *Module {
	t.Helper()
	NeedRoot(t)
	p := pkgstest.PackageIn(t, cmp.Or(o.Dir, "."))
	m := &Module{t: t, name: p.Name}
	module := pkttest.ModuleOf(p)
	config := m.config(p, o.Config)
	var err error
	if o.Control == nil {
		module.Settings.Constants, err = p.Constants(config)
	} else {
		var text []byte
		text, err = json.Marshal(config)
		m.Compiled = Compile[sdk.Compiled](t, o.Control, string(text))
		module.Settings, module.Fill = m.Compiled.Settings(), m.Compiled.Fill
	}
	if err != nil {
		t.Fatal(err)
	}
	m.bench, err = pkttest.NewBench(p, cmp.Or(o.Hook, pkgs.HookTC), module)
	Explain(t, err)
	t.Cleanup(m.bench.Close)
	m.Maps = m.bench.Maps()
	return m
}

// config returns the configuration with the defaults of the package's schema, as the agent passes it to a module.
func (m *Module) config(p *pkgs.Package, text string) map[string]any {
	m.t.Helper()
	var given map[string]any
	if text != "" {
		if err := json.Unmarshal([]byte(text), &given); err != nil {
			m.t.Fatalf("config: %v", err)
		}
	}
	config, err := p.WithDefaults(given)
	if err != nil {
		m.t.Fatal(err)
	}
	return config
}

// Run runs a frame through the module in a direction, ingress (to the service) or egress.
func (m *Module) Run(direction string, frame []byte) Result {
	m.t.Helper()
	r, err := m.bench.Run(direction, frame)
	if err != nil {
		m.t.Fatal(err)
	}
	return r
}

// CheckVerified fails the test if the verifier processed more than limit instructions for a chain with this module
// only.
func (m *Module) CheckVerified(limit uint32) {
	m.t.Helper()
	CheckVerified(m.t, m.bench.Program(), limit)
}

// Live returns the argument of Open for the module's maps. Requests to the agent have no effect unless the test
// replaces these functions.
func (m *Module) Live(attachments ...sdk.Attachment) sdk.Live {
	return sdk.Live{
		Module: m.name, Maps: m.Maps,
		Attachments: func() []sdk.Attachment { return attachments },
		Resolve:     func(netip.Addr) {},
		Release:     func(string) {},
		Inject:      func(uint32, []byte) error { return nil },
	}
}

// Headers of a frame.
type (
	Fields = pkttest.Fields
	Ports  = pkttest.Ports
	TCP    = pkttest.TCP
	ICMP   = pkttest.ICMP
)

// Frame returns an Ethernet frame with correct lengths and checksums.
func Frame(t testing.TB, f Fields) []byte {
	t.Helper()
	frames, err := pkttest.Packet{Fields: &f}.Frames("")
	if err != nil {
		t.Fatal(err)
	}
	return frames[0]
}
