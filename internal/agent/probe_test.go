// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/sdk"
)

// probeCommand makes the test binary the control plane of the package that probePackage makes.
const probeCommand = "probe-control"

// probe is a control plane that reports what it receives, and executes commands of tests.
type probe struct {
	live sdk.Live

	mu       sync.Mutex
	services map[string]sdk.VirtualService
	fresh    map[string]bool
	unknown  []netip.Addr
	resets   int
	changes  []string // of instances
	refuse   bool
	models   map[string]int64 // generation by name
	freshM   map[string]bool
}

func (*probe) Compile(json.RawMessage) (sdk.Compiled, error) {
	return &probe{}, nil
}
func (*probe) Settings() sdk.Settings { return sdk.Settings{} }
func (*probe) Fill(sdk.Maps) error    { fills.Add(1); return nil }

var fills atomic.Int64 // of this process

func (*probe) Open(live sdk.Live) (sdk.Running, error) {
	return &probe{live: live, services: map[string]sdk.VirtualService{}, models: map[string]int64{}}, nil
}

func (p *probe) VirtualServices(u sdk.VirtualServiceUpdate) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse {
		return fmt.Errorf("the table of the probe is full")
	}
	if u.Reset {
		p.fresh = map[string]bool{}
		p.resets++
	}
	for _, s := range u.Put {
		p.services[s.Name], p.fresh[s.Name] = s, true
	}
	for _, name := range u.Remove {
		delete(p.services, name)
	}
	if u.Complete {
		maps.DeleteFunc(p.services, func(name string, _ sdk.VirtualService) bool { return !p.fresh[name] })
	}
	p.unknown = append(p.unknown, u.Unknown...)
	return nil
}

// Models uses those whose name begins with m, and refuses documents of version 13.
func (p *probe) Models(u sdk.ModelUpdate) (answer sdk.ModelAnswer, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if u.Reset {
		p.freshM = map[string]bool{}
	}
	for _, m := range u.Put {
		var doc struct{ Version int }
		if err := json.Unmarshal(m.Document, &doc); err != nil {
			return answer, err
		}
		switch p.freshM[m.Name] = true; {
		case doc.Version == 13:
			answer.Refused = map[string]string{m.Name: "13 is no good version"}
			continue
		case m.Name[0] == 'm':
			answer.Using = append(answer.Using, m.Name)
		}
		p.models[m.Name] = m.Generation
	}
	for _, name := range u.Remove {
		delete(p.models, name)
	}
	if u.Complete {
		maps.DeleteFunc(p.models, func(name string, _ int64) bool { return !p.freshM[name] })
	}
	return answer, nil
}

// Conditions has one with the number of models.
func (p *probe) Conditions() ([]sdk.Condition, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return []sdk.Condition{{Type: "Probe", Status: "True", Reason: "Well", Message: fmt.Sprint(len(p.models), " models")}},
		nil
}

func (p *probe) AttachmentChanged(i sdk.Attachment, there bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changes = append(p.changes, fmt.Sprint(i.Service, " ", there, " ", i.Ingress))
}

// probeState is what the probe reports.
type probeState struct {
	Running   bool
	Services  map[string]sdk.VirtualService
	Unknown   []netip.Addr
	Resets    int
	Changes   []string
	Instances []sdk.Attachment
	Models    map[string]int64
	Fills     int
}

func (p *probe) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		state := probeState{true, p.services, p.unknown, p.resets, p.changes, p.live.Attachments(), p.models,
			int(fills.Load())}
		_ = json.NewEncoder(w).Encode(state)
	})
	mux.HandleFunc("POST /want/{addr}", func(_ http.ResponseWriter, r *http.Request) {
		p.live.Resolve(netip.MustParseAddr(r.PathValue("addr")))
	})
	mux.HandleFunc("POST /refuse/{whether}", func(_ http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.refuse = r.PathValue("whether") == "true"
	})
	mux.HandleFunc("POST /inject/{ifindex}", func(w http.ResponseWriter, r *http.Request) {
		ifindex, _ := strconv.Atoi(r.PathValue("ifindex"))
		frame, _ := io.ReadAll(r.Body)
		if err := p.live.Inject(uint32(ifindex), frame); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("GET /flows", func(w http.ResponseWriter, r *http.Request) {
		after, _ := strconv.ParseUint(r.FormValue("after"), 10, 64) // answers that a client that follows has got
		lost := []v1.MissingFlows{{Service: "web", UnrecordedPackets: 3}, {Service: "db", UnrecordedPackets: 7 + after/2}}
		_ = json.NewEncoder(w).Encode(sdk.FlowRecords{Now: after + 1, Missing: lost,
			Flows: []sdk.FlowRecord{{Flow: v1.Flow{Source: "192.0.2.77"}}}})
	})
	mux.HandleFunc("GET /misuse", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(misuse()) })
	return mux
}

// misuse attempts forbidden operations on a packet socket, and returns the results.
func misuse() map[string]string {
	fd := -1
	for n := 3; n < 256; n++ {
		if domain, err := unix.GetsockoptInt(n, unix.SOL_SOCKET, unix.SO_DOMAIN); err == nil && domain == unix.AF_PACKET {
			fd = n
		}
	}
	if fd < 0 {
		return map[string]string{"socket": "none"}
	}
	all := &unix.SockaddrLinklayer{Protocol: 0x0300, Ifindex: 1} // ETH_P_ALL, the loopback interface
	frame := make([]byte, 60)
	var request [40]byte
	copy(request[:], "lo")
	_, _, ioctl := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCGIFADDR, uintptr(unsafe.Pointer(&request)))
	_, _, own := unix.Syscall(unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW, 0)
	tries := map[string]error{
		"bind to all":        unix.Bind(fd, all),
		"send to another":    unix.Sendto(fd, frame, 0, all),
		"message to another": unix.Sendmsg(fd, frame, nil, all, 0),
		"ring": unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_RX_RING,
			&unix.TpacketReq{Block_size: 4096, Block_nr: 1, Frame_size: 2048, Frame_nr: 2}),
		"join": unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
			&unix.PacketMreq{Ifindex: 1, Type: unix.PACKET_MR_PROMISC}),
		"take the filter":   unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0),
		"unlock the filter": unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_LOCK_FILTER, 0),
		"one of its own":    own,
		"address":           ioctl,
	}
	out := map[string]string{}
	for name, err := range tries {
		out[name] = "allowed"
		if err != nil && err != unix.Errno(0) {
			out[name] = "refused"
		}
	}
	n, _, err := unix.Recvfrom(fd, make([]byte, 2048), unix.MSG_DONTWAIT)
	out["receive"] = fmt.Sprint(n, " ", err)
	return out
}

// probePackage makes a package of the module pass and the probe.
func probePackage(t *testing.T) string {
	t.Helper()
	dir := openDir(t)
	if err := os.CopyFS(dir, os.DirFS(testPackage(t, "pass"))); err != nil {
		t.Fatal(err)
	}
	manifest, err := os.ReadFile(dir + "/kerb.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := string(manifest) + "capabilities: [virtualServices, models, inject]\n" +
		"control: {command: [./control, " + probeCommand + "], files: [control], memory: 256Mi}\n" +
		"configSchema: {type: object, properties: {number: {type: integer}}}\n"
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/kerb.yaml", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/control", self, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func sortedTargets(s sdk.VirtualService) (out []string) {
	for _, i := range s.Spec.Instances {
		out = append(out, fmt.Sprint(i.Name, i.Addresses, i.Service, i.Node))
	}
	slices.Sort(out)
	return out
}
