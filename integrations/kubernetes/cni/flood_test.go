// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// floodTargets is the variable of the environment that makes this program a process in a pod: addresses to flood.
const floodTargets = "KERB_TEST_FLOOD"

const floodPort = 9999

// counts are packets by what they are: "tcp4", "udp6" and so on.
type counts map[string]uint64

var kinds = []string{"tcp4", "tcp6", "udp4", "udp6"}

// flood waits for a byte on standard input; then its first instructions send UDP packets and SYNs to all targets until
// the input ends. It prints how many the kernel took.
func flood(targets string) int {
	var all []unix.Sockaddr
	for text := range strings.SplitSeq(targets, ",") {
		all = append(all, sockaddr(netip.MustParseAddr(text)))
	}
	ended, udp := atomic.Bool{}, make([]int, len(all))
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return 1
	}
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		ended.Store(true)
	}()
	sent, open := counts{}, []int{}
	for !ended.Load() {
		for i, to := range all {
			if fd, ok := connect(to, unix.SOCK_STREAM); ok {
				sent[name(to, unix.SOCK_STREAM)]++
				open = append(open, fd)
			}
			if udp[i] == 0 {
				udp[i], _ = connect(to, unix.SOCK_DGRAM)
			}
			for range 8 {
				if _, err := unix.Write(udp[i], []byte("leak")); err == nil {
					sent[name(to, unix.SOCK_DGRAM)]++
				}
			}
		}
		for len(open) > 256 { // a SYN may wait for the address of the gateway: its socket stays
			unix.Close(open[0])
			open = open[1:]
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(sent); err != nil {
		return 1
	}
	return 0
}

func sockaddr(to netip.Addr) unix.Sockaddr {
	if to.Is4() {
		return &unix.SockaddrInet4{Addr: to.As4(), Port: floodPort}
	}
	return &unix.SockaddrInet6{Addr: to.As16(), Port: floodPort}
}

func name(to unix.Sockaddr, kind int) string {
	family := "4"
	if _, ok := to.(*unix.SockaddrInet6); ok {
		family = "6"
	}
	if kind == unix.SOCK_STREAM {
		return "tcp" + family
	}
	return "udp" + family
}

func connect(to unix.Sockaddr, kind int) (int, bool) {
	family := unix.AF_INET
	if _, ok := to.(*unix.SockaddrInet6); ok {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, false
	}
	if err = unix.Connect(fd, to); err != nil && err != unix.EINPROGRESS {
		unix.Close(fd)
		return 0, false
	}
	return fd, true
}

// flooder is a process in a pod that has not begun yet.
type flooder struct {
	cmd   *exec.Cmd
	start interface{ Write([]byte) (int, error) }
	stop  func() error
	out   *strings.Builder
}

// newFlooder starts a process in a sandbox, which may have no interface yet.
func newFlooder(t *testing.T, p *pod, to *netlab.Host) *flooder {
	t.Helper()
	cmd := exec.Command("nsenter", "--net="+p.netns, "--", os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s,%s", floodTargets, to.Addr4(), to.Addr6()))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	f := &flooder{cmd, in, in.Close, &strings.Builder{}}
	cmd.Stdout, cmd.Stderr = f.out, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return f
}

func (f *flooder) begin(t *testing.T) {
	t.Helper()
	if _, err := f.start.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
}

// end ends the process and returns what it sent, which must be some of each kind.
func (f *flooder) end(t *testing.T) counts {
	t.Helper()
	sent := counts{}
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	if err := f.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(f.out.String()), &sent); err != nil {
		t.Fatalf("%q: %v", f.out, err)
	}
	for _, kind := range kinds {
		if sent[kind] == 0 {
			t.Errorf("the flood sent no %s: %v", kind, sent)
		}
	}
	return sent
}

// receiver counts the packets of floods that reach a host behind the node.
type receiver struct {
	*netlab.Host
	fd int
}

func (c *cluster) receiver() *receiver {
	c.T.Helper()
	r := &receiver{Host: c.Host("receiver"), fd: -1}
	err := r.Do(func() (err error) {
		r.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL)))
		return err
	})
	if err != nil {
		c.T.Fatal(err)
	}
	c.T.Cleanup(func() { unix.Close(r.fd) })
	if err := unix.SetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
		c.T.Fatal(err)
	}
	return r
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// silence is longer than packets of a flood that has ended wait in queues of the kernel.
var silence = unix.Timeval{Usec: 200_000}

// count adds what arrives by where it is from, until enough has, or nothing more arrives.
func (r *receiver) count(t *testing.T, got map[netip.Addr]counts, enough func() bool) {
	t.Helper()
	if err := unix.SetsockoptTimeval(r.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &silence); err != nil {
		t.Fatal(err)
	}
	for frame := make([]byte, 2048); !enough(); {
		n, _, err := unix.Recvfrom(r.fd, frame, 0)
		if err == unix.EAGAIN {
			return
		}
		if err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
		if kind, from, port := classify(frame[:max(n, 0)]); port == floodPort {
			if got[from] == nil {
				got[from] = counts{}
			}
			got[from][kind]++
		}
	}
}

// of returns what has arrived of a pod.
func (p *pod) of(got map[netip.Addr]counts) counts {
	all := counts{}
	for _, addr := range p.addrs {
		maps.Copy(all, got[addr])
	}
	return all
}

// classify returns the kind of a packet, where it is from and the port that it goes to; 0 for what is neither TCP nor
// UDP.
func classify(frame []byte) (kind string, from netip.Addr, port uint16) {
	packet := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Lazy)
	if packet.NetworkLayer() == nil {
		return "", from, 0
	}
	from, _ = netip.AddrFromSlice(packet.NetworkLayer().NetworkFlow().Src().Raw())
	family := map[bool]string{true: "4", false: "6"}[from.Is4()]
	if tcp, ok := packet.Layer(layers.LayerTypeTCP).(*layers.TCP); ok {
		return "tcp" + family, from, uint16(tcp.DstPort)
	}
	if udp, ok := packet.Layer(layers.LayerTypeUDP).(*layers.UDP); ok {
		return "udp" + family, from, uint16(udp.DstPort)
	}
	return "", from, 0
}

// floodTime is how long each flood lasts at least.
const floodTime = 150 * time.Millisecond

// flood starts a flood in each pod the moment begin returns for it, and ends all after a while, in which meanwhile
// runs, but not before each kind of packet of one pod, which nothing denies, has arrived: where a solicitation of the
// gateway is lost, 256 packets wait for the next, a second later. It returns what arrived of each pod.
func (r *receiver) flood(t *testing.T, pods []*pod, open *pod, begin func(*pod), meanwhile func()) map[*pod]counts {
	t.Helper()
	var floods []*flooder
	for _, p := range pods {
		floods = append(floods, newFlooder(t, p, r.Host))
	}
	for i, p := range pods {
		begin(p)
		floods[i].begin(t)
	}
	meanwhile()
	got, byPod := map[netip.Addr]counts{}, map[*pod]counts{}
	arrived := func() bool { return len(open.of(got)) == len(kinds) }
	for last := time.Now().Add(20 * time.Second); !arrived() && time.Now().Before(last); {
		r.count(t, got, arrived)
	}
	time.Sleep(floodTime) // packets, as many as there are
	for _, f := range floods {
		f.end(t)
	}
	r.count(t, got, func() bool { return false })
	for _, p := range pods {
		byPod[p] = p.of(got)
		for _, addr := range p.addrs {
			delete(got, addr)
		}
	}
	if len(got) > 0 {
		t.Errorf("packets from addresses that are no pod's: %v", got)
	}
	return byPod
}
