// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/sdk"
)

func TestConfigErrors(t *testing.T) {
	key := `"key": "` + testKey + `"`
	for text, field := range map[string]string{
		`{"nodes": [], "mode": "ipip"}`:                                                                                        "mode",
		`{"nodes": [], "unknown": 1}`:                                                                                          "unknown",
		`{"nodes": [], "mode": "oakestra", "keys": [{"id": 1, ` + key + `}]}`:                                                  "keys",
		`{"nodes": [], "mode": "oakestra", "network": 3}`:                                                                      "network",
		`{"nodes": [], "mtu": 500}`:                                                                                            "mtu",
		`{"nodes": [{"address": "node-1"}]}`:                                                                                   "nodes[0].address",
		`{"nodes": [{"address": "224.0.0.1"}]}`:                                                                                "nodes[0].address",
		`{"nodes": [{"address": "::ffff:192.0.2.1"}]}`:                                                                         "nodes[0].address",
		`{"nodes": [{"address": "192.0.2.1"}, {"address": "192.0.2.1"}]}`:                                                      "nodes[1].address",
		`{"nodes": [{"address": "2001:db8::1"}], "mode": "oakestra"}`:                                                          "nodes[0].address",
		`{"nodes": [{"address": "192.0.2.1", "subnets": ["10.0.0.1/8"]}]}`:                                                     "nodes[0].subnets[0]",
		`{"nodes": [{"address": "192.0.2.1", "subnets": ["10.0.0.0/8", "ten"]}]}`:                                              "nodes[0].subnets[1]",
		`{"nodes": [{"address": "192.0.2.1"}, {"address": "192.0.2.2", "subnets": ["192.0.2.0/24"]}]}`:                         "nodes[1].subnets[0]",
		`{"nodes": [{"address": "192.0.2.1", "subnets": ["10.0.0.1"]}, {"address": "192.0.2.2", "subnets": ["10.0.0.1/32"]}]}`: "nodes[1].subnets[0]",
		`{"nodes": [], "localAddresses": ["192.0.2.1", "192.0.2.2"]}`:                                                          "localAddresses[1]",
		`{"nodes": [], "keys": [{"id": 0, ` + key + `}]}`:                                                                      "keys[0].id",
		`{"nodes": [], "keys": [{"id": 1, ` + key + `}, {"id": 1, ` + key + `}]}`:                                              "keys[1].id",
		`{"nodes": [{"address": "192.0.2.2", "keys": [{"id": 0, ` + key + `}]}]}`:                                              "nodes[0].keys[0].id",
		`{"nodes": [], "keys": [{"id": 1, "mac": 3, ` + key + `}]}`:                                                            "keys[0].mac",
		`{"mode": "device", "nodes": [{"address": "192.0.2.2", "keys": [{"id": 1, ` + key + `}]}]}`:                            "keys",
		`{"nodes": [], "keys": [{"id": 1, "key": "0011"}]}`:                                                                    "keys[0].key",
	} {
		_, err := Control().Compile(json.RawMessage(text))
		var wrong *sdk.ConfigError
		if !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%s: %v, want an error at %s", text, err, field)
		}
	}
}

// Keys do not appear in errors, settings, reports or printed values.
func TestKeysAreNotRevealed(t *testing.T) {
	for _, text := range []string{keyed, strings.Replace(keyed, testKey, testKey+"00", 1)} {
		c, err := Control().Compile(json.RawMessage(text))
		all := fmt.Sprintf("%v %+v %#v", err, err, err)
		if err == nil {
			tun := c.(*config)
			settings, err := json.Marshal(tun.Settings())
			all += fmt.Sprintf("%s %v %+v %v %#v", settings, err, tun.Keys, tun.Keys, tun.Keys)
		}
		if strings.Contains(all, testKey[:8]) {
			t.Errorf("%s", all)
		}
	}
}

// instance returns an instance of a virtual service on a node.
func instance(name, node string, addrs ...string) v1alpha1.VirtualInstance {
	return v1alpha1.VirtualInstance{Name: name, Node: node, Addresses: addrs}
}

func virtual(name string, instances ...v1alpha1.VirtualInstance) sdk.VirtualService {
	return sdk.VirtualService{Name: name, Spec: v1alpha1.VirtualServiceSpec{Instances: instances}}
}

// goes returns the node to which the data plane sends a packet, or "" if it ignores it.
func (k *kernel) goes(dst string) string {
	k.t.Helper()
	src := "10.1.0.5"
	if strings.Contains(dst, ":") {
		src = "fd01::5"
	}
	ret, got := k.run(k.wrap, frame(ip(src, dst, 17, udpBody(9))), 0)
	if ret != tcRedirect {
		return ""
	}
	_, to := packet(got[14:]).addrs()
	return to.String()
}

func (k *kernel) wantGoes(want map[string]string) {
	k.t.Helper()
	for dst, to := range want {
		if got := k.goes(dst); got != to {
			k.t.Errorf("%s goes to %q, want %q", dst, got, to)
		}
	}
}

// Instances of virtual services are added, moved and removed without a new map set.
func TestVirtualServices(t *testing.T) {
	k := loadTunnel(t, `{"nodes": []}`)
	k.wantGoes(map[string]string{"10.18.0.5": "", "fd18::5": ""})
	k.tell(sdk.VirtualServiceUpdate{Put: []sdk.VirtualService{
		virtual("web", instance("web-0", "192.0.2.9", "10.18.0.5", "fd18::5"), instance("web-1", "2001:db8::9", "10.18.0.6"),
			instance("web-2", "", "10.18.0.7")),
		virtual("db", instance("db-0", "192.0.2.1", "10.18.0.8"))}})
	k.wantGoes(map[string]string{"10.18.0.5": "192.0.2.9", "fd18::5": "192.0.2.9", "10.18.0.6": "2001:db8::9",
		"10.18.0.7": "", "10.18.0.8": ""})
	k.tell(sdk.VirtualServiceUpdate{
		Put: []sdk.VirtualService{virtual("web", instance("web-0", "2001:db8::9", "10.18.0.5"))}})
	k.wantGoes(map[string]string{"10.18.0.5": "2001:db8::9", "fd18::5": "", "10.18.0.6": ""})
	k.tell(sdk.VirtualServiceUpdate{Reset: true})
	k.wantGoes(map[string]string{"10.18.0.5": "2001:db8::9"})
	k.tell(sdk.VirtualServiceUpdate{Complete: true})
	k.wantGoes(map[string]string{"10.18.0.5": ""})
}

// A restarted control plane keeps the contents of the maps until it has received everything.
func TestAdoptsAfterRestart(t *testing.T) {
	k := loadTunnel(t, unkeyed)
	k.tell(sdk.VirtualServiceUpdate{
		Put: []sdk.VirtualService{virtual("web", instance("web-0", "192.0.2.9", "10.18.0.5"))}})
	k.restart(compileConfig(t, unkeyed))
	k.refresh()
	k.wantGoes(map[string]string{"10.18.0.5": "192.0.2.9", "10.2.0.5": "192.0.2.2"})
	k.tell(sdk.VirtualServiceUpdate{Reset: true, Complete: true})
	k.wantGoes(map[string]string{"10.18.0.5": "", "10.2.0.5": "192.0.2.2"})
	if err := k.Health(); err != nil {
		t.Error(err)
	}
}

// A map set is filled while the current one is notified of new nodes: no two nodes get the same index.
func TestFillWhileNodesCome(t *testing.T) {
	k := loadTunnel(t, `{"nodes": []}`)
	for round := range 20 {
		next := compileConfig(t, fmt.Sprintf(`{"nodes": [{"address": "192.0.2.%d", "subnets": ["10.2.%d.0/24"]}]}`,
			round+1, round))
		var filling sync.WaitGroup
		filling.Go(func() {
			if err := next.Fill(k.live.Maps); err != nil {
				t.Error(err)
			}
		})
		name := fmt.Sprintf("web-%d", round)
		k.tell(sdk.VirtualServiceUpdate{
			Put: []sdk.VirtualService{
				virtual(name, instance("a", fmt.Sprintf("198.51.100.%d", round+1), fmt.Sprintf("10.18.0.%d", round+1)))}})
		filling.Wait()
		k.wantGoes(map[string]string{fmt.Sprintf("10.18.0.%d", round+1): fmt.Sprintf("198.51.100.%d", round+1)})
		places, err := readPlaces(k.live.Maps)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(places.nodes[:],
			func(n node) bool { return n.Addr.addr() == netip.AddrFrom4([4]byte{192, 0, 2, byte(round + 1)}) }) {
			t.Fatalf("round %d: the node of the new map set has lost its place", round)
		}
	}
}

// A node that returns with a map set that is being filled keeps its index.
func TestSweepSparesWhatIsFilled(t *testing.T) {
	k := loadTunnel(t, `{"nodes": []}`)
	k.tell(sdk.VirtualServiceUpdate{Put: []sdk.VirtualService{virtual("web", instance("web-0", "192.0.2.2", "10.18.0.5"))},
		Reset: true, Complete: true})
	k.tell(sdk.VirtualServiceUpdate{Remove: []string{"web"}})
	k.sweep()
	next := compileConfig(t, unkeyed) // has 192.0.2.2
	k.change(next)
	k.sweep()
	k.restart(next)
	k.refresh()
	k.wantGoes(map[string]string{"10.2.0.5": "192.0.2.2"})
}

// Nodes, subnets, keys, the port and the network change and change back without replacing the program. The previous
// control plane, which still runs for a moment, does not write to the active half.
func TestValuesChange(t *testing.T) {
	k := loadTunnel(t, keyed)
	rotated := strings.Replace(keyed, `"keys": [{"id": 3, "key": "`+testKey+`"}, `, `"port": 7188, "keys": [`, 1)
	rotated = strings.Replace(rotated, `"network": 7`, `"network": 8`, 1)
	rotated = strings.Replace(rotated, `"10.2.0.0/24"`, `"10.99.0.0/24"`, 1)
	if rotated = strings.Replace(rotated, `}], "network"`, `}, {"id": 5, "key": "`+testKey+`"}], "network"`, 1); rotated == keyed {
		t.Fatal("nothing has changed")
	}
	before := wires["keyed"]
	after := wire{port: 7188, network: 8, keyID: 4, key: keyBytes("ffeeddccbbaa99887766554433221100")}
	for round := range 3 { // the second half, the first one again, and the second one over its old contents
		for _, step := range []struct {
			config, stays, moves string
			wire                 wire
		}{
			{rotated, "10.99.0.7", "10.2.0.7", after},
			{keyed, "10.2.0.7", "10.99.0.7", before},
		} {
			next := compileConfig(t, step.config)
			k.change(next)
			k.tell(sdk.VirtualServiceUpdate{Put: []sdk.VirtualService{
				virtual("web", instance("web-0", fmt.Sprintf("198.51.100.%d", round+1), "10.18.0.5"))}})
			k.check("the control plane of before", step.stays, step.moves, step.wire)
			k.restart(next)
			k.tell(sdk.VirtualServiceUpdate{Reset: true, Complete: true})
			k.check("its own", step.stays, step.moves, step.wire)
		}
	}
}

// check sends a packet to an address of a node and to an unknown one, and receives one from the former.
func (k *kernel) check(control, to, none string, w wire) {
	k.t.Helper()
	k.wantGoes(map[string]string{to: "192.0.2.2", none: ""})
	inner := ip(to, "10.1.0.5", 17, udpBody(9))
	if ret, why := k.reason(k.unwrap(), fromTo(w, "192.0.2.2").arrival(k, inner)); ret != tcRedirect {
		k.t.Errorf("control plane: %s: action %d %q", control, ret, why)
	}
	wrong := w
	wrong.network++
	if ret, why := k.reason(k.unwrap(), fromTo(wrong, "192.0.2.2").arrival(k, inner)); why != "other_network" {
		k.t.Errorf("control plane: %s: another network: action %d %q", control, ret, why)
	}
}

// Unused nodes lose their index after a delay, since another map set may be about to use it.
func TestSweepFreesNodes(t *testing.T) {
	k := loadTunnel(t, unkeyed)
	k.tell(sdk.VirtualServiceUpdate{
		Put: []sdk.VirtualService{virtual("web", instance("web-0", "192.0.2.9", "10.18.0.5"))}})
	k.tell(sdk.VirtualServiceUpdate{Remove: []string{"web"}})
	for _, want := range []int{4, 3, 3} {
		k.sweep()
		report, err := k.report()
		if err != nil || len(report.Nodes) != want {
			t.Fatalf("%d nodes, %v; want %d", len(report.Nodes), err, want)
		}
	}
	k.wantGoes(map[string]string{"10.2.0.5": "192.0.2.2"})
}

// Packets are delivered to new services, and no longer to removed ones; chains on ingress are not bypassed.
func TestInstances(t *testing.T) {
	k := loadTunnel(t, unkeyed)
	w := fromTo(wires["unkeyed"], "192.0.2.2")
	inner := ip("10.2.0.7", "10.1.0.6", 17, udpBody(9))
	if _, why := k.reason(k.unwrap(), w.arrival(k, inner)); why != "not_local" {
		t.Errorf("before it is there: %q", why)
	}
	api := sdk.Attachment{Service: "api", Interface: "veth1", Ifindex: 79, MAC: "02:00:00:00:00:06",
		Addresses: []string{"10.1.0.6/24"}, Ingress: []string{"fw"}}
	k.instances = append(k.instances, api)
	k.AttachmentChanged(api, true)
	ret, got := k.run(k.unwrap(), w.arrival(k, inner), 0)
	if ret != tcRedirect || !slices.Equal(got[:6], []byte{2, 0, 0, 0, 0, 6}) {
		t.Errorf("action %d, %x", ret, got[:12])
	}
	k.tell(sdk.VirtualServiceUpdate{
		Put: []sdk.VirtualService{virtual("web", instance("web-0", "192.0.2.9", "10.18.0.5"))}})
	for query, want := range map[string]string{"": `["10.1.0.5","10.1.0.6","fd01::5"]`, "?address=10.1.0.6": `["10.1.0.6"]`,
		"?address=fd01::5": `["fd01::5"]`, "?address=10.1.0.7": `[]`, "?address=10.18.0.5": `[]`, "?address=": ""} {
		record := httptest.NewRecorder()
		k.Handler().ServeHTTP(record, httptest.NewRequest("GET", "/addresses"+query, nil))
		got := strings.TrimSpace(record.Body.String())
		if refused := record.Code == http.StatusBadRequest; refused != (want == "") || !refused && got != want {
			t.Errorf("addresses%s: %d %s", query, record.Code, got)
		}
	}
	hosts := map[address]end{}
	for _, i := range k.instances {
		addServices(hosts, i, always)
	}
	if hosts[inner.to()].Flags != 0 || hosts[ip("10.2.0.7", "10.1.0.5", 17, udpBody(9)).to()].Flags != straight {
		t.Errorf("%+v", hosts)
	}
	k.instances = k.instances[:2]
	k.AttachmentChanged(api, false)
	if _, why := k.reason(k.unwrap(), w.arrival(k, inner)); why != "not_local" {
		t.Errorf("after it has gone: %q", why)
	}
	k.instances = k.instances[:1]
	k.refresh()
	if err := k.Health(); err == nil {
		t.Error("healthy without an underlay")
	}
	if ret, why := k.reason(k.wrap, frame(ip("10.1.0.5", "10.2.0.7", 17, udpBody(9)))); ret != tcShot || why != "kerb_8" {
		t.Errorf("without an underlay: action %d %q", ret, why)
	}
}

// A service that takes the address of another service, or of an instance on another node, does not get their packets.
func TestStolenAddress(t *testing.T) {
	k := loadTunnel(t, unkeyed)
	k.tell(sdk.VirtualServiceUpdate{
		Put: []sdk.VirtualService{virtual("web", instance("web-0", "192.0.2.9", "10.18.0.5"))}})
	victim := ip("10.2.0.7", "10.1.0.5", 17, udpBody(9))
	want, err := sdk.ReadTable[address, end](k.live.Maps, mapHosts)
	if err != nil || want[victim.to()].Ifindex == 0 {
		t.Fatalf("%+v, %v", want, err)
	}
	for _, ifindex := range []uint32{1, 79} { // before and after the victim's
		thief := sdk.Attachment{Service: "thief", Ifindex: ifindex, MAC: "02:00:00:00:00:06",
			Addresses: []string{"10.1.0.5/32", "10.18.0.5/32"}}
		k.instances = append(k.instances, thief)
		slices.SortFunc(k.instances, func(a, b sdk.Attachment) int { return int(a.Ifindex) - int(b.Ifindex) })
		for _, restarted := range []bool{false, true} {
			if restarted {
				k.restart(compileConfig(t, unkeyed))
			}
			k.refresh()
			if got, err := sdk.ReadTable[address, end](k.live.Maps, mapHosts); err != nil || !maps.Equal(got, want) {
				t.Errorf("thief at %d, restarted %t: %+v, want %+v, %v", ifindex, restarted, got, want, err)
			}
		}
		k.instances = slices.DeleteFunc(k.instances, func(i sdk.Attachment) bool { return i.Service == "thief" })
	}
}

func (p packet) to() address {
	_, dst := p.addrs()
	return dst.As16()
}

func TestReportAndMetrics(t *testing.T) {
	k := loadTunnel(t, keyed)
	for range 3 {
		k.run(k.wrap, frame(ip("10.1.0.5", "10.2.0.7", 17, udpBody(72))), 0)
	}
	w := fromTo(wires["keyed"], "192.0.2.2")
	k.run(k.unwrap(), w.arrival(k, ip("10.2.0.7", "10.1.0.5", 17, udpBody(72))), 0)
	k.run(k.unwrap(), w.arrival(k, ip("10.2.0.7", "10.1.0.77", 17, udpBody(72))), 0)
	record := httptest.NewRecorder()
	k.Handler().ServeHTTP(record, httptest.NewRequest("GET", "/nodes", nil))
	var report Report
	if err := json.Unmarshal(record.Body.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	n := report.Nodes[1]
	if want := (Stats{SentPackets: 3, SentBytes: 300, ReceivedPackets: 1, ReceivedBytes: 100,
		Errors: 1}); n.Stats != want || !report.Nodes[0].Local {
		t.Errorf("%s", record.Body)
	}
	if n.Interface != "eth0" || n.Source != "192.0.2.1" || n.MTU != 1460 || !slices.Equal(report.Keys, []int{3, 4}) {
		t.Errorf("%+v", n)
	}
	samples, err := k.Collect()
	if err != nil {
		t.Fatal(err)
	}
	found := 0.0
	for _, s := range samples {
		if s.Labels["node"] == "192.0.2.2" && s.Labels["direction"] == "sent" && s.Name == "bytes_total" {
			found = s.Value
		}
	}
	if found != 300 {
		t.Errorf("%+v", samples)
	}
}

// The structures of C and Go have the same layout.
func TestLayouts(t *testing.T) {
	p := pkgstest.Package(t)
	spec, err := p.Spec(string(chain.TC))
	if err != nil {
		t.Fatal(err)
	}
	for name, mine := range map[string]any{"tun_end": end{}, "tun_node": node{}, "tun_stats": Stats{}, "tun_key": macKey{},
		"tun_keys": nodeKeys{}, "tun_prefix": prefix{}, "tun_name": name{}} {
		var theirs *btf.Struct
		if err := spec.Types.TypeByName(name, &theirs); err != nil {
			t.Fatal(err)
		}
		typ := reflect.TypeOf(mine)
		offsets := map[uint32]string{}
		for _, m := range theirs.Members {
			offsets[m.Offset.Bytes()] = m.Name
		}
		for i := range typ.NumField() {
			if f := typ.Field(i); offsets[uint32(f.Offset)] == "" {
				t.Errorf("%s: nothing begins where %s does", name, f.Name)
			}
		}
		if typ.NumField() != len(theirs.Members) || uint32(typ.Size()) != theirs.Size {
			t.Errorf("%s: %d fields in %d bytes, in C %d in %d", name, typ.NumField(), typ.Size(), len(theirs.Members),
				theirs.Size)
		}
	}
	for name, want := range map[string]uint32{mapHosts: maxHosts, mapNodes: maxNodes, mapStats: maxNodes,
		mapNames: maxNames} {
		if got := spec.Maps[name].MaxEntries; got != want {
			t.Errorf("map %s has %d entries, want %d", name, got, want)
		}
	}
}
