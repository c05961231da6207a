// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
	"github.com/kerb-edge/kerb/internal/seed"
)

// hostState determines the permitted results of connections to a host: ended is odd while it is being removed as an
// instance, and even when the proxy has the change; dead is the time since when the proxy has not had it.
type hostState struct {
	ended atomic.Int64
	dead  atomic.Int64 // Unix time in ns; 0: it is an instance, or may still be used as one
}

// churn changes a virtual service while clients use it.
type churn struct {
	t        *testing.T
	r        *rand.Rand // of the changes
	n        *node
	client   *netlab.Host
	witness  witness
	spec     v1.VirtualServiceSpec
	hosts    map[string]*hostState
	free     []string // hosts that are not instances
	stop     chan struct{}
	clients  sync.WaitGroup
	targets  atomic.Int64 // addresses used, round-robin
	opened   atomic.Int64 // connections
	kept     atomic.Int64 // exchanges on them
	legit    atomic.Int64 // legitimately broken: their host is not an instance any more
	datagram atomic.Int64
	silent   atomic.Int64 // datagrams without a reply
	dying    atomic.Int64 // failed new connections, each to a host that was being removed

	mu      sync.Mutex
	wrong   []string
	what    string // the last change, or the one in progress
	changed time.Time
}

const (
	churnHosts     = 6
	churnInstances = 4
	churnClients   = 8 // of each kind
	churnEvery     = 100 * time.Millisecond
)

func (c *churn) startChange(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.what, c.changed = fmt.Sprintf(format, args...), time.Now()
}

func (c *churn) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrong = append(c.wrong, fmt.Sprintf("%v after %s: ", time.Since(c.changed).Round(time.Millisecond), c.what)+
		fmt.Sprintf(format, args...))
}

// TestChurn redeploys, drains, removes and adds instances under load, and kills the agent in between. No connection to
// a live instance breaks, and no new one reaches a removed instance.
func TestChurn(t *testing.T) {
	lasts := 4 * time.Second
	if text := os.Getenv("KERB_CHURN"); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	c := newChurn(t)
	for range churnClients {
		c.clients.Go(c.holdConnection)
		c.clients.Go(c.openConnections)
		c.clients.Go(c.sendDatagrams)
	}
	changes, begin := 0, time.Now()
	killed := false
	for tick := time.Tick(churnEvery); time.Since(begin) < lasts; <-tick {
		c.change()
		changes++
		if !killed && time.Since(begin) > lasts/2 {
			killed = true
			c.startChange("the death of the agent")
			c.n.Kill()
			c.n.Start()
			c.n.synced("web")
		}
	}
	close(c.stop)
	c.clients.Wait()
	t.Logf("%d changes in %v; %d connections, %d exchanges, %d broken and %d not made, each as the instance that it met "+
		"went; %d datagrams, %d without answer", changes, time.Since(begin).Round(time.Second),
		c.opened.Load(), c.kept.Load(), c.legit.Load(), c.dying.Load(), c.datagram.Load(), c.silent.Load())
	if c.opened.Load() == 0 || c.kept.Load() == 0 || c.datagram.Load() == 0 || changes < 3 {
		t.Error("nothing was tested")
	}
	for i, text := range c.wrong {
		if i == 20 {
			t.Fatalf("and %d more", len(c.wrong)-i)
		}
		t.Error(text)
	}
}

func newChurn(t *testing.T) *churn {
	t.Helper()
	n := &node{nodetest.New(t)}
	c := &churn{t: t, r: seed.Rand(t), n: n, client: n.Host("client"), hosts: map[string]*hostState{},
		stop: make(chan struct{})}
	resources := []any{service(c.client)}
	for i := range churnHosts {
		h := n.Host(fmt.Sprintf("h%d", i))
		serve(t, h)
		c.witness.watch(t, h)
		resources = append(resources, service(h))
		c.hosts[h.Name()] = &hostState{}
		c.free = append(c.free, h.Name())
	}
	c.spec = v1.VirtualServiceSpec{Ports: bothPorts, Addresses: []v1.VirtualAddress{
		{Address: virtual4.String(), Policy: v1.PolicyRoundRobin},
		{Address: virtual6.String(), Policy: v1.PolicyLeastConnections}}}
	for i := range churnInstances {
		c.spec.Instances = append(c.spec.Instances, v1.VirtualInstance{Name: fmt.Sprintf("i%d", i), Service: c.takeFree()})
	}
	n.Start()
	n.Apply(append(resources, proxyModule(nil), virtualService("web", c.spec))...)
	n.synced("web")
	return c
}

func (c *churn) takeFree() string {
	name := c.free[0]
	c.free = c.free[1:]
	c.hosts[name].dead.Store(0)
	return name
}

// change makes one change, and waits until the proxy has it.
func (c *churn) change() {
	c.t.Helper()
	c.spec.Instances = slices.Clone(c.spec.Instances)
	var gone []string
	i := c.r.IntN(len(c.spec.Instances))
	at := &c.spec.Instances[i]
	switch c.r.IntN(4) {
	case 0:
		gone = append(gone, at.Service)
		at.Service, at.Draining = c.takeFree(), false
		c.startChange("redeploying %s from %s to %s", at.Name, gone[0], at.Service)
	case 1:
		at.Draining = !at.Draining
		c.startChange("draining %s (%s): %t", at.Name, at.Service, at.Draining)
	case 2:
		if len(c.spec.Instances) > 2 {
			c.startChange("removing %s (%s)", at.Name, at.Service)
			gone = append(gone, at.Service)
			c.spec.Instances = slices.Delete(c.spec.Instances, i, i+1)
		}
	case 3:
		if len(c.spec.Instances) < churnInstances {
			added := v1.VirtualInstance{Name: c.unusedName(), Service: c.takeFree()}
			c.startChange("adding %s (%s)", added.Name, added.Service)
			c.spec.Instances = append(c.spec.Instances, added)
		}
	}
	if !slices.ContainsFunc(c.spec.Instances, func(i v1.VirtualInstance) bool { return !i.Draining }) {
		c.spec.Instances[0].Draining = false
	}
	for _, name := range gone {
		c.hosts[name].ended.Add(1)
	}
	c.n.Must(http.MethodPut, "/v1/virtualservices/web", virtualService("web", c.spec), nil)
	c.n.synced("web")
	for _, name := range gone {
		c.hosts[name].ended.Add(1)
		c.hosts[name].dead.Store(time.Now().UnixNano())
		c.free = append(c.free, name)
	}
}

func (c *churn) unusedName() string {
	for i := 0; ; i++ {
		name := fmt.Sprintf("i%d", i)
		if !slices.ContainsFunc(c.spec.Instances, func(i v1.VirtualInstance) bool { return i.Name == name }) {
			return name
		}
	}
}

func (c *churn) stopped() bool {
	select {
	case <-c.stop:
		return true
	default:
		return false
	}
}

func (c *churn) target() netip.AddrPort {
	if c.targets.Add(1)%2 == 0 {
		return netip.AddrPortFrom(virtual4, port)
	}
	return netip.AddrPortFrom(virtual6, port)
}

// connect opens a connection, and checks that its host is an instance. A failed one must have reached a host that was
// just removed.
func (c *churn) connect() (*connection, int64) {
	ends := map[string]int64{}
	for name, h := range c.hosts {
		ends[name] = h.ended.Load()
	}
	began := time.Now().UnixNano()
	to := c.target()
	conn, own, err := c.witness.dial(c.client, to)
	met := ""
	if err != nil {
		met = c.witness.met(own, to)
	} else {
		met = conn.server
		c.opened.Add(1)
	}
	h := c.hosts[met]
	if h == nil {
		c.note("a new connection came to no host: %v", err)
		return nil, 0
	}
	if dead := h.dead.Load(); dead != 0 && dead < began {
		c.note("a new connection went to %s, which is gone for %v (%v)", met, time.Duration(began-dead), err)
	}
	if err != nil && h.ended.Load() == ends[met] && ends[met]%2 == 0 {
		c.note("a new connection to %s, which lives: %v", met, err)
	} else if err != nil {
		c.dying.Add(1)
	}
	return conn, ends[met]
}

// use exchanges lines until it is stopped, and checks that a connection breaks only with its instance.
func (c *churn) use(conn *connection, ended int64, times int) bool {
	for i := range times {
		if c.stopped() {
			return false
		}
		if err := conn.exchange(fmt.Sprint("line ", i)); err != nil {
			if c.hosts[conn.server].ended.Load() == ended && ended%2 == 0 {
				c.note("a connection to %s, which lives: %v", conn.server, err)
			}
			c.legit.Add(1)
			return false
		}
		c.kept.Add(1)
		time.Sleep(5 * time.Millisecond) // the client's rate
	}
	return true
}

// holdConnection keeps a connection for as long as its instance lives.
func (c *churn) holdConnection() {
	for !c.stopped() {
		if conn, ended := c.connect(); conn != nil {
			c.use(conn, ended, 1<<30)
			conn.Close()
		}
	}
}

// openConnections makes short connections.
func (c *churn) openConnections() {
	for !c.stopped() {
		if conn, ended := c.connect(); conn != nil {
			c.use(conn, ended, 1)
			conn.Close()
		}
	}
}

// sendDatagrams sends datagrams from one port.
func (c *churn) sendDatagrams() {
	conn, err := dialUDP(c.client, c.target())
	if err != nil {
		c.note("UDP: %v", err)
		return
	}
	defer func(conn *net.UDPConn) { conn.Close() }(conn)
	for i := 0; !c.stopped(); i++ {
		text := fmt.Sprint(i)
		if _, err := askUDP(conn, text, time.Second); err != nil {
			c.silent.Add(1)
		}
		c.datagram.Add(1)
		time.Sleep(2 * time.Millisecond) // the client's rate
	}
}
