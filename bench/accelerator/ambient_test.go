// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	web "net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/ambient"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// pingMesh sends a message from a client to the echo server through the mesh, and receives it.
func pingMesh(t *testing.T, c *contender, message [24]byte) {
	t.Helper()
	w := c.workload("echo")
	s, err := c.serve(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	err = c.place.client.Do(func() error {
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(service, uint16(w.port)).String(), 5*time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := conn.Write(message[:]); err != nil {
			return err
		}
		conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		back := make([]byte, len(message))
		if _, err = io.ReadFull(conn, back); err == nil && !bytes.Equal(back, message[:]) {
			err = fmt.Errorf("%q came back", back)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// wire is a packet socket on all interfaces of a namespace, in both directions.
type wire int

func tap(t *testing.T, ns *netlab.Namespace) wire {
	t.Helper()
	fd := -1
	err := ns.Do(func() (err error) {
		all := int(binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}))
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, all)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
		t.Fatal(err)
	}
	return wire(fd)
}

// payloads calls each for the TCP segments captured so far.
func (w wire) payloads(t *testing.T, each func(from, to uint16, payload []byte)) {
	t.Helper()
	for frame := make([]byte, 1<<17); ; {
		n, err := unix.Read(int(w), frame)
		if errors.Is(err, unix.EAGAIN) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		const ethernet, protocol = 14, 9
		ip := frame[min(ethernet, n):n]
		if len(ip) < 20 || ip[0]>>4 != 4 || ip[protocol] != unix.IPPROTO_TCP {
			continue
		}
		tcp := ip[4*(ip[0]&15) : binary.BigEndian.Uint16(ip[2:])]
		each(binary.BigEndian.Uint16(tcp), binary.BigEndian.Uint16(tcp[2:]), tcp[4*(tcp[12]>>4):])
	}
}

// Traffic between the pods is unencrypted on the node without a mesh, and in TLS with sidecars or ztunnel.
func TestWireOfMeshes(t *testing.T) {
	message := [24]byte([]byte("012 in clear on the wire"))
	for where, port := range map[string]uint16{"none": 0, "ambient": ambient.HBONEPort, "sidecar": firstPort} {
		t.Run(where, func(t *testing.T) {
			c := openedMesh(t, where)
			w := tap(t, c.place.lab.Node())
			pingMesh(t, c, message)
			var segments, clear, handshake, data int
			w.payloads(t, func(from, to uint16, payload []byte) {
				segments++
				if bytes.Contains(payload, message[:]) {
					clear++
				}
				if from == port || to == port {
					if bytes.HasPrefix(payload, []byte{22, 3}) { // TLS records: handshake
						handshake++
					}
					if bytes.HasPrefix(payload, []byte{23, 3, 3}) { // application data
						data++
					}
				}
			})
			t.Logf("%d segments, %d in clear, %d that begin with a handshake of TLS, %d with its data", segments, clear,
				handshake, data)
			if secret := port != 0; secret && (clear > 0 || handshake == 0 || data == 0) || !secret && clear == 0 {
				t.Error("this is not what the mesh is to do")
			}
		})
	}
}

// By its own metrics, ztunnel carries the pods' connections with mutual TLS, at both ends.
func TestAmbientCounts(t *testing.T) {
	c := openedMesh(t, "ambient")
	pingMesh(t, c, [24]byte{})
	for _, reporter := range []string{"source", "destination"} {
		labels := []string{fmt.Sprintf("reporter=%q", reporter), `connection_security_policy="mutual_tls"`,
			`source_principal="spiffe://cluster.local/ns/default/sa/client"`,
			`destination_principal="spiffe://cluster.local/ns/default/sa/server"`}
		before := c.ztunnelMetric(t, "istio_tcp_connections_closed_total", labels)
		pingMesh(t, c, [24]byte{})
		wait.Until(t, "ztunnel reports the connection, by its "+reporter, func() bool {
			return c.ztunnelMetric(t, "istio_tcp_connections_closed_total", labels) > before
		})
		for _, direction := range []string{"sent", "received"} {
			if n := c.ztunnelMetric(t, "istio_tcp_"+direction+"_bytes_total", labels); n < 48 {
				t.Errorf("%s: %v bytes %s", reporter, n, direction)
			}
		}
	}
}

// ztunnelMetric returns the sum of a metric's series with these labels.
func (c *contender) ztunnelMetric(t *testing.T, name string, labels []string) (sum float64) {
	t.Helper()
	transport := &web.Transport{DisableKeepAlives: true,
		DialContext: func(_ context.Context, network, to string) (conn net.Conn, err error) {
			wrong := c.place.lab.Node().Do(func() error { conn, err = net.Dial(network, to); return nil })
			return conn, errors.Join(err, wrong)
		}}
	client := web.Client{Transport: transport, Timeout: 30 * time.Second}
	response, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", ambient.MetricsPort))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
lines:
	for lines.Buffer(nil, 1<<20); lines.Scan(); {
		series, value, _ := strings.Cut(lines.Text(), "} ")
		if !strings.HasPrefix(series, name+"{") {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(series, label) {
				continue lines
			}
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		sum += n
	}
	return sum
}
