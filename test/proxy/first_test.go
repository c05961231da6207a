// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"

	apiclient "github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/internal/lab/cgrouptest"
)

const (
	brokerPort = 10003
	nodeID     = "6543af"
)

// manager is a service manager with a broker, both on the node, that knows addresses and replies with a latency.
type manager struct {
	t       *testing.T
	client  mqtt.Client
	answer  func(addr netip.Addr) (instances []netip.Addr) // nil: no reply at all
	latency time.Duration
}

func startManager(t *testing.T, n *node) *manager {
	t.Helper()
	program, err := exec.LookPath("/usr/sbin/mosquitto")
	if err != nil {
		t.Skip("needs mosquitto")
	}
	config := filepath.Join(n.Dir, "mosquitto.conf")
	text := fmt.Sprintf("listener %d 127.0.0.1\nallow_anonymous true\npersistence false\nset_tcp_nodelay true\nlog_dest "+
		"none\nuser root\n", brokerPort)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	broker := n.Lab.Node().Command(context.Background(), program, "-c", config)
	if err := broker.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = broker.Process.Kill()
		_ = broker.Wait()
	})
	m := &manager{t: t}
	options := mqtt.NewClientOptions().AddBroker(fmt.Sprintf("tcp://127.0.0.1:%d", brokerPort)).SetClientID("manager")
	options.SetCustomOpenConnectionFn(func(*url.URL, mqtt.ClientOptions) (c net.Conn, err error) {
		err = n.Lab.Node().Do(func() (err error) {
			c, err = net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", brokerPort))
			return err
		})
		return c, err
	})
	options.SetOrderMatters(false)
	m.client = mqtt.NewClient(options)
	n.Eventually("the broker listens", func() bool {
		token := m.client.Connect()
		return token.Wait() && token.Error() == nil
	})
	t.Cleanup(func() { m.client.Disconnect(100) })
	if token := m.client.Subscribe("nodes/"+nodeID+"/net/tablequery/request", 1, m.serve); token.Wait() &&
		token.Error() != nil {
		t.Fatal(token.Error())
	}
	return m
}

// register makes the node a worker of the manager's cluster.
func register(t *testing.T, n *node, socket string) {
	t.Helper()
	c := http.Client{Transport: apiclient.Unix(socket)}
	n.Eventually("the integration serves", func() bool {
		r, err := c.Post("http://node/register", "application/json",
			strings.NewReader(`{"client_id":"`+nodeID+`","cluster_address":"127.0.0.1"}`))
		if err != nil {
			return false
		}
		defer r.Body.Close()
		if r.StatusCode != http.StatusOK {
			t.Errorf("register: %s", r.Status)
		}
		return true
	})
}

// serve replies to a table query with the documented messages.
func (m *manager) serve(_ mqtt.Client, message mqtt.Message) {
	var query struct{ Sname, Sip string }
	if err := json.Unmarshal(message.Payload(), &query); err != nil {
		m.t.Error(err)
		return
	}
	key, addr := query.Sip, netip.Addr{}
	if query.Sip == "" {
		key, addr = query.Sname, appAddress(query.Sname)
	} else {
		addr = netip.MustParseAddr(query.Sip)
	}
	instances := m.answer(addr)
	if instances == nil {
		return
	}
	time.Sleep(m.latency) // the manager's latency is what is tested
	var list []map[string]any
	for i, a := range instances {
		list = append(list, map[string]any{"instance_number": i, "namespace_ip": a.String(), "host_ip": "", "host_port": nil,
			"service_ip": []map[string]any{{"IpType": "RR", "Address": addr.String()}}})
	}
	text, err := json.Marshal(map[string]any{"app_name": appOf(addr), "instance_list": list, "query_key": key})
	if err != nil {
		m.t.Error(err)
		return
	}
	m.client.Publish("nodes/"+nodeID+"/net/tablequery/result", 1, false, text)
}

// appOf returns the name of the service with an address, and appAddress the address for a name.
func appOf(a netip.Addr) string { b := a.As4(); return fmt.Sprintf("app.%d.%d", b[2], b[3]) }

func appAddress(name string) netip.Addr {
	var c, d byte
	_, _ = fmt.Sscanf(name, "app.%d.%d", &c, &d)
	return netip.AddrFrom4([4]byte{10, 30, c, d})
}

// firstTries returns how many addresses are tried for each latency; KERB_FIRST, at most 1250, sets it.
func firstTries(t *testing.T) int {
	t.Helper()
	text := os.Getenv("KERB_FIRST")
	if text == "" {
		return 100
	}
	tries, err := strconv.Atoi(text)
	if err != nil || tries < 1 || tries > 1250 {
		t.Fatalf("KERB_FIRST=%s: 1 to 1250 tries", text)
	}
	return tries
}

// The first packet to an address that was not resolved before arrives, without a retransmission, regardless of the
// latency of the reply: only the first connections of a kind are counted, of which the last must be as good as the
// first.
func TestFirstPacket(t *testing.T) {
	cgrouptest.PatientSYNs(t, "kerb-proxy")
	socket := filepath.Join(t.TempDir(), "oakestra.sock")
	n, client, servers := newMesh(t, "oakestra: {subnet: 10.18.0.0/26, socket: "+socket+"}\n",
		map[string]any{"ranges": []string{"10.30.0.0/16"}})
	m := startManager(t, n)
	register(t, n, socket)
	m.answer = func(a netip.Addr) []netip.Addr {
		if a.As4()[2] == 99 {
			return nil
		}
		return []netip.Addr{servers[0].Addr4()}
	}
	warm := netip.MustParseAddrPort("10.30.0.1:8080")
	n.Eventually("the resolver answers", func() bool {
		c, err := dialTCP(client, warm)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	for _, latency := range []time.Duration{0, 5 * time.Millisecond, 300 * time.Millisecond} {
		m.latency = latency
		tries := firstTries(t)
		if latency > 100*time.Millisecond {
			tries = 3
		}
		before := retransmissions(t, client)
		var took []time.Duration
		for i := range tries {
			to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 30, byte(1+int(latency/time.Millisecond)%90) + byte(i/250),
				byte(1 + i%250)}), targetPort)
			begin := time.Now()
			c, err := dialTCP(client, to)
			if err != nil {
				t.Fatalf("%s: %v", to, err)
			}
			took = append(took, time.Since(begin))
			c.Close()
		}
		slices.Sort(took)
		t.Logf("an answer after %v: connected and answered in %v (median), %v (slowest of %d)", latency, took[len(took)/2],
			took[len(took)-1], len(took))
		if after := retransmissions(t, client); after != before {
			t.Errorf("an answer after %v: SYNs were sent again (%s, before %s)", latency, after, before)
		}
	}
	before := time.Now()
	if _, err := dialTCPWithin(client, 2*patience, netip.MustParseAddrPort("10.30.99.1:80")); !errors.Is(err,
		syscall.EHOSTUNREACH) {
		t.Errorf("no answer: %v", err)
	}
	t.Logf("without an answer the client got an error after %v", time.Since(before))
}
