// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kerb-edge/kerb/internal/integration/link"
	"github.com/kerb-edge/kerb/internal/lab/oaktest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/resolve"
	"github.com/kerb-edge/kerb/internal/watch"
	"github.com/kerb-edge/kerb/sdk"
)

const otherWorker, otherApp = "6650000000000000000000d2", "app.ns.web.test"

// elsewhere deploys an instance of otherApp on another worker.
func (m *member) elsewhere(number int, address string) {
	m.Helper()
	m.cluster.Schedule(otherApp, number)
	m.cluster.Forge("nodes/"+otherWorker+"/net/service/deployed", fmt.Sprintf(`{"appname":%q,"status":"DEPLOYED",`+
		`"instance_number":%d,"nsip":%q,"nsipv6":"","host_port":"50103","host_ip":"192.168.77.12"}`, otherApp, number, address))
}

// proxy subscribes as a control plane that looks up addresses.
func (m *member) proxy() *resolve.Subscription {
	s := m.table.Subscribe("proxy")
	m.Cleanup(s.Close)
	return s
}

func lookup1(s *resolve.Subscription, addr string) {
	s.Handle(sdk.Requests{Resolve: []netip.Addr{netip.MustParseAddr(addr)}})
}

// finds waits like shows, and repeats the lookup of the address: on a busy machine it may take longer than
// link.LookupLimit.
func (m *member) finds(s *resolve.Subscription, addr, app, want string) {
	m.Helper()
	wait.Until(m.T, addr+" is found", func() bool {
		lookup1(s, addr)
		_, known := m.table.View(recordPrefix + app)
		return known
	}, func() any { return m.cluster.Received() })
	m.shows(app, want)
}

// shows waits until the table has a virtual service with these addresses and instances.
func (m *member) shows(app, want string) {
	m.Helper()
	var got string
	wait.Until(m.T, app+" is "+want, func() bool {
		s, _ := m.table.View(recordPrefix + app)
		got = ""
		for _, a := range s.Spec.Addresses {
			got += a.Address + "=" + string(a.Policy) + a.Instance + " "
		}
		for _, i := range s.Spec.Instances {
			got += fmt.Sprintf("%s:%s@%s ", i.Name, strings.Join(i.Addresses, ","), i.Node)
		}
		got = strings.TrimSpace(got)
		return got == want
	}, func() any { return got }, func() any { return m.cluster.Received() })
}

// The agent's lookups use the connection of the registration, and the agent is notified of every change.
func TestLookups(t *testing.T) {
	m := newMember(t)
	m.cluster.Create(otherApp)
	m.register(testWorker)
	m.elsewhere(0, "10.18.1.2")
	s := m.proxy()
	m.cluster.Lose(topicTableRequest, 2)
	const addresses = "10.30.0.0=roundRobin 10.30.0.1=0 "
	m.finds(s, "10.30.0.0", otherApp, addresses+"0:10.18.1.2@192.168.77.12")
	recorded := oaktest.Message{Worker: testWorker, Topic: topicTableRequest, Payload: `{"sname":"","sip":"10.30.0.0"}`}
	if got := m.cluster.Received(); !slices.Contains(got, recorded) { // 05
		t.Errorf("no %v in %v", recorded, got)
	}
	m.elsewhere(0, "10.18.1.9")
	m.shows(otherApp, addresses+"0:10.18.1.9@192.168.77.12")
	lookup1(s, "10.30.77.77")
	wait.Until(t, "an address that does not exist", func() bool {
		u, _ := s.Next()
		s.Ack(u, nil)
		return slices.Contains(u.Unknown, netip.MustParseAddr("10.30.77.77"))
	})
	m.broker.Stop()
	wait.Until(t, "the condition", func() bool {
		reason, _ := m.l.describe()
		return reason == "NotConnected"
	})
	m.cluster.Schedule(otherApp, 1)
	m.broker.Start()
	m.shows(otherApp, "10.30.0.0=roundRobin 10.30.0.1=0 10.30.0.3=1 0:10.18.1.9@192.168.77.12 1:@")
	s.Handle(sdk.Requests{Release: []string{recordPrefix + otherApp}})
	wait.Until(t, "the interest ends", func() bool { return m.count(topicInterestRemove) == 1 })
	got := m.cluster.Received()
	last := slices.IndexFunc(got, func(r oaktest.Message) bool { return r.Topic == topicInterestRemove })
	if m.cluster.Dead() || got[last-1].Topic != topicTableRequest {
		t.Errorf("dead: %v; messages %v", m.cluster.Dead(), got)
	}
	m.shows(otherApp, "")
}

// A packet waits for the reply: the worker repeats the query until the agent treats the address as unknown.
func TestLookupIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newQuietSession()
		s.request(link.Request{Lookup: []netip.Addr{netip.MustParseAddr("10.30.0.2")}})
		query := []message{{topic: topicTableRequest, body: tableRequest{Address: "10.30.0.2"}}}
		var sent []time.Duration
		for start := time.Now(); len(s.lookups) > 0; {
			due, next := s.due(time.Now())
			if slices.Equal(due, query) {
				sent = append(sent, time.Since(start).Round(time.Millisecond))
			}
			time.Sleep(time.Until(next)) // in virtual time
		}
		const ms = time.Millisecond
		if want := []time.Duration{0, 200 * ms, 600 * ms, 1400 * ms, 3000 * ms}; !slices.Equal(sent, want) {
			t.Errorf("sent after %v, want %v", sent, want)
		}
	})
}

// Recording 30: the service exists and has no instance yet. The worker keeps its interest in the name, and receives the
// notice.
func TestLookupBeforeTheFirstInstance(t *testing.T) {
	m := newMember(t)
	m.keepInterest()
	m.cluster.Create(otherApp)
	m.register(testWorker)
	m.finds(m.proxy(), "10.30.0.0", otherApp, "10.30.0.0=roundRobin")
	m.elsewhere(0, "10.18.1.2")
	m.shows(otherApp, "10.30.0.0=roundRobin 10.30.0.1=0 0:10.18.1.2@192.168.77.12")
}

// A service without instances may have been removed, and created again with another id, which the cluster rejects while
// a worker is interested in the former one. The agent looks it up again when a client sends to it.
func TestInterestInEmptyServiceEnds(t *testing.T) {
	m := newMember(t)
	m.cluster.Create(otherApp)
	m.register(testWorker)
	m.elsewhere(0, "10.18.1.2")
	s := m.proxy()
	m.finds(s, "10.30.0.0", otherApp, "10.30.0.0=roundRobin 10.30.0.1=0 0:10.18.1.2@192.168.77.12")
	m.cluster.Undeploy(otherApp, 0)
	m.shows(otherApp, "")
	wait.Until(t, "the interest ends", func() bool { return m.count(topicInterestRemove) == 1 })
	m.cluster.Remove(otherApp)
	m.cluster.Create(otherApp)
	m.elsewhere(0, "10.18.1.3")
	m.finds(s, "10.30.0.2", otherApp, "10.30.0.2=roundRobin 10.30.0.3=0 0:10.18.1.3@192.168.77.12")
	if m.cluster.Dead() {
		t.Error("the service manager is dead")
	}
}

// The agent has the services of this worker without a lookup, since the proxy needs their addresses. A control plane
// that uses one keeps it when the last instance here ends.
func TestOwnServicesAreKnown(t *testing.T) {
	m := newMember(t)
	m.cluster.Create(testApp)
	m.register(testWorker)
	m.deploy(0, "10.18.0.2")
	const first = "10.30.0.0=roundRobin 10.30.0.1=0 "
	m.shows(testApp, first+"0:10.18.0.2,fc00::2@")
	s := m.proxy()
	s.Handle(sdk.Requests{Release: []string{recordPrefix + testApp}})
	m.shows(testApp, first+"0:10.18.0.2,fc00::2@")
	lookup1(s, "10.30.0.1")
	m.l.session.withdraw(testApp, 0)
	asked := m.count(topicTableRequest)
	wait.Until(t, "another query", func() bool { return m.count(topicTableRequest) > asked })
	m.shows(testApp, first+"0:10.18.0.2,fc00::2@")
	s.Handle(sdk.Requests{Release: []string{recordPrefix + testApp}})
	m.shows(testApp, "")
}

// After a restart of this process the agent keeps the services that it uses.
func TestLookupsAfterARestart(t *testing.T) {
	m := newMember(t)
	m.keepInterest()
	m.cluster.Create(otherApp)
	m.register(testWorker)
	m.elsewhere(0, "10.18.1.2")
	m.finds(m.proxy(), "10.30.0.0", otherApp, "10.30.0.0=roundRobin 10.30.0.1=0 0:10.18.1.2@192.168.77.12")
	m.l.leave()
	m.elsewhere(0, "10.18.1.3")
	m.start(m.l.file)
	m.l.usedServices.handleRequest(link.Request{Use: []string{recordPrefix + otherApp}})
	m.shows(otherApp, "10.30.0.0=roundRobin 10.30.0.1=0 0:10.18.1.3@192.168.77.12")

	m.l.leave()
	m.cluster.Undeploy(otherApp, 0)
	m.start(m.l.file)
	m.l.usedServices.handleRequest(link.Request{Use: []string{recordPrefix + otherApp}})
	m.shows(otherApp, "") // its instances were removed
	m.finds(m.proxy(), "10.30.0.0", otherApp, "10.30.0.0=roundRobin")
	m.elsewhere(0, "10.18.1.4")
	m.shows(otherApp, "10.30.0.0=roundRobin 10.30.0.3=0 0:10.18.1.4@192.168.77.12")
}

func entryOf(number int, more string) string {
	return fmt.Sprintf(`{"instance_number":%d,%s"service_ip":[{"IpType":"RR","Address":"10.30.0.2","Address_v6":`+
		`"fdff:2000::2"},{"IpType":"instance_ip","Address":"10.30.1.%d","Address_v6":"fdff::%[3]d"}]}`, number, more, number+1)
}

// Unusual, but valid replies to lookups: no address outside the ranges of this worker is used.
func TestOddAnswersToLookups(t *testing.T) {
	s, told := newQuietSession()
	addr := netip.MustParseAddr("10.30.0.2")
	answer := func(text string) error {
		*told = nil
		s.request(link.Request{Lookup: []netip.Addr{addr}})
		return s.handleTable([]byte(text))
	}
	for _, text := range []string{
		`{"app_name":"","instance_list":[` + entryOf(0, "") + `],"query_key":"10.30.0.2"}`,
		`{"app_name":"b","instance_list":[{"instance_number":0,"service_ip":[{"IpType":"RR","Address":"10.30.0.9"}]}],` +
			`"query_key":"10.30.0.2"}`,
	} {
		if err := answer(text); err != nil || len(*told) != 1 || (*told)[0].NotFound != addr {
			t.Errorf("%s: %v, got %+v", text, err, *told)
		}
	}
	if f := s.services["b"]; f.used || f.leaveAt.IsZero() { // the agent has nothing of it
		t.Errorf("a service without the address is followed for good: %+v", f)
	}
	for _, addr = range []netip.Addr{addr, netip.MustParseAddr("fdff:2000::2")} { // two of a service without instances
		if err := answer(`{"app_name":"e","instance_list":[],"query_key":"` + addr.String() + `"}`); err != nil ||
			len(*told) != 1 || (*told)[0].Put == nil || !has((*told)[0].Put.Spec, addr) {
			t.Errorf("%s: %v, got %+v", addr, err, *told)
		}
	}
	addr = netip.MustParseAddr("10.30.0.2")
	odd := `{"app_name":"c","query_key":"10.30.0.2","instance_list":[` + `{"instance_number":3,"namespace_ip":null,` +
		`"namespace_ip_v6":"<nil>","host_ip":"","service_ip":[{"IpType":"RR","Address":"10.30.0.2"},` +
		`{"IpType":"closest","Address":"10.30.0.3","Address_v6":"fdff:1000::3"}]},` +
		entryOf(1, `"namespace_ip":"10.18.0.3","namespace_ip_v6":null,"host_ip":"[2001:db8::1]","host_port":"50103",`) + `]}`
	if err := answer(odd); err != nil || len(*told) != 1 || (*told)[0].Put == nil {
		t.Fatalf("%v, got %+v", err, *told)
	}
	spec := (*told)[0].Put.Spec
	var got []string
	for _, a := range spec.Addresses {
		got = append(got, strings.TrimSpace(fmt.Sprintln(a.Address, a.Policy, a.Instance)))
	}
	if want := []string{"10.30.0.2 roundRobin", "fdff:2000::2 roundRobin", "10.30.1.2  1", "fdff::2  1",
		"10.30.0.3 closest"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if len(spec.Instances) != 2 || spec.Instances[0].Node != "2001:db8::1" || len(spec.Instances[0].Addresses) != 1 ||
		spec.Instances[1].Addresses != nil {
		t.Errorf("%+v", spec.Instances)
	}
	*told = nil
	if err := s.handleTable([]byte(odd)); err != nil || *told != nil {
		t.Errorf("without a lookup: %v, got %+v", err, *told)
	}
}

// Without a connection the number of lookups is limited, and expired ones free their place.
func TestLookupsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // virtual time: independent of the machine's speed
		s := &session{sessionOptions: sessionOptions{times: defaultTimes}, changed: make(chan struct{}, 1),
			lookups: map[netip.Addr]*lookup{}}
		addr := netip.MustParseAddr("10.30.0.0")
		for range 2 * maxLookups {
			addr = addr.Next()
			s.request(link.Request{Lookup: []netip.Addr{addr}})
		}
		if len(s.lookups) != maxLookups {
			t.Errorf("%d lookups, want %d", len(s.lookups), maxLookups)
		}
		time.Sleep(link.LookupLimit + time.Nanosecond)
		s.request(link.Request{Lookup: []netip.Addr{addr}})
		if len(s.lookups) != 1 || s.lookups[addr] == nil {
			t.Errorf("%d lookups after all others are over", len(s.lookups))
		}
	})
}

// A reply of the largest size becomes a virtual service that fits an update of control planes.
func TestHugeAnswer(t *testing.T) {
	r := tableResult{App: "a.b"}
	for n := range maxInstances {
		i := tableEntry{Number: &n, Address: "10.18.0.1", Address6: "fd00:1234:5678:9abc:def0:1234:5678:9abc",
			Host: "2001:db8:1234:5678:9abc:def0:1234:5678"}
		for k := range 20 {
			v6 := netip.AddrFrom16([16]byte{0xfd, 0xff, 14: byte(k), 8: byte(n >> 8), 9: byte(n), 10: 0x12, 11: 0x34,
				12: 0x56, 13: 0x78})
			i.Virtual = append(i.Virtual, virtualAddress{Type: "instance_ip", Address6: v6.String()})
		}
		r.Instances = append(r.Instances, i)
	}
	s := translation{ranges: []netip.Prefix{netip.MustParsePrefix("fdff::/21")}}.spec(r)
	data, err := json.Marshal(s)
	if err != nil || len(data) > watch.MaxBytes {
		t.Errorf("%d bytes (%v), want at most %d", len(data), err, watch.MaxBytes)
	}
	if len(s.Instances) != maxInstances || len(s.Addresses) < maxInstances {
		t.Errorf("%d instances, %d addresses", len(s.Instances), len(s.Addresses))
	}
}

// The tunnel sends to the port in a reply if the instance is on another node.
func TestPortsOfNodes(t *testing.T) {
	own := map[netip.Addr]bool{netip.MustParseAddr("192.0.2.5"): true}
	for more, want := range map[string]int{
		`"host_ip":"192.0.2.1","host_port":50199,`:   50199,
		`"host_ip":"192.0.2.1","host_port":"50199",`: 50199,
		`"host_ip":"192.0.2.1","host_port":1,`:       1,
		`"host_ip":"192.0.2.1","host_port":65535,`:   65535,
		`"host_ip":"192.0.2.1","host_port":null,`:    0,
		`"host_ip":"192.0.2.1","host_port":"",`:      0,
		`"host_ip":"192.0.2.1",`:                     0,
		`"host_ip":"192.0.2.5","host_port":50199,`:   0,
		`"host_ip":null,"host_port":50199,`:          0,
	} {
		r, err := decodeTable([]byte(`{"app_name":"a","query_key":"a","instance_list":[`+entryOf(0, more)+`]}`), nil)
		if err != nil {
			t.Fatalf("%s: %v", more, err)
		}
		if i := (translation{own: own}).spec(r).Instances[0]; i.NodePort != want {
			t.Errorf("%s: port %d of node %q, want %d", more, i.NodePort, i.Node, want)
		}
	}
}

// A text that is not a host address does not become a node.
func TestInvalidNodeAddresses(t *testing.T) {
	own := map[netip.Addr]bool{netip.MustParseAddr("192.0.2.5"): true}
	for host, want := range map[string]string{
		"192.0.2.1": "192.0.2.1", "[2001:db8::1]": "2001:db8::1", "::ffff:192.0.2.1": "192.0.2.1", "192.0.2.5": "", "": "",
		"node-1":  "",
		"0.0.0.0": "", "::": "", "224.0.0.1": "", "ff02::1": "", "127.0.0.1": "", "255.255.255.255": "", "fe80::1%eth0": "",
	} {
		if got := (translation{own: own}).node(host); got != want {
			t.Errorf("host %q is node %q, want %q", host, got, want)
		}
	}
}
