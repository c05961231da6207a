// SPDX-License-Identifier: Apache-2.0

package coap

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/modules/responder/app"
	"github.com/kerb-edge/kerb/sdk"
)

// responder is the package that this application is part of, compiled once. The kernels of the matrix have no compiler;
// there it uses prebuilt objects.
var responder = sync.OnceValues(func() (*pkgs.Package, error) {
	const source = "../.."
	if os.Getenv("KERB_MATRIX") != "" {
		return pkgs.Open(source)
	}
	dir, err := os.MkdirTemp("", "responder-coap-test-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for _, pattern := range []string{"kerb.yaml", "*.h", "*.bpf.c", "apps/*/*.h"} {
		files, err := filepath.Glob(filepath.Join(source, pattern))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if err := copyFile(filepath.Join(dir, strings.TrimPrefix(file, source)), file); err != nil {
				return nil, err
			}
		}
	}
	var out strings.Builder
	if err := pkgs.Build(context.Background(), dir, pkgs.Options{Out: &out}); err != nil {
		return nil, errors.New(err.Error() + "\n" + out.String())
	}
	return pkgs.Open(dir)
})

func copyFile(to, from string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o644)
}

// hook is a hook of the data plane, with its return codes.
type hook struct {
	name              string
	side              chain.Side
	next, reply, drop int32
}

var hooks = []hook{{"xdp", chain.OnXDP, 2, 3, 1}, {"tc", chain.OnTCEgress, -1, 7, 2}}

const (
	slot = 5
	port = 5683
)

// device is the responder with one listener, loaded but not attached.
type device struct {
	hook
	loaded   *dataplane.Loaded
	maps     sdk.Maps
	listener *Listener
	model    *Model

	amplification int
}

// listenerConfig mirrors struct rsp_listener.
type listenerConfig struct {
	Slot                             uint32
	App, Drop                        uint8
	MinRequest, MaxRequest, MaxReply uint16
	TotalRate                        uint32
	SourceCost, SourceBurst          uint64
	Config                           [app.Words]uint32
	Amplification, Partial           uint32
}

const (
	maxReply      = 1232
	amplification = 3
)

// load sets no amplification limit, so that other tests need no proofs.
func load(t testing.TB, h hook, config any) *device { return loadWith(t, h, config, 0) }

func loadWith(t testing.TB, h hook, config any, amplification int) *device {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for BPF")
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	p, err := responder()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	d := &device{hook: h, amplification: amplification}
	if d.listener, err = compile(app.Listener{Name: "coap", Port: port, Config: raw}); err != nil {
		t.Fatal(err)
	}
	settings := coap{}.Settings([]app.Service{d.listener})
	settings.Constants["limit_sources"], settings.Constants["limit_total"] = false, false
	for _, other := range []string{"echo", "linear", "speedlimit"} {
		settings.Constants["use_"+other] = false
	}
	d.loaded, err = dataplane.Load(h.side, chain.Ingress, dataplane.Module{
		Name: "coap", ID: "c0a9c0a9", ConfigMaps: p.Maps.Config, Settings: settings,
		Spec: func(h chain.Hook) (*ebpf.CollectionSpec, error) { return p.Spec(string(h)) },
		Fill: func(maps sdk.Maps) error { return errors.Join(d.fill(maps), coap{}.Fill(maps, d.placed())) },
	})
	var rejected *dataplane.RejectedError
	if errors.As(err, &rejected) {
		t.Fatalf("%v\n%s", err, rejected.Log[max(0, len(rejected.Log)-4000):])
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.loaded.Close)
	d.maps = d.loaded.Maps["coap"]
	d.model = &Model{Hosts: map[string]bool{}, Resources: map[string]*Resource{}, MaxReply: maxReply,
		Duplicates:    d.listener.duplicates,
		Amplification: d.amplification}
	if err := d.maps[mapSecrets].Lookup(uint32(0), &d.model.Secret); err != nil {
		t.Fatal(err)
	}
	for _, host := range d.listener.hosts {
		d.model.Hosts[host] = true
	}
	for _, r := range d.listener.resources {
		d.model.Resources[string(r.path)] = &Resource{now: r.value(nil)}
	}
	return d
}

func (d *device) placed() []app.PlacedListener {
	return []app.PlacedListener{{Name: "coap", Port: port, Slot: slot, Service: d.listener}}
}

var serverAddrs = []string{"198.51.100.1", "2001:db8:1::1"}

// fill writes the responder's maps: one listener without rate limits.
func (d *device) fill(maps sdk.Maps) error {
	half, err := maps.FreeHalf()
	if err != nil {
		return err
	}
	ports := make([]byte, 8+2*8192)
	binary.NativeEndian.PutUint32(ports[8+port/32*4:], 1<<(port%32))
	l := listenerConfig{Slot: slot, MinRequest: 1, MaxRequest: 1472, MaxReply: maxReply, Partial: 2}
	l.Config, l.Amplification = d.listener.Params().Config, uint32(d.amplification)
	err = maps["ports"].Put(uint32(0), ports)
	for _, text := range serverAddrs {
		addr := netip.MustParseAddr(text)
		key := binary.BigEndian.AppendUint16(addr.AsSlice(), port)
		name := "listeners4"
		if addr.Is6() {
			name = "listeners6"
		}
		err = errors.Join(err, maps[name].Put(binary.NativeEndian.AppendUint16(key, uint16(half)), l))
	}
	return err
}

// serverOf returns the server in the family of a client.
func serverOf(from netip.AddrPort) netip.AddrPort {
	text := serverAddrs[0]
	if from.Addr().Is6() {
		text = serverAddrs[1]
	}
	return netip.AddrPortFrom(netip.MustParseAddr(text), port)
}

// send runs a request through the data plane.
func (d *device) send(t testing.TB, from, to netip.AddrPort, datagram []byte) ([]byte, Verdict) {
	t.Helper()
	in := frame(from, to, datagram)
	opts := &ebpf.RunOptions{Data: in, DataOut: make([]byte, 2048)}
	action, err := d.loaded.Program.Run(opts)
	if err != nil {
		t.Fatal(err)
	}
	switch int32(action) {
	case d.next:
		if string(opts.DataOut) != string(in) {
			t.Error("a request that passes to the server was changed")
		}
		return nil, Pass
	case d.drop:
		return nil, Ignore
	case d.reply:
		src, dst, payload, err := unframe(opts.DataOut)
		if err != nil || src != to || dst != from {
			t.Errorf("reply from %v to %v: %v", src, dst, err)
		}
		return payload, Reply
	}
	t.Fatalf("action %d", int32(action))
	return nil, Pass
}

// set sets the value of a resource in the maps and in the model; nil removes it.
func (d *device) set(t testing.TB, path string, data []byte, lease time.Duration) {
	t.Helper()
	segments, err := ParsePath(path)
	if err != nil {
		t.Fatal(err)
	}
	key := encodePath(segments)
	r := d.listener.byPath[string(key)]
	var s *setting
	if data != nil {
		s = newSetting(data, lease)
	}
	table, err := openTable(d.maps)
	if err != nil {
		t.Fatal(err)
	}
	defer table.close()
	if err := table.set(newName(slot, 0, r.path), r, s); err != nil {
		t.Fatal(err)
	}
	d.model.Resources[string(key)].Set(r.value(s))
}
