// SPDX-License-Identifier: Apache-2.0

package oaktest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"

	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// Cluster is the root and cluster service manager. Its methods correspond to the HTTP requests of the system manager
// and the cluster manager.
type Cluster struct {
	t      testing.TB
	client mqtt.Client

	mu       sync.Mutex
	root     map[string]*job
	table    map[string]*job // the cluster's copies; dropped by a restart
	interest map[string][]string
	subnets  int
	pool     int // IPv4 addresses, of services and instances
	services int
	last     int // number of instances so far
	received []Message
	lose     map[string]int
	// exhausted is set when the root has no subnet left: requests get no reply.
	exhausted bool
	dead      bool
	answers   int
	twice     int
	quiet     bool     // notices are delayed
	kept      []string // services of delayed notices
}

// Message is a message published by a worker.
type Message struct {
	Worker, Topic string // Topic is the part after nodes/ID/net/
	Payload       string
}

type object = map[string]any

// job is a service. Its entries have the keys that the real managers send.
type job struct {
	id        int // of the root
	address   [2]string
	instances map[int]object
}

// NewCluster connects to a running broker, with dial if the broker is in another network namespace.
func NewCluster(t testing.TB, b *Broker, dial ...mqtt.OpenConnectionFunc) *Cluster {
	t.Helper()
	c := &Cluster{t: t, root: map[string]*job{}, table: map[string]*job{}, interest: map[string][]string{},
		lose: map[string]int{}}
	ready := make(chan bool, 16)
	// No client ID: the same ID would end the connection of an earlier cluster that the broker still has.
	opts := mqtt.NewClientOptions().AddBroker(b.URL()).SetConnectRetry(true).
		SetConnectRetryInterval(20 * time.Millisecond).SetMaxReconnectInterval(20 * time.Millisecond).
		SetOnConnectHandler(func(client mqtt.Client) {
			// Messages published before the broker has the subscription are lost.
			if s := client.Subscribe("nodes/+/net/#", 1, c.receive); s.Wait() && s.Error() == nil {
				ready <- true
			}
		})
	for _, f := range dial {
		opts.SetCustomOpenConnectionFn(f)
	}
	c.client = mqtt.NewClient(opts)
	c.client.Connect()
	t.Cleanup(func() { disconnect(c.client) })
	<-ready
	return c
}

// disconnect returns when a client has disconnected. Disconnect(0) returns immediately: the client may still receive,
// and reply to, later messages. Without a connection, Disconnect would wait for its whole timeout.
func disconnect(c mqtt.Client) {
	var quiesce time.Duration
	if c.IsConnectionOpen() {
		quiesce = wait.Patience
	}
	c.Disconnect(uint(quiesce.Milliseconds()))
}

// receive replies like the real managers, which ignore unknown messages: a worker must not depend on rejections.
func (c *Cluster) receive(_ mqtt.Client, m mqtt.Message) {
	parts := strings.SplitN(m.Topic(), "/", 4)
	worker, topic := parts[1], parts[3]
	if strings.HasSuffix(topic, "/result") {
		return // its own message, by the wildcard
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.received = append(c.received, Message{worker, topic, string(m.Payload())})
	if c.lose[topic] > 0 {
		c.lose[topic]--
		return
	}
	var in struct {
		Method, Sname, Sip, Appname, Nsip, Nsipv6 string
		Host                                      string `json:"host_ip"`
		Port                                      any    `json:"host_port"`
		Number                                    int    `json:"instance_number"`
	}
	if err := json.Unmarshal(m.Payload(), &in); err != nil {
		c.t.Errorf("%s: %s: %v", m.Topic(), m.Payload(), err)
	}
	switch {
	case c.dead:
	case topic == "subnet" && in.Method == "GET":
		c.assign(worker)
	case topic == "tablequery/request":
		c.query(worker, in.Sname, in.Sip)
	case topic == "service/deployed":
		c.deployed(in.Appname, in.Number, worker, object{"namespace_ip": in.Nsip, "namespace_ip_v6": in.Nsipv6,
			"host_ip": in.Host, "host_port": toPort(in.Port)})
	case topic == "service/address-changed":
		c.deployed(in.Appname, in.Number, worker, object{"host_ip": in.Host, "host_port": toPort(in.Port)})
		c.notice(in.Appname, "DEPLOYMENT") // one of the cluster, and one that the root causes
	case topic == "interest/remove":
		c.withdraw(worker, in.Appname)
	}
}

func toPort(v any) (port int) {
	_, _ = fmt.Sscan(fmt.Sprint(v), &port)
	return port
}

func (c *Cluster) publish(topic string, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		c.t.Error(err)
	}
	c.client.Publish(topic, 1, false, data)
}

// assign never frees a subnet: each request uses one up.
func (c *Cluster) assign(worker string) {
	if c.exhausted {
		return
	}
	c.publish("nodes/"+worker+"/net/subnetwork/result", object{
		"address": nth("10.18.0.0", c.subnets*64), "addressv6": nth("fc00::", c.subnets*256)})
	c.subnets++
}

func nth(first string, n int) string {
	a := netip.MustParseAddr(first)
	for range n {
		a = a.Next()
	}
	return a.String()
}

// load fetches a service from the root, if the table does not have it. Entries of the root have no worker.
func (c *Cluster) load(name string) *job {
	if c.table[name] == nil && c.root[name] != nil {
		j := c.root[name]
		c.table[name] = &job{j.id, j.address, map[int]object{}}
		for n, i := range j.instances {
			c.table[name].instances[n] = without(i, "worker_id")
		}
	}
	return c.table[name]
}

func without(o object, key string) object {
	out := object{}
	for k, v := range o {
		if k != key {
			out[k] = v
		}
	}
	return out
}

func (c *Cluster) query(worker, name, address string) {
	key := name + address
	if name == "" {
		name = c.find(address)
	}
	j := c.load(name)
	list := []object{}
	if j != nil {
		list = j.list()
		if !slices.Contains(c.interest[name], worker) {
			c.interest[name] = append(c.interest[name], worker)
		}
	}
	answer := object{"app_name": name, "instance_list": list, "query_key": key}
	c.publish("nodes/"+worker+"/net/tablequery/result", answer)
	if c.answers++; c.twice > 0 && c.answers%c.twice == 0 {
		c.publish("nodes/"+worker+"/net/tablequery/result", answer)
	}
}

func (c *Cluster) find(address string) string {
	for name, j := range c.root {
		if address == j.address[0] || address == j.address[1] {
			return name
		}
		for _, i := range j.instances {
			if address == i["instance_ip"] || address == i["instance_ip_v6"] {
				return name
			}
		}
	}
	return ""
}

func (j *job) list() []object {
	var numbers []int
	for n := range j.instances {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	list := []object{}
	for _, n := range numbers {
		i := without(j.instances[n], "")
		i["service_ip"] = []object{{"IpType": "RR", "Address": j.address[0], "Address_v6": j.address[1]},
			{"IpType": "instance_ip", "Address": i["instance_ip"], "Address_v6": i["instance_ip_v6"]}}
		list = append(list, i)
	}
	return list
}

// deployed silently ignores an instance that is not in the table.
func (c *Cluster) deployed(name string, number int, worker string, status object) {
	if c.table[name] == nil {
		return
	}
	if i := c.table[name].instances[number]; i != nil {
		i["worker_id"] = worker
	}
	for _, j := range []*job{c.table[name], c.root[name]} {
		if i := j.instances[number]; i != nil {
			maps.Copy(i, status)
		}
	}
	c.notice(name, "DEPLOYMENT")
}

func (c *Cluster) notice(name, kind string) {
	switch {
	case c.quiet:
		c.kept = append(c.kept, name)
	case c.table[name] != nil:
		c.publish("jobs/"+name+"/updates_available", object{"type": kind})
	}
}

// Quiet delays notifications of changes until end is called.
func (c *Cluster) Quiet() (end func()) {
	c.locked(func() { c.quiet = true })
	return func() {
		c.locked(func() {
			c.quiet = false
			for _, name := range c.kept {
				c.notice(name, "DEPLOYMENT")
			}
			c.kept = nil
		})
	}
}

// withdraw crashes the service manager if other workers are interested, and the withdrawing one is not.
func (c *Cluster) withdraw(worker, name string) {
	all := c.interest[name]
	if c.table[name] == nil || len(all) == 0 {
		return
	}
	i := slices.Index(all, worker)
	if c.dead = i < 0; c.dead {
		return
	}
	if c.interest[name] = slices.Delete(slices.Clone(all), i, i+1); len(all) == 1 {
		delete(c.table, name)
	}
}

// address allocates the next address of the root's pool, whose octets end at 253. None is reused.
func (c *Cluster) address() string {
	n := c.pool
	c.pool++
	return nth("10.30.0.0", n/254*256+n%254)
}

// locked runs f while no message is handled.
func (c *Cluster) locked(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// Create creates a service without instances.
func (c *Cluster) Create(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.root[name] = &job{c.services, [2]string{c.address(), nth("fdff:2000::", c.services)}, map[int]object{}}
	c.services++
}

// Remove removes a service without instances from the root. The cluster keeps it while a worker has an interest in it.
func (c *Cluster) Remove(name string) { c.locked(func() { delete(c.root, name) }) }

// Schedule places an instance; the table has its worker after it is deployed. An existing instance moves: it keeps its
// instance address, and its other addresses become null. The cluster does not accept an instance of a service that was
// removed and created again while a worker kept its interest in the former one.
func (c *Cluster) Schedule(name string, number int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.root[name].instances[number]
	four, six := c.address(), nth("fdff::", c.last) // the root allocates them in any case
	c.last++
	if i == nil {
		i = object{"cluster_id": "6650000000000000000000c1", "instance_number": number,
			"instance_ip": four, "instance_ip_v6": six}
		c.root[name].instances[number] = i
	} else {
		for _, key := range []string{"namespace_ip", "namespace_ip_v6", "host_ip", "host_port"} {
			i[key] = nil
		}
	}
	if c.load(name).id != c.root[name].id {
		return // "Service resolution failed": the id in the table cannot be changed
	}
	c.table[name].instances[number] = without(i, "")
}

// Undeploy undeploys an instance.
func (c *Cluster) Undeploy(name string, number int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.root[name].instances, number)
	delete(c.load(name).instances, number)
	c.notice(name, "UNDEPLOYMENT")
}

// Restart restarts the cluster service manager.
func (c *Cluster) Restart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.table, c.interest, c.dead = map[string]*job{}, map[string][]string{}, false
}

// Exhaust sets whether the root has no subnets left.
func (c *Cluster) Exhaust(none bool) { c.locked(func() { c.exhausted = none }) }

// Lose drops the next messages of a topic.
func (c *Cluster) Lose(topic string, n int) { c.locked(func() { c.lose[topic] = n }) }

// Twice sends every nth reply twice, as QoS 1 permits.
func (c *Cluster) Twice(nth int) { c.locked(func() { c.twice = nth }) }

// Addresses returns the addresses of a service, IPv4 and IPv6.
func (c *Cluster) Addresses(name string) (a [2]string) {
	c.locked(func() { a = c.root[name].address })
	return a
}

// InstanceAddresses returns the addresses of a scheduled instance, IPv4 and IPv6.
func (c *Cluster) InstanceAddresses(name string, number int) [2]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.root[name].instances[number]
	return [2]string{i["instance_ip"].(string), i["instance_ip_v6"].(string)}
}

// Forge publishes bytes as the cluster would.
func (c *Cluster) Forge(topic, payload string) { c.client.Publish(topic, 1, false, payload).Wait() }

// Dead reports whether a worker has crashed the service manager by withdrawing an interest that it did not have.
func (c *Cluster) Dead() (dead bool) {
	c.locked(func() { dead = c.dead })
	return dead
}

// Subnets returns how many subnets have been used up.
func (c *Cluster) Subnets() (n int) {
	c.locked(func() { n = c.subnets })
	return n
}

// Received returns the messages published by workers, in order.
func (c *Cluster) Received() (all []Message) {
	c.locked(func() { all = slices.Clone(c.received) })
	return all
}

// Interested returns the workers with an interest in a service.
func (c *Cluster) Interested(name string) (workers []string) {
	c.locked(func() { workers = slices.Clone(c.interest[name]) })
	return workers
}

// Where returns the location of an instance in the root's table, as "namespace address@host:port".
func (c *Cluster) Where(name string, number int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.root[name] == nil || c.root[name].instances[number] == nil {
		return ""
	}
	i := c.root[name].instances[number]
	return fmt.Sprintf("%v@%v:%v", i["namespace_ip"], i["host_ip"], i["host_port"])
}
