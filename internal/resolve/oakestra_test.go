// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/config"
	"github.com/kerb-edge/kerb/internal/lab/oaktest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/sdk"
)

const nodeID = "6543af"

func startBroker(t *testing.T) *oaktest.Broker {
	t.Helper()
	b := oaktest.NewBroker(t)
	b.Start()
	return b
}

// manager is a cluster's service manager, by the documented messages.
type manager struct {
	*testing.T
	client mqtt.Client

	mu       sync.Mutex
	table    map[string]string // instance_list by app
	keys     map[string]string // app by address
	lose     map[string]int    // requests to leave without an answer, by key
	requests []string
	interest []string // removed
}

func startManager(t *testing.T, b *oaktest.Broker) *manager {
	t.Helper()
	m := &manager{T: t, table: map[string]string{}, keys: map[string]string{}, lose: map[string]int{}}
	ready := make(chan bool, 10)
	opts := mqtt.NewClientOptions().AddBroker(b.URL()).SetClientID("manager").SetConnectRetry(
		true).SetConnectRetryInterval(50 * time.Millisecond).
		SetMaxReconnectInterval(50 * time.Millisecond).SetOnConnectHandler(func(c mqtt.Client) {
		c.SubscribeMultiple(map[string]byte{"nodes/+/net/tablequery/request": 1, "nodes/+/net/interest/remove": 1}, m.receive)
		ready <- true
	})
	m.client = mqtt.NewClient(opts)
	m.client.Connect()
	t.Cleanup(func() { m.client.Disconnect(0) })
	<-ready
	return m
}

func (m *manager) receive(_ mqtt.Client, message mqtt.Message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if message.Topic() == "nodes/"+nodeID+"/net/interest/remove" {
		m.interest = append(m.interest, string(message.Payload()))
		return
	}
	m.requests = append(m.requests, string(message.Payload()))
	var r struct{ Sname, Sip string }
	if err := json.Unmarshal(message.Payload(), &r); err != nil || message.Topic() != "nodes/"+nodeID+
		"/net/tablequery/request" {
		m.Errorf("request on %s: %s", message.Topic(), message.Payload())
	}
	key := r.Sname + r.Sip
	if m.lose[key] > 0 {
		m.lose[key]--
		return
	}
	app := r.Sname
	if r.Sip != "" {
		app = m.keys[r.Sip]
	}
	m.answer(app, key)
}

func (m *manager) answer(app, key string) {
	list := m.table[app]
	if list == "" {
		list = "[]"
	}
	m.client.Publish("nodes/"+nodeID+"/net/tablequery/result", 1, false,
		fmt.Sprintf(`{"app_name":%q,"instance_list":%s,"query_key":%q}`, app, list, key))
}

// set changes an app; each of the addresses leads to it.
func (m *manager) set(app string, instances []string, addresses ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.table[app] = "[" + strings.Join(instances, ",") + "]"
	for _, a := range addresses {
		m.keys[a] = app
	}
}

func (m *manager) announce(app, kind string) {
	m.client.Publish("jobs/"+app+"/updates_available", 1, false, fmt.Sprintf(`{"type":%q}`, kind))
}

func (m *manager) asked(request string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, r := range m.requests {
		if r == request {
			n++
		}
	}
	return n
}

// running is an instance as the service manager reports it.
func running(number int, address, address6, host string) string {
	return fmt.Sprintf(
		`{"instance_number":%d,"namespace_ip":%q,"namespace_ip_v6":%q,"host_ip":%q,"host_port":50103,"service_ip":[
		{"IpType":"RR","Address":"10.30.0.2","Address_v6":"fdff:2000::2"},
		{"IpType":"instance_ip","Address":"10.30.1.%d","Address_v6":"fdff::%d"}]}`, number, address, address6, host, number+1, number+1)
}

// cluster is a node in a cluster.
type cluster struct {
	*plane
	broker  *oaktest.Broker
	manager *manager
	table   *Table
	stop    func()
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	b := startBroker(t)
	c := &cluster{broker: b, manager: startManager(t, b)}
	c.run(t, "")
	return c
}

func (c *cluster) run(t *testing.T, cache string) {
	t.Helper()
	c.table = NewTable(quiet, cache,
		NewOakestra(config.OakestraResolver{Broker: c.broker.URL(), Node: nodeID, Address: "198.51.100.1"}, quiet))
	c.table.Restore()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	table := c.table
	go func() { done <- table.Run(ctx) }()
	c.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(c.stop)
	c.plane = follow(t, c.table)
}

func (c *cluster) want(addresses ...string) {
	var w sdk.Requests
	for _, a := range addresses {
		w.Resolve = append(w.Resolve, netip.MustParseAddr(a))
	}
	c.subscription.Handle(w)
}

// until waits for a state of what the control plane has.
func (c *cluster) until(what string, got func() string, want string) {
	c.Helper()
	last := ""
	defer func() {
		if c.Failed() {
			c.Logf("%s: last %q, want %q; requests %q", what, last, want, c.manager.requests)
		}
	}()
	wait.Until(c.T, what, func() bool { c.sync(); last = got(); return last == want })
}

func (c *cluster) shop() string { return c.targets("oakestra.shop.ns") }

func (c *cluster) unknowns() string { return fmt.Sprint(c.plane.unknown) }

func TestTableQuery(t *testing.T) {
	c := newCluster(t)
	c.manager.set("shop.ns", []string{running(1, "10.18.1.3", "", "198.51.100.2"),
		running(0, "10.18.0.3", "fc00::3", "198.51.100.1")}, "10.30.0.2", "fdff::1")
	c.want("10.30.0.2")
	c.until("found", c.shop, "0=10.18.0.3,fc00::3@ 1=10.18.1.3@198.51.100.2")
	want := "[{10.30.0.2 roundRobin } {fdff:2000::2 roundRobin } {10.30.1.1  0} {fdff::1  0} {10.30.1.2  1} {fdff::2  1}]"
	c.expect("addresses", fmt.Sprint(c.has["oakestra.shop.ns"].Spec.Addresses), want)
	if n := c.manager.asked(`{"sname":"","sip":"10.30.0.2"}`); n == 0 {
		t.Errorf("requests: %q", c.manager.requests)
	}
	s, _ := c.table.View("oakestra.shop.ns")
	if s.Status.Source != v1.SourceOakestra || ready(s) != "True" {
		t.Errorf("%+v", s.Status)
	}
	c.want("10.30.7.7", "fdff:2000::7", "172.16.0.1")
	c.until("unknown", c.unknowns, "[172.16.0.1 10.30.7.7 fdff:2000::7]")
}

func ready(s v1.VirtualService) string {
	i := slices.IndexFunc(s.Status.Conditions, func(c v1.Condition) bool { return c.Type == "Ready" })
	return s.Status.Conditions[i].Status
}

// Answers that are lost are asked for again, for as long as an address may take; and then the key is free.
func TestLostAnswers(t *testing.T) {
	c := newCluster(t)
	c.manager.set("shop.ns", []string{running(0, "10.18.0.3", "", "198.51.100.2")}, "10.30.0.2")
	c.manager.set("late.ns",
		[]string{strings.ReplaceAll(running(0, "10.18.0.4", "", "198.51.100.2"), "10.30.", "10.30.20")}, "10.30.200.2")
	c.manager.lose["10.30.0.2"], c.manager.lose["10.30.200.2"] = 2, 1000
	c.want("10.30.0.2", "10.30.200.2")
	c.until("found at the third request", c.shop, "0=10.18.0.3@198.51.100.2")
	c.until("given up", c.unknowns, "[10.30.200.2]")
	wait.Until(t, "several requests in the time that an answer has", func() bool { // which the broker may deliver later
		c.manager.mu.Lock()
		defer c.manager.mu.Unlock()
		return c.manager.lose["10.30.200.2"] <= 1000-3
	})
	c.manager.mu.Lock()
	c.manager.lose["10.30.200.2"] = 0
	c.manager.mu.Unlock()
	c.want("10.30.200.2")
	c.until("found when asked again", func() string { return c.targets("oakestra.late.ns") }, "0=10.18.0.4@198.51.100.2")
}

func TestUpdates(t *testing.T) {
	c := newCluster(t)
	c.manager.set("shop.ns", []string{running(0, "10.18.0.3", "", "198.51.100.2")}, "10.30.0.2")
	c.want("10.30.0.2")
	c.until("found", c.shop, "0=10.18.0.3@198.51.100.2")
	// The subscription may be a moment behind the answer, so that the manager repeats the message until it was received.
	change := func(kind, want string, instances ...string) {
		t.Helper()
		c.manager.set("shop.ns", instances)
		wait.Until(t, kind+" is taken over", func() bool {
			c.manager.announce("shop.ns", kind)
			time.Sleep(20 * time.Millisecond) // the message arrives meanwhile, or in the next round
			c.sync()
			return c.shop() == want
		})
	}
	change("DEPLOYMENT", "0=10.18.0.3@198.51.100.2 1=10.18.5.3@198.51.100.5", running(0, "10.18.0.3", "", "198.51.100.2"),
		running(1, "10.18.5.3", "", "198.51.100.5"))
	change("DEPLOYMENT", "0=10.18.9.3@198.51.100.9 1=10.18.5.3@198.51.100.5", running(0, "10.18.9.3", "", "198.51.100.9"),
		running(1, "10.18.5.3", "", "198.51.100.5"))
	change("UNDEPLOYMENT", "1=10.18.5.3@198.51.100.5", running(1, "10.18.5.3", "", "198.51.100.5"))
	change("UNDEPLOYMENT", "")
	if len(c.has["oakestra.shop.ns"].Spec.Addresses) != 4 {
		t.Errorf("without instances it has the addresses %v", c.has["oakestra.shop.ns"].Spec.Addresses)
	}
	c.manager.mu.Lock()
	c.manager.lose["shop.ns"] = 3
	c.manager.mu.Unlock()
	change("DEPLOYMENT", "0=10.18.1.1@198.51.100.2", running(0, "10.18.1.1", "", "198.51.100.2"))
	if c.manager.asked(`{"sname":"shop.ns","sip":""}`) < 5 {
		t.Errorf("requests: %q", c.manager.requests)
	}
}

// An answer that was under way when something changed is not the last word.
func TestUpdateWhileAsking(t *testing.T) {
	o, told := NewOakestra(config.OakestraResolver{Node: nodeID}, quiet), &recorder{}
	o.Lookup(netip.MustParseAddr("10.30.0.2"))
	result := func(address string) {
		o.receive(resultTopic(nodeID),
			[]byte(`{"app_name":"shop","instance_list":[`+running(0, address, "", "198.51.100.2")+`],"query_key":"10.30.0.2"}`),
			told)
	}
	result("10.18.0.1")
	o.receive(updateTopic("shop"), []byte(`{"type":"DEPLOYMENT"}`), told)
	if out, _, _ := o.due(time.Now()); len(out) != 2 || out[1].body != (tableRequest{Name: "shop"}) {
		t.Fatalf("after the first change: %+v", out)
	}
	o.receive(updateTopic("shop"), []byte(`{"type":"DEPLOYMENT"}`), told)
	old := strings.Replace(`{"app_name":"shop","instance_list":[`+running(0, "10.18.0.2", "",
		"198.51.100.2")+`],"query_key":"K"}`, "K", "shop", 1)
	o.receive(resultTopic(nodeID), []byte(old), told)
	if out, _, _ := o.due(time.Now()); len(out) != 1 || out[0].body != (tableRequest{Name: "shop"}) {
		t.Errorf("after the second change: %+v", out)
	}
	o.receive(resultTopic(nodeID), []byte(strings.ReplaceAll(old, "10.18.0.2", "10.18.0.3")), told)
	if out, _, _ := o.due(time.Now()); len(out) != 0 ||
		told.found[len(told.found)-1].Spec.Instances[0].Addresses[0] != "10.18.0.3" {
		t.Errorf("in the end: %+v, %+v", out, told.found)
	}
}

func TestIdleTakesInterestBack(t *testing.T) {
	c := newCluster(t)
	c.manager.set("shop.ns", []string{running(0, "10.18.0.3", "", "198.51.100.2")}, "10.30.0.2")
	c.want("10.30.0.2")
	c.until("found", c.shop, "0=10.18.0.3@198.51.100.2")
	c.subscription.Handle(sdk.Requests{Release: []string{"oakestra.shop.ns"}})
	c.until("forgotten", c.names, "")
	wait.Until(t, "interest is removed", func() bool {
		c.manager.mu.Lock()
		defer c.manager.mu.Unlock()
		return slices.Equal(c.manager.interest, []string{`{"appname":"shop.ns"}`})
	})
	c.want("10.30.0.2")
	c.until("found again", c.shop, "0=10.18.0.3@198.51.100.2")
}

// A broker that goes and comes again costs nothing that is known, and what changed meanwhile is noticed.
func TestBrokerRestart(t *testing.T) {
	c := newCluster(t)
	c.manager.set("shop.ns", []string{running(0, "10.18.0.3", "", "198.51.100.2")}, "10.30.0.2")
	c.manager.set("new.ns",
		[]string{strings.ReplaceAll(running(0, "10.18.0.4", "", "198.51.100.2"), "10.30.", "10.30.20")}, "10.30.200.2")
	c.want("10.30.0.2")
	c.until("found", c.shop, "0=10.18.0.3@198.51.100.2")
	for i := range 3 {
		c.broker.Stop()
		wait.Until(t, "the broker is missed", func() bool { n, err := c.table.Resolvers(); return n == 1 && err != nil })
		c.manager.set("shop.ns", []string{running(0, fmt.Sprint("10.18.3.", i+1), "", "198.51.100.2")})
		c.sync().expect("while there is no broker", c.names(), "oakestra.shop.ns")
		if i == 2 {
			c.want("10.30.200.2")
		}
		c.broker.Start()
		c.until("what changed meanwhile", c.shop, fmt.Sprintf("0=10.18.3.%d@198.51.100.2", i+1))
	}
	if _, err := c.table.Resolvers(); err != nil {
		t.Error(err)
	}
	c.until("what was wanted meanwhile", func() string {
		if c.targets("oakestra.new.ns") == "" && len(c.plane.unknown) > 0 { // the broker took longer than an answer may
			c.plane.unknown = nil
			c.want("10.30.200.2")
		}
		return c.targets("oakestra.new.ns")
	}, "0=10.18.0.4@198.51.100.2")
}

// A restarted agent continues with what it had, and asks again.
func TestAgentRestart(t *testing.T) {
	b := startBroker(t)
	c, cache := &cluster{broker: b, manager: startManager(t, b)}, filepath.Join(t.TempDir(), "resolved.json")
	c.run(t, cache)
	c.manager.set("shop.ns", []string{running(0, "10.18.0.3", "", "198.51.100.2")}, "10.30.0.2")
	c.want("10.30.0.2")
	c.until("found", c.shop, "0=10.18.0.3@198.51.100.2")
	c.stop()
	b.Stop()
	c.run(t, cache)
	c.sync().expect("at once", c.shop(), "0=10.18.0.3@198.51.100.2")
	c.manager.set("shop.ns", []string{running(0, "10.18.0.4", "", "198.51.100.2")})
	b.Start()
	c.until("asked again", c.shop, "0=10.18.0.4@198.51.100.2")
}

// recorder is a sink.
type recorder struct {
	found   []Record
	unknown []netip.Addr
	gone    []string
}

func (r *recorder) Put(_ string, f Record)          { r.found = append(r.found, f) }
func (r *recorder) Delete(_, name string)           { r.gone = append(r.gone, name) }
func (r *recorder) NotFound(_ string, a netip.Addr) { r.unknown = append(r.unknown, a) }
func (*recorder) Records(string) map[string]Record  { return nil }

// What a faulty or hostile manager answers does no harm: no address outside the ranges is taken over, no name leads
// elsewhere.
func TestHostileAnswers(t *testing.T) {
	for name, answer := range map[string]string{
		"no JSON":     `{"app_name`,
		"nothing":     ``,
		"list":        `[]`,
		"other types": `{"app_name":7,"query_key":"10.30.0.2"}`,
		"no name": `{"app_name":"","instance_list":[` + running(0, "10.18.0.3", "",
			"") + `],"query_key":"10.30.0.2"}`,
		"topic in a name": `{"app_name":"a/#","instance_list":[` + running(0, "10.18.0.3", "",
			"") + `],"query_key":"10.30.0.2"}`,
		"foreign address": `{"app_name":"a","instance_list":[{"instance_number":0,"service_ip":[{"IpType":"RR","Address":"1.1.1.1"}]}],"query_key":"10.30.0.2"}`,
		"empty":           `{"app_name":"a","instance_list":[],"query_key":"10.30.0.2"}`,
		"negative": `{"app_name":"a","instance_list":[` + running(-1, "10.18.0.3", "",
			"") + `],"query_key":"10.30.0.2"}`,
	} {
		o, told := NewOakestra(config.OakestraResolver{Node: nodeID}, quiet), &recorder{}
		o.Lookup(netip.MustParseAddr("10.30.0.2"))
		o.receive(resultTopic(nodeID), []byte(answer), told)
		if len(told.found) != 0 {
			t.Errorf("%s: found %+v", name, told.found)
		}
		o.queries["10.30.0.2"] = &query{addr: netip.MustParseAddr("10.30.0.2")}
		_, _, _ = o.due(time.Now())
	}
	o, told := NewOakestra(config.OakestraResolver{Node: nodeID}, quiet), &recorder{}
	o.Lookup(netip.MustParseAddr("10.30.0.2"))
	odd := `{"app_name":"a","query_key":"10.30.0.2","instance_list":[` +
		`{"instance_number":3,"namespace_ip":"10.30.0.9","namespace_ip_v6":"10.18.0.1","host_ip":"nowhere","service_ip":[{"IpType":"RR","Address":"10.30.0.2"},{"IpType":"closest","Address":"10.30.0.3"}]},` +
		running(1, "10.18.0.3", "::1", "[2001:db8::1]") + `,` + running(1, "10.18.0.99", "", "198.51.100.2") + `]}`
	o.receive(resultTopic(nodeID), []byte(odd), told)
	spec := told.found[0].Spec
	if got := fmt.Sprint(spec.Addresses); got != "[{10.30.0.2 roundRobin } {fdff:2000::2 roundRobin } {10.30.1.2  1} "+
		"{fdff::2  1} {10.30.0.3 closest }]" {
		t.Error(got)
	}
	if len(spec.Instances) != 2 || spec.Instances[0].Node != "2001:db8::1" || len(spec.Instances[0].Addresses) != 1 ||
		spec.Instances[1].Addresses != nil {
		t.Errorf("%+v", spec.Instances)
	}
	o.receive(resultTopic(nodeID), []byte(strings.Replace(odd, `"a"`, `"b"`, 1)), told) // no lookup waits for it any more
	if len(told.found) != 1 {
		t.Error("an answer without a question was taken")
	}
}

// A client that tries all addresses does not delay other clients for long, and uses bounded memory.
func TestQueriesAreBounded(t *testing.T) {
	o := NewOakestra(config.OakestraResolver{Node: nodeID}, quiet)
	given := map[netip.Addr]bool{}
	for i := range 3 * maxQueries {
		o.Lookup(netip.AddrFrom16([16]byte{0xfd, 0xff, 0x20, 14: byte(i >> 8), 15: byte(i)}))
		if i%100 == 0 {
			_, unknown, _ := o.due(time.Now())
			for _, a := range unknown {
				given[a] = true
			}
		}
	}
	if len(o.queries) > maxQueries || len(given) < 2*maxQueries-100 {
		t.Errorf("%d queries open, %d given up", len(o.queries), len(given))
	}
	last := 3*maxQueries - 1
	if given[netip.AddrFrom16([16]byte{0xfd, 0xff, 0x20, 14: byte(last >> 8), 15: byte(last)})] {
		t.Error("the newest was given up")
	}
}
