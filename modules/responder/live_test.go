// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/modules/responder/apps/speedlimit/server"
	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// stage has a client and a server on a bridge, with the responder between the bridge and the server: on XDP and on TC
// of the server's veth.
type stage struct {
	*kernel
	on             sdk.Attachment // the interface that the program is attached to
	t              *testing.T
	lab            *netlab.Lab
	client, server *netlab.Host
	socket         string // where the module's routes are served
	sign           *server.Server
}

// kinds of attachment.
const (
	native  = "native XDP"
	generic = "generic XDP"
	tc      = "TC"
)

// build attaches the responder and serves its routes. On XDP it is on eth0 in the server's namespace, as for packets to
// a node; on TC on the bridge's end, as for a service.
func build(t *testing.T, kind, config string) *stage {
	return buildWith(t, kind, config, netlab.HostOptions{})
}

func buildWith(t *testing.T, kind, config string, opts netlab.HostOptions) *stage {
	t.Helper()
	sdktest.NeedRoot(t)
	if os.Getenv("KERB_MATRIX") != "" {
		t.Skip("timing of an emulated machine")
	}
	lab, err := netlab.NewIn("rspt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Close() })
	s := &stage{t: t, lab: lab}
	for name, host := range map[string]**netlab.Host{"client": &s.client, "server": &s.server} {
		if *host, err = lab.Host(name, opts); err != nil {
			t.Fatal(err)
		}
	}
	config = strings.ReplaceAll(config, "ADDRESSES", fmt.Sprintf(`"%s", "%s"`, s.server.Addr4(), s.server.Addr6()))
	hook := chain.XDP
	if kind == tc {
		hook = chain.TC
	}
	s.kernel = load(t, hook, config)
	s.attach(kind)
	s.serveRoutes()
	return s
}

func (s *stage) attach(kind string) {
	s.t.Helper()
	var l link.Link
	err := s.place(kind).Do(func() (err error) {
		switch kind {
		case tc:
			s.on = sdk.Attachment{Interface: s.server.Outer(), Ifindex: uint32(s.server.OuterIndex()), Kind: "veth"}
			l, err = link.AttachTCX(link.TCXOptions{Interface: s.server.OuterIndex(), Program: s.prog,
				Attach: ebpf.AttachTCXEgress})
		default:
			at, lookup := net.InterfaceByName(s.server.Interface())
			if lookup != nil {
				return lookup
			}
			s.on = sdk.Attachment{Interface: at.Name, Ifindex: uint32(at.Index), Kind: "veth"}
			flags := link.XDPGenericMode
			if kind == native {
				flags = link.XDPDriverMode
			}
			l, err = link.AttachXDP(link.XDPOptions{Interface: at.Index, Program: s.prog, Flags: flags})
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { l.Close() })
	if kind == native {
		s.receiveXDP()
	}
}

func (s *stage) place(kind string) *netlab.Namespace {
	if kind == tc {
		return s.lab.Node()
	}
	return s.server.Namespace
}

// receiveXDP makes the peer of the server's veth accept frames of XDP_TX, for which it needs NAPI, as with its own XDP
// program.
func (s *stage) receiveXDP() {
	s.t.Helper()
	pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2),
		asm.Return()}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { pass.Close() })
	err = s.lab.Node().Do(func() error {
		l, err := link.AttachXDP(link.XDPOptions{Interface: s.server.OuterIndex(), Program: pass, Flags: link.XDPDriverMode})
		if err == nil {
			s.t.Cleanup(func() { l.Close() })
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// serveRoutes runs a control plane and mounts its routes, as the agent does.
func (s *stage) serveRoutes() {
	s.t.Helper()
	s.socket = filepath.Join(s.t.TempDir(), "kerb.sock")
	listener, err := net.Listen("unix", s.socket)
	if err != nil {
		s.t.Fatal(err)
	}
	live := s.kernel.open(sdk.Live{Module: "sign", Maps: s.maps,
		Attachments: func() []sdk.Attachment { return []sdk.Attachment{s.on} }})
	mux := http.NewServeMux()
	mux.Handle("/v1/modules/sign/", http.StripPrefix("/v1/modules/sign", live.Handler()))
	routes := &http.Server{Handler: mux}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { live.Run(ctx) })
	work.Go(func() { _ = routes.Serve(listener) })
	s.t.Cleanup(func() {
		cancel()
		routes.Close()
		work.Wait()
	})
	// Until Run has detected that the interface is virtual, requests with partial checksums pass to the server.
	wait.Until(s.t, "the interface is known", func() bool {
		var kind uint32
		return s.maps[mapLocal4].Lookup(local4{Ifindex: s.on.Ifindex}, &kind) == nil
	})
}

// open starts the ordinary server.
func (s *stage) open(port int, m *server.Module) {
	s.t.Helper()
	var conn *net.UDPConn
	err := s.server.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: port})
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.sign = server.New(m)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		if err := s.sign.Serve(ctx, conn); err != nil {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(func() {
		cancel()
		work.Wait()
	})
}

// car sends a message from a port of the client, 0 for any, and returns the limit of the reply, or 0 after a timeout.
func (s *stage) car(to netip.Addr, from, port int, order binary.AppendByteOrder, op uint32) uint32 {
	s.t.Helper()
	var conn *net.UDPConn
	err := s.client.Do(func() (err error) {
		conn, err = net.DialUDP("udp", &net.UDPAddr{Port: from},
			net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, uint16(port))))
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(speed(order, op, 0xabcd)); err != nil {
		s.t.Fatal(err)
	}
	if op != 4 {
		return 0
	}
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	reply := make([]byte, 100)
	n, err := conn.Read(reply)
	if err != nil || n != 8 {
		s.t.Fatalf("to %v from port %d: %d bytes, %v", to, from, n, err)
	}
	if string(reply[:4]) != string(speed(order, 3, 0)[:4]) {
		s.t.Fatalf("reply %x", reply[:n])
	}
	return order.(binary.ByteOrder).Uint32(reply[4:])
}

// A real client uses the published protocol on every hook: requests that the kernel does not answer reach the server on
// the same port, and both count the same cars. The client's kernel verifies the replies' checksums; those of requests
// are partial, as on any veth, or complete, as from other hosts.
func TestLive(t *testing.T) {
	for _, kind := range []string{native, generic, tc} {
		for checksums, opts := range map[string]netlab.HostOptions{"partial": {}, "complete": {TxChecksumOff: true}} {
			t.Run(kind+"/"+checksums, func(t *testing.T) { testLive(buildWith(t, kind, roadConfig, opts)) })
		}
	}
}

const roadConfig = `{"listeners": [{"app": "speedlimit", "name": "road", "port": 8080, "sourceRate": 0, "addresses": [ADDRESSES]}]}`

func testLive(s *stage) {
	s.open(8080, server.NewModule(s.socket, "sign", "road"))
	const inKernel, above = 60, 5
	for i := range inKernel / 4 {
		for _, to := range []netip.Addr{s.server.Addr4(), s.server.Addr6()} {
			for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
				if got := s.car(to, 0, 8080, order, 4); got < 30 || got > 120 {
					s.t.Fatalf("car %d: %d km/h", i, got)
				}
			}
		}
	}
	if got := s.cars("road"); got != inKernel {
		s.t.Errorf("%d cars", got)
	}
	for range above { // the port of a responder is not answered in the kernel
		s.car(s.server.Addr4(), 8080, 8080, binary.LittleEndian, 4)
	}
	s.await(func(n server.Totals) bool {
		return n.KernelAnswered == inKernel && n.Answered == above && n.Cars == inKernel+above
	})
	if got := s.cars("road"); got != inKernel+above {
		s.t.Errorf("%d cars after %d that the server answered", got, above)
	}
	s.car(s.server.Addr6(), 0, 8080, binary.BigEndian, 5)
	s.await(func(n server.Totals) bool { return n.KernelLeft == 1 && n.Cars == inKernel+above-1 })
	if n := s.packets("road"); n["answered"] != inKernel || n["source_port"] != above || n["consumed"] != 1 {
		s.t.Errorf("packets %v", n)
	}
}

// Requests with an offloaded VLAN tag get replies with the tag. Native XDP cannot: a veth passes the tag as metadata.
func TestVLAN(t *testing.T) {
	const tag = 0x6005 // priority 3, VLAN 5
	for _, kind := range []string{generic, tc} {
		t.Run(kind, func(t *testing.T) {
			s := build(t, kind, roadConfig)
			socket := s.packetSocket()
			p := ask(4).with(func(p *packet) {
				p.src, p.dst, p.vlan = s.client.Addr4().String(), s.server.Addr4().String(), []uint16{tag}
			})
			frame := slices.Concat(s.server.MAC(), s.client.MAC(), p.frame()[12:])
			if _, err := unix.Write(socket, frame); err != nil {
				t.Fatal(err)
			}
			reply, got := receiveTagged(t, socket)
			if got != tag || len(reply) < 50 || binary.LittleEndian.Uint32(reply[42:]) != 3 ||
				binary.LittleEndian.Uint32(reply[46:]) != 120 {
				t.Errorf("tag %#x, reply %x; packets %v", got, reply, s.packets("road"))
			}
		})
	}
}

// packetSocket sends and receives frames at the client's interface.
func (s *stage) packetSocket() (fd int) {
	s.t.Helper()
	err := s.client.Do(func() (err error) {
		at, err := net.InterfaceByName(s.client.Interface())
		if err != nil {
			return err
		}
		const everything = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL&0xff<<8 // network byte order
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, everything); err != nil {
			return err
		}
		s.t.Cleanup(func() { unix.Close(fd) })
		return errors.Join(unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: everything, Ifindex: at.Index}),
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 30}))
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return fd
}

// receiveTagged waits for a frame with a VLAN tag, which the kernel has removed.
func receiveTagged(t *testing.T, fd int) (frame []byte, tag uint16) {
	t.Helper()
	data, control := make([]byte, 2000), make([]byte, 200)
	for {
		n, controls, _, from, err := unix.Recvmsg(fd, data, control, 0)
		if err != nil {
			t.Fatal(err)
		}
		messages, err := unix.ParseSocketControlMessage(control[:controls])
		if err != nil {
			t.Fatal(err)
		}
		own := from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING
		for _, m := range messages {
			aux := (*unix.TpacketAuxdata)(unsafe.Pointer(&m.Data[0]))
			if !own && m.Header.Type == unix.PACKET_AUXDATA && aux.Status&unix.TP_STATUS_VLAN_VALID != 0 {
				return data[:n], aux.Vlan_tci
			}
		}
	}
}

// Several requests in one packet of the client's kernel (UDP_SEGMENT) are segmented before native XDP; on other hooks
// they pass to the server. Each gets its reply.
func TestSegments(t *testing.T) {
	for _, kind := range []string{native, generic, tc} {
		t.Run(kind, func(t *testing.T) {
			s := build(t, kind, roadConfig)
			s.open(8080, nil)
			var conn *net.UDPConn
			err := s.client.Do(func() (err error) {
				conn, err = net.DialUDP("udp", nil, &net.UDPAddr{IP: s.server.Addr4().AsSlice(), Port: 8080})
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			raw, err := conn.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			if err := raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT,
					8)
			}); err != nil {
				t.Fatal(err)
			}
			if err != nil {
				t.Skip(err)
			}
			message := speed(binary.LittleEndian, 4, 0)
			if _, err := conn.Write(slices.Concat(message, message, message)); err != nil {
				t.Fatal(err)
			}
			_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
			for i := range 3 {
				if n, err := conn.Read(make([]byte, 100)); n != 8 || err != nil {
					t.Fatalf("reply %d: %d bytes, %v", i, n, err)
				}
			}
			want := map[string]int64{native: 3}[kind]
			s.await(func(n server.Totals) bool { return int64(n.Answered) == 3-want })
			if got := s.cars("road"); got != want {
				t.Errorf("%d cars counted in the kernel, want %d; packets %v", got, want, s.packets("road"))
			}
		})
	}
}

func (s *stage) await(right func(server.Totals) bool) {
	s.t.Helper()
	wait.Until(s.t, "the server's totals are right", func() bool {
		return right(s.sign.Totals())
	}, func() any { return s.sign.Totals() })
}

// shows waits until the sign shows a limit.
func (s *stage) shows(port int, limit uint32) {
	s.t.Helper()
	var got uint32
	wait.Until(s.t, fmt.Sprintf("the sign shows %d", limit), func() bool {
		got = s.car(s.server.Addr4(), 0, port, binary.LittleEndian, 4)
		return got == limit
	}, func() any { return got })
}

// The same server without the module.
func TestServerAlone(t *testing.T) {
	s := build(t, tc,
		`{"listeners": [{"app": "speedlimit", "name": "road", "port": 8080, "mode": "user", "addresses": [ADDRESSES]}]}`)
	s.open(8080, nil)
	for range 3 {
		if got := s.car(s.server.Addr4(), 0, 8080, binary.BigEndian, 4); got != 120 {
			t.Errorf("%d km/h", got)
		}
	}
	s.car(s.server.Addr6(), 0, 8080, binary.BigEndian, 5)
	s.await(func(n server.Totals) bool { return n == server.Totals{Cars: 2, Answered: 3, Left: 1} })
	if n := s.packets("road"); n["user_mode"] != 4 || n["answered"] != 0 {
		t.Errorf("packets %v", n)
	}
}

// In mixed mode the limit follows the count, immediately if configured. Values can be set through the API.
func TestMixedFollowsTheCount(t *testing.T) {
	s := build(t, native, `{"listeners": [
		{"app": "speedlimit", "name": "now", "port": 8080, "mode": "mixed", "recompute": "change", "sourceRate": 0, "addresses": [ADDRESSES]},
		{"app": "speedlimit", "name": "tick", "port": 8081, "mode": "mixed", "recompute": "20ms", "sourceRate": 0, "addresses": [ADDRESSES]}]}`)
	for port, name := range map[int]string{8080: "now", 8081: "tick"} {
		s.set(name+"/cars", "99")
		s.shows(port, 30)
		s.set(name+"/cars", "0")
		s.shows(port, 120)
	}
	if status := s.put("now/speed", `{"value": "1"}`); status != http.StatusNotFound {
		t.Errorf("a value that is not there: status %d", status)
	}
	if status := s.put("now/cars", `{"value": "-1"}`); status != http.StatusBadRequest {
		t.Errorf("-1 cars: status %d", status)
	}
}

func (s *stage) request(method, path, body string) *http.Response {
	s.t.Helper()
	response, err := client.New(s.socket).Send(s.t.Context(), method, "/v1/modules/sign/"+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	return response
}

func (s *stage) put(path, body string) int {
	s.t.Helper()
	response := s.request(http.MethodPut, "values/"+path, body)
	response.Body.Close()
	return response.StatusCode
}

func (s *stage) set(path, value string) {
	s.t.Helper()
	if status := s.put(path, fmt.Sprintf(`{"value": %q}`, value)); status != http.StatusOK {
		s.t.Fatalf("set %s: status %d", path, status)
	}
}

// Events have increasing states for all rates of requests. The last one includes all requests, and there are fewer
// events than requests.
func TestEvents(t *testing.T) {
	s := build(t, native,
		`{"listeners": [{"app": "speedlimit", "name": "road", "port": 8080, "sourceRate": 0, "addresses": [ADDRESSES]}]}`)
	response := s.request(http.MethodGet, "events?listener=road", "")
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	const requests = 20000
	frame := ask(4).with(func(p *packet) { p.dst = s.server.Addr4().String() }).frame()
	go func() {
		for r, n := newRun(), 0; n < requests; n++ {
			r.run(s.kernel, frame)
		}
	}()
	events, last := 0, uint64(0)
	for last < requests && lines.Scan() {
		var line struct {
			Listener string
			State    struct{ Answered uint64 }
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		if line.Listener != "road" || line.State.Answered < last {
			t.Fatalf("after %d answers: %s", last, lines.Text())
		}
		events, last = events+1, line.State.Answered
	}
	if last != requests || events > requests/2 {
		t.Errorf("%d events end with %d answers", events, last)
	}
}
