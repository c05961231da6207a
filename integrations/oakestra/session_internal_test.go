// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/internal/integration/link"
	"github.com/kerb-edge/kerb/internal/lab/oaktest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/resolve"
)

const testWorker, testApp = "6650000000000000000000d1", "app.ns.server.test"

// safeBuffer is a log that is read while it is written.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// member is a worker without an agent in a cluster.
type member struct {
	*testing.T
	broker  *oaktest.Broker
	cluster *oaktest.Cluster
	l       *Listener
	times   intervals // of the next start
	log     *safeBuffer
	table   *resolve.Table // of the agent
	remote  *resolve.Remote
}

// newMember returns a worker, and marks the test as parallel.
func newMember(t *testing.T) *member {
	t.Helper()
	t.Parallel()
	return newMemberOf(t, oaktest.NewBroker(t))
}

func newMemberOf(t *testing.T, broker *oaktest.Broker) *member {
	t.Helper()
	m := &member{T: t, broker: broker, times: short, log: &safeBuffer{}}
	m.broker.Start()
	m.cluster = oaktest.NewCluster(t, m.broker)
	m.remote = resolve.NewRemote("oakestra", []netip.Prefix{netip.MustParsePrefix("10.30.0.0/16")})
	m.table = resolve.NewTable(slog.New(slog.DiscardHandler), "", m.remote)
	m.start(filepath.Join(t.TempDir(), "oakestra.json"))
	t.Cleanup(func() { m.l.leave() })
	var agent sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); agent.Wait() })
	agent.Go(func() { _ = m.table.Run(ctx) })
	agent.Go(func() {
		m.remote.Serve(ctx, func(q link.Request) error { m.l.usedServices.handleRequest(q); return nil })
	})
	return m
}

// short are intervals that tests wait for. A repeated request for a subnet uses up another one, so that its interval is
// longer than a reply takes on a busy machine.
var short = intervals{lookup: 20 * time.Millisecond, retry: 20 * time.Millisecond, maxRetry: 50 * time.Millisecond,
	subnet: 2 * time.Second, maxSubnet: 2 * time.Second, requery: 300 * time.Millisecond,
	linger: 50 * time.Millisecond, reconnect: 10 * time.Millisecond, maxReconnect: 50 * time.Millisecond, ack: time.Second}

// keepInterest makes the worker keep its interest in a service without instances for longer than a test takes.
func (m *member) keepInterest() {
	m.times.linger = time.Hour
	m.l.intervals = m.times
}

// start starts the process.
func (m *member) start(file string) {
	m.Helper()
	m.l = &Listener{log: slog.New(slog.NewTextHandler(m.log, nil)), file: file, ranges: []string{"10.30.0.0/16"},
		options:   Options{Broker: Broker{Port: m.broker.Port}, Port: defaultTunnelPort, Address: "192.168.77.11"},
		intervals: m.times, net: newNetwork(Options{Bridge: "oaktest-none"}), wakeup: make(chan struct{}, 1),
		usedServices: usedServices{used: map[string]bool{}}, resolved: m.remote.Take}
	var err error
	if m.l.state, err = readState(file); err == nil {
		err = m.l.restoreSubnet()
	}
	if err != nil {
		m.Fatal(err)
	}
	if m.l.state.Worker != "" {
		m.l.join()
	}
}

func (m *member) register(id string) {
	m.Helper()
	if _, err := m.l.enroll(m.Context(), registration{ClientID: id, ClusterAddress: "127.0.0.1"}); err != nil {
		m.Fatal(err)
	}
	if err := m.l.awaitSubnet(m.Context()); err != nil {
		m.Fatal(err)
	}
}

// deploy schedules an instance and announces it as a deployment does.
func (m *member) deploy(number int, address string) {
	m.cluster.Schedule(testApp, number)
	m.announce(number, address)
}

func (m *member) announce(number int, address string) {
	six := netip.MustParseAddr("fc00::" + address[strings.LastIndex(address, ".")+1:])
	i := hostedInstance{app: testApp, number: number, four: netip.MustParseAddr(address), six: six}
	m.l.session.add(i)
	m.l.session.announce(m.Context(), i)
}

func (m *member) until(what string, number int, want string) {
	m.Helper()
	wait.Until(m.T, what, func() bool { return m.cluster.Where(testApp, number) == want },
		func() any { return m.cluster.Where(testApp, number) }, func() any { return m.cluster.Received() })
}

func (m *member) count(topic string) (n int) {
	for _, r := range m.cluster.Received() {
		if r.Topic == topic {
			n++
		}
	}
	return n
}

// A worker sends what NetManager sends in recordings 01 and 03, byte for byte and in order.
func TestWorkerSendsWhatNetManagerSends(t *testing.T) {
	m := newMember(t)
	m.cluster.Create(testApp)
	m.register(testWorker)
	if m.l.net.subnet4.String() != "10.18.0.0/26" || m.l.net.subnet6.String() != "fc00::/120" {
		t.Errorf("subnets %v, %v", m.l.net.subnet4, m.l.net.subnet6)
	}
	m.deploy(0, "10.18.0.2")
	wait.Until(t, "the query of the own service", func() bool { return m.count(topicTableRequest) > 0 })
	want := []oaktest.Message{
		{Worker: testWorker, Topic: "subnet", Payload: `{"METHOD":"GET"}`},
		{Worker: testWorker, Topic: "service/deployed", Payload: `{"appname":"app.ns.server.test","status":"DEPLOYED",` +
			`"instance_number":0,"nsip":"10.18.0.2","nsipv6":"fc00::2","host_port":"50103","host_ip":"192.168.77.11"}`},
		{Worker: testWorker, Topic: "tablequery/request", Payload: `{"sname":"app.ns.server.test","sip":""}`},
	}
	if diff := cmp.Diff(want, m.cluster.Received()[:3]); diff != "" {
		t.Errorf("recorded (-), sent (+):\n%s", diff)
	}
	if got := m.cluster.Interested(testApp); !slices.Equal(got, []string{testWorker}) {
		t.Errorf("interested: %v", got)
	}
}

// One subnet per node id: a restart requests none, a new id does, and late results change nothing.
func TestSubnetIsAskedForOnce(t *testing.T) {
	m := newMember(t)
	m.register(testWorker)
	m.l.leave()
	m.start(m.l.file)
	m.register(testWorker)
	m.cluster.Forge("nodes/"+testWorker+"/net/subnetwork/result", `{"address":"10.18.9.0","addressv6":"fc00::900"}`)
	if m.l.net.subnet4.String() != "10.18.0.0/26" || m.cluster.Subnets() != 1 {
		t.Errorf("after a restart: %v, %d subnets used up", m.l.net.subnet4, m.cluster.Subnets())
	}
	m.register("6650000000000000000000ff")
	if m.l.net.subnet4.String() != "10.18.0.64/26" || m.cluster.Subnets() != 2 {
		t.Errorf("with a new id: %v, %d subnets used up", m.l.net.subnet4, m.cluster.Subnets())
	}
}

// Recording 23: the broker starts after the registration, or rejects this worker until it is configured.
func TestBrokerIsNotThereAtTheRegistration(t *testing.T) {
	m := newMember(t)
	m.broker.Stop()
	if _, err := m.l.enroll(t.Context(), registration{ClientID: testWorker, ClusterAddress: "127.0.0.1"}); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the condition", func() bool {
		reason, text := m.l.describe()
		return reason == "NotConnected" && strings.Contains(text, "connection refused")
	}, func() any { _, text := m.l.describe(); return text })
	m.broker.Start()
	if err := m.l.awaitSubnet(t.Context()); err != nil || m.cluster.Subnets() != 1 {
		t.Errorf("%v, %d subnets used up", err, m.cluster.Subnets())
	}
}

// A broker that requires TLS, a certificate and a password. Files are read for each connection.
func TestSecureBroker(t *testing.T) {
	t.Parallel()
	broker := oaktest.NewBroker(t)
	secure := broker.AddSecure()
	m := newMemberOf(t, broker)
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("wrong\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.l.options.Broker = Broker{Port: secure.Port, CA: secure.CA, Certificate: secure.Certificate, Key: secure.Key,
		Username: secure.Username, PasswordFile: password}
	if _, err := m.l.enroll(t.Context(), registration{ClientID: testWorker, ClusterAddress: "127.0.0.1"}); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the wrong password is refused", func() bool {
		reason, text := m.l.describe()
		return reason == "NotConnected" && strings.Contains(text, "ssl://127.0.0.1:") &&
			strings.Contains(text, "not Authorized")
	}, func() any { _, text := m.l.describe(); return text })
	if err := os.WriteFile(password, []byte(secure.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.l.awaitSubnet(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestNoSubnetLeft(t *testing.T) {
	m := newMember(t)
	m.cluster.Exhaust(true)
	if _, err := m.l.enroll(t.Context(), registration{ClientID: testWorker, ClusterAddress: "127.0.0.1"}); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the condition", func() bool { reason, _ := m.l.describe(); return reason == "NoSubnet" })
	m.cluster.Exhaust(false)
	wait.Until(t, "a subnet", func() bool {
		reason, text := m.l.describe()
		want := "subnet 10.18.0.0/26 and fc00::/120, cluster 127.0.0.1, node " + testWorker
		return reason == "" && strings.Contains(text, want)
	})
}

// The cluster learns all addresses again after restarts and lost messages.
func TestAddressesAreReannounced(t *testing.T) {
	m := newMember(t)
	m.cluster.Create(testApp)
	m.register(testWorker)
	m.cluster.Lose(topicDeployed, 1)
	m.deploy(0, "10.18.0.2")
	m.until("announced again when the first message is lost", 0, "10.18.0.2@192.168.77.11:50103")

	m.broker.Stop()
	wait.Until(t, "the condition", func() bool { reason, _ := m.l.describe(); return reason == "NotConnected" })
	m.announce(0, "10.18.0.3")
	m.cluster.Restart()
	m.broker.Start()
	m.until("announced after a restart of the broker", 0, "10.18.0.3@192.168.77.11:50103")

	m.cluster.Restart() // its table is dropped: service/deployed alone would be ignored
	m.cluster.Lose(topicTableRequest, 3)
	m.announce(0, "10.18.0.4")
	m.until("announced after a restart of the service manager", 0, "10.18.0.4@192.168.77.11:50103")

	m.l.leave()
	m.l.options.Address = "" // the address of the node changes to that of its route to the broker
	m.l.state.Services = []service{{Name: testApp, Number: 4}}
	m.l.join()
	m.until("the new address of the node", 0, "10.18.0.4@127.0.0.1:50103")
	if got := m.cluster.Received(); !slices.ContainsFunc(got, func(r oaktest.Message) bool {
		return r.Topic == topicAddressChanged && strings.Contains(r.Payload, `"appname":"app.ns.server.test","status":""`)
	}) {
		t.Errorf("no address-changed in %v", got)
	}
}

// An instance that the cluster has moved to another worker is not announced, although it still runs here.
func TestMovedInstanceIsLeftAlone(t *testing.T) {
	m := newMember(t)
	m.l.intervals.requery = time.Hour // after twice that it is announced nevertheless
	m.cluster.Create(testApp)
	m.register(testWorker)
	m.deploy(0, "10.18.0.2")
	m.until("announced", 0, "10.18.0.2@192.168.77.11:50103")
	is := func(what string, ok func(*hostedInstance) bool) {
		t.Helper()
		wait.Until(t, what, func() bool {
			m.l.session.mu.Lock()
			defer m.l.session.mu.Unlock()
			return ok(m.l.session.services[testApp].instances[0])
		})
	}
	is("confirmed", func(i *hostedInstance) bool { return i.confirmed })
	announced := m.count(topicDeployed)
	m.cluster.Schedule(testApp, 0)
	m.cluster.Forge(updateTopic(testApp), `{"type":"DEPLOYMENT"}`)
	is("noticed", func(i *hostedInstance) bool { return !i.lost.IsZero() })
	asked := m.count(topicTableRequest)
	m.cluster.Forge(updateTopic(testApp), `{"type":"DEPLOYMENT"}`)
	wait.Until(t, "the next query", func() bool { return m.count(topicTableRequest) > asked }) // after due messages
	if n := m.count(topicDeployed); n > announced {
		t.Errorf("announced %d times before the cluster has scheduled it again, and %d after: %v", announced, n-announced,
			m.cluster.Received())
	}
}

// A query precedes each interest/remove: without one the service manager crashes if another worker is interested.
func TestInterestEnds(t *testing.T) {
	m := newMember(t)
	m.cluster.Create(testApp)
	m.register(testWorker)
	m.deploy(0, "10.18.0.2")
	m.until("announced", 0, "10.18.0.2@192.168.77.11:50103")
	m.cluster.Schedule(testApp, 1)
	m.cluster.Restart()
	m.cluster.Forge("nodes/6650000000000000000000d2/net/tablequery/request", `{"sname":"`+testApp+`","sip":""}`)
	m.l.session.withdraw(testApp, 0)
	wait.Until(t, "the interest ends", func() bool { return m.count(topicInterestRemove) == 1 })
	got := m.cluster.Received()
	last := slices.IndexFunc(got, func(r oaktest.Message) bool { return r.Topic == topicInterestRemove })
	if m.cluster.Dead() || got[last-1].Topic != topicTableRequest {
		t.Errorf("dead: %v; messages %v", m.cluster.Dead(), got)
	}
}

// A rejected message of the broker does not stop the worker. TestHostileMessages has all of them.
func TestHostileMessagesOfTheBroker(t *testing.T) {
	m := newMember(t)
	m.cluster.Create(testApp)
	m.cluster.Exhaust(true)
	if _, err := m.l.enroll(t.Context(), registration{ClientID: testWorker, ClusterAddress: "127.0.0.1"}); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "a connection", func() bool { return m.count(topicSubnet) > 0 })
	m.deploy(0, "10.18.0.2")
	wait.Until(t, "subscribed", func() bool { return m.count(topicTableRequest) >= 2 })
	for _, c := range []struct{ topic, payload, field string }{
		{"nodes/" + testWorker + "/net/" + topicSubnetResult, `null`, "address"},
		{"nodes/" + testWorker + "/net/" + topicTableResult, `[]`, "payload"},
		{updateTopic(testApp), `{"type":7}`, "type"},
	} {
		mark := len(m.log.String())
		m.cluster.Forge(c.topic, c.payload)
		want := fmt.Sprintf("topic=%s field=%s reason=", c.topic, c.field)
		wait.Until(t, want, func() bool { return strings.Contains(m.log.String()[mark:], want) },
			func() any { return m.log.String()[mark:] })
	}
	if m.l.net.assigned() {
		t.Errorf("subnet %v", m.l.net.subnet4)
	}
	m.until("the worker still announces", 0, "10.18.0.2@192.168.77.11:50103")
}

func TestNetcfg(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		_ = os.Remove(path)
		if text != "" {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		netcfg, tuncfg string
		want           Options
	}{
		{"", "", Options{Port: 50103, MTU: 1450, Broker: Broker{Port: 10003}}},
		{`{"NodePublicAddress":"0.0.0.0","NodePublicPort":"50103","ClusterUrl":"0.0.0.0","ClusterMqttPort":"10003"}`,
			`{"HostTunnelDeviceName":"goProxyTun","ProxySubnetwork":"10.30.0.0","TunnelPort":50103,"MTUsize":1450,` +
				`"ProxySubnetworkIPv6":"fcef::","ProxySubnetworkIPv6Prefix":21}`,
			Options{Port: 50103, MTU: 1450, Broker: Broker{Port: 10003}}},
		{`{"NodePublicAddress":"192.0.2.7","NodePublicPort":"50104","ClusterUrl":"c1","ClusterMqttPort":"8883",` +
			`"MqttCert":"c.pem","MqttKey":"k.pem"}`, `{"TunnelPort":50105,"MTUsize":1400}`,
			Options{Address: "192.0.2.7", Port: 50104, MTU: 1400, Cluster: "c1",
				Broker: Broker{Port: 8883, Certificate: "c.pem", Key: "k.pem"}}},
		{"", `{"TunnelPort":50105}`, Options{Port: 50105, MTU: 1450, Broker: Broker{Port: 10003}}},
	} {
		write("netcfg.json", c.netcfg)
		write("tuncfg.json", c.tuncfg)
		got, err := Options{NetManager: dir}.withNetcfg()
		c.want.NetManager = dir
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
			t.Errorf("%s %s: %v\nwant (-), got (+):\n%s", c.netcfg, c.tuncfg, err, diff)
		}
	}
	write("tuncfg.json", "")
	for text, field := range map[string]string{"{": "", `{"NodePublicPort":"x"}`: "NodePublicPort",
		`{"ClusterMqttPort":"0"}`: "ClusterMqttPort", `{"NodePublicAddress":"x"}`: "NodePublicAddress"} {
		write("netcfg.json", text)
		if _, err := (Options{NetManager: dir}).withNetcfg(); err == nil ||
			!strings.Contains(err.Error(), dir+"/netcfg.json: "+field) {
			t.Errorf("%s: %v", text, err)
		}
	}
	write("netcfg.json", "")
	for text, field := range map[string]string{"[": "", `{"TunnelPort":70000}`: "TunnelPort", `{"MTUsize":1279}`: "MTUsize",
		`{"MTUsize":-1}`: "MTUsize", `{"MTUsize":65536}`: "MTUsize"} {
		write("tuncfg.json", text)
		if _, err := (Options{NetManager: dir}).withNetcfg(); err == nil ||
			!strings.Contains(err.Error(), dir+"/tuncfg.json: "+field) {
			t.Errorf("%s: %v", text, err)
		}
	}
	got, err := Options{NetManager: dir + "x", Broker: Broker{Port: 1}, Port: 2, Address: "192.0.2.1"}.withNetcfg()
	if err != nil || got.Broker.Port != 1 || got.Port != 2 || got.Address != "192.0.2.1" {
		t.Errorf("own values: %+v %v", got, err)
	}
}

// An instance whose addresses the cluster has lost, and which still runs, is announced again, even if other workers
// cause many replies before.
func TestLostAddressesAreReannounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newQuietSession()
		s.log, s.host, s.port = slog.New(slog.DiscardHandler), netip.MustParseAddr("192.168.77.11"), 50103
		s.add(hostedInstance{app: testApp, four: netip.MustParseAddr("10.18.0.2"), six: netip.MustParseAddr("fc00::2")})
		announced := func(list string) bool {
			t.Helper()
			s.outgoing = nil
			s.answer(t, testApp, testApp, list)
			return slices.ContainsFunc(s.outgoing, func(m message) bool { return m.topic == topicDeployed })
		}
		has := "[" + entryOf(0, `"namespace_ip":"10.18.0.2","namespace_ip_v6":"fc00::2","host_ip":"192.168.77.11",`+
			`"host_port":50103,`) + "]"
		lacks := "[" + entryOf(0, "") + "]"
		for range 2 { // again after the cluster had them in between
			if announced(has) {
				t.Error("announced although the cluster has the addresses")
			}
			for range 10 {
				if announced(lacks) {
					t.Error("announced at once")
				}
			}
			time.Sleep(s.times.requery) // in virtual time: the next regular query
			if announced(lacks) {
				t.Error("announced after one regular query")
			}
		}
		time.Sleep(s.times.requery) // in virtual time
		for range 2 {
			if !announced(lacks) {
				t.Error("not announced until the cluster has the addresses")
			}
		}
	})
}
