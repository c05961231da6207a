// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/oaktest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// checks runs the check as the command does, and returns a line for each finding. Exactly the findings that are not ok
// have remedies.
func checks(t *testing.T, o CheckOptions) (lines []string) {
	t.Helper()
	all, err := Check(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if (c.Remedy == "") != (c.Status == findingOK) {
			t.Errorf("%+v", c)
		}
		lines = append(lines, fmt.Sprintf("%s %s: %s", c.Status, c.Name, c.Found))
	}
	return lines
}

func expectChecks(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
		return
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("%s: got %q, want %q", what, got[i], want[i])
		}
	}
}

// A worker with Kerb: the cluster's table of its services, and the problems found. The check leaves no interest behind,
// uses up no subnet, and does not disconnect the worker.
func TestCheck(t *testing.T) {
	m := newMember(t)
	m.cluster.Create(testApp)
	m.cluster.Create(otherApp)
	m.register(testWorker)
	m.l.state.Services = []service{{Name: testApp, Number: 2, Ready: true}}
	if err := m.l.save(); err != nil {
		t.Fatal(err)
	}
	m.deploy(0, "10.18.0.2")
	m.until("announced", 0, "10.18.0.2@192.168.77.11:50103")
	o := CheckOptions{Options: Options{File: m.l.file, Broker: m.l.options.Broker, Bridge: "oaktest-none"},
		Services: []string{otherApp}}
	const well = "ok registration: node " + testWorker + " of cluster 127.0.0.1, subnet 10.18.0.0/26"
	expectChecks(t, "a worker", checks(t, o), well, "ok broker: tcp://127.0.0.1:", "ok service manager: answers queries",
		"ok "+testApp+": 1 instances", "fail "+otherApp+": the cluster knows no instance")
	wait.Until(t, "the interest is withdrawn", func() bool { // acknowledged by the broker, maybe not yet processed
		return slices.Equal(m.cluster.Interested(testApp), []string{testWorker}) && len(m.cluster.Interested(otherApp)) == 0
	})
	if got := m.cluster.Interested(testApp); m.cluster.Subnets() != 1 {
		t.Errorf("interested: %v; %d subnets used up", got, m.cluster.Subnets())
	}
	if n := strings.Count(m.log.String(), "connected to the broker"); n != 1 {
		t.Errorf("the worker has connected %d times", n)
	}

	m.elsewhere(0, "10.18.1.2")
	m.cluster.Schedule(otherApp, 1)
	m.l.leave()
	m.cluster.Forge("nodes/"+testWorker+"/net/service/deployed", `{"appname":"`+testApp+`","instance_number":0,`+
		`"nsip":"10.18.0.9","nsipv6":"fc00::9","host_port":"50103","host_ip":"192.168.77.11"}`)
	m.until("another address", 0, "10.18.0.9@192.168.77.11:50103")
	expectChecks(t, "wrong addresses", checks(t, o), well, "ok broker", "ok service manager",
		"fail "+testApp+": instance 0 has 10.18.0.2 here, and the cluster has 10.18.0.9",
		"warn "+otherApp+": instance 0 has no IPv6 address", "warn "+otherApp+": instance 1 was placed")

	m.cluster.Forge("nodes/"+otherWorker+"/net/tablequery/request", `{"sname":"`+testApp+`","sip":""}`)
	m.cluster.Forge("nodes/ffff/net/interest/remove", `{"appname":"`+testApp+`"}`) // an invalid notice
	wait.Until(t, "the service manager is dead", m.cluster.Dead)
	expectChecks(t, "a dead service manager", checks(t, o), well, "ok broker",
		"fail service manager: query for an address: no answer within")
	m.broker.Stop()
	expectChecks(t, "without a broker", checks(t, o), well, "fail broker: tcp://127.0.0.1:")
}

// A worker with the original NetManager, and errors in its configuration.
func TestCheckOfAStockWorker(t *testing.T) {
	broker := oaktest.NewBroker(t)
	secure := broker.AddSecure()
	broker.Start()
	cluster := oaktest.NewCluster(t, broker)
	cluster.Create(otherApp)
	dir := t.TempDir()
	file := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file("netcfg.json", fmt.Sprintf(`{"ClusterUrl":"127.0.0.1","ClusterMqttPort":"%d"}`, broker.Port))
	file("tuncfg.json", `{"ProxySubnetworkIPv6":"fcef::","ProxySubnetworkIPv6Prefix":21}`)
	o := CheckOptions{Options: Options{File: filepath.Join(dir, "none"), NetManager: dir}}
	expectChecks(t, "stock", checks(t, o), "warn registration: cluster 127.0.0.1; NodeEngine has not registered",
		"warn tuncfg.json: fcef::/21 contains no service address", "ok broker", "ok service manager")
	file("tuncfg.json", `{"ProxySubnetworkIPv6":"fdff::","ProxySubnetworkIPv6Prefix":16}`)
	o.Broker = Broker{Port: secure.Port, CA: secure.CA, Certificate: secure.Certificate, Key: secure.Key}
	expectChecks(t, "without a password", checks(t, o), "warn registration", "ok tuncfg.json", "fail broker: ssl://")
	o.Broker = Broker{Port: secure.Port}
	expectChecks(t, "without TLS", checks(t, o), "warn registration", "ok tuncfg.json", "fail broker: tcp://")
	o.NetManager = t.TempDir()
	expectChecks(t, "nothing known", checks(t, o), "fail registration: NodeEngine has not registered")
	if len(cluster.Received()) != 1 || len(cluster.Interested(otherApp)) != 0 {
		t.Errorf("the cluster got %v", cluster.Received())
	}
}

// A broker that accepts connections, but not the subscription of a worker.
func TestCheckOfADeniedSubscription(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		buffer := make([]byte, 1024)
		_, _ = conn.Read(buffer)                                       // CONNECT
		_, _ = conn.Write([]byte{0x20, 2, 0, 0})                       // CONNACK
		_, _ = conn.Read(buffer)                                       // SUBSCRIBE
		_, _ = conn.Write([]byte{0x90, 3, buffer[2], buffer[3], 0x80}) // SUBACK: failure
		_, _ = conn.Read(buffer)
	}()
	o := CheckOptions{Options: Options{Cluster: "127.0.0.1", File: filepath.Join(t.TempDir(), "none"),
		Broker: Broker{Port: l.Addr().(*net.TCPAddr).Port}}}
	got := checks(t, o)
	if len(got) != 2 || !strings.Contains(got[1], "the broker refuses it") {
		t.Errorf("%q", got)
	}
}
