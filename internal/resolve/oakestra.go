// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/config"
)

// Times of table queries.
const (
	queryLimit = 5 * time.Second        // after which an address is unknown
	firstRetry = 200 * time.Millisecond // of a query without an answer, then twice as long each time
	lastRetry  = 30 * time.Second       // for what is known already and asked again
	writeLimit = 2 * time.Second        // for the broker to take a message
)

const oakestraPrefix = v1.SourceOakestra + "." // of the names of what it finds

// Oakestra asks the service manager of an Oakestra cluster, over the cluster's MQTT broker, which instances an address
// stands for, and asks again whenever it says that something has changed.
type Oakestra struct {
	cfg       config.OakestraResolver
	log       *slog.Logger
	ranges    []netip.Prefix
	changed   chan struct{} // queries or messages wait
	connected chan struct{}

	mu       sync.Mutex        // never held during calls of the sink: the table calls Lookup with its own lock held
	client   mqtt.Client       // nil before Run
	queries  map[string]*query // by key of the answer
	apps     map[string]*app
	own      map[netip.Addr]bool
	outgoing []message
	givenUp  []netip.Addr // NotFound has not been reported yet
}

// query is a question that has no answer yet.
type query struct {
	addr    netip.Addr // by address; invalid for one by name
	app     string
	expires time.Time // zero for one by name, which is asked for as long as it takes
	next    time.Time // when it is sent (again)
	pause   time.Duration
	stale   bool // something has changed since it was sent: another one must follow
}

// app is a service that was found.
type app struct{ found Record }

// message is one to be sent; of a subscription it has only the topic.
type message struct {
	topic       string
	body        any
	subscribe   bool
	unsubscribe bool
}

var _ Resolver = (*Oakestra)(nil)

// NewOakestra makes a resolver of a configuration that was checked.
func NewOakestra(cfg config.OakestraResolver, log *slog.Logger) *Oakestra {
	cfg = cfg.WithDefaults()
	o := &Oakestra{cfg: cfg, log: log.With("resolver", v1.SourceOakestra), changed: make(chan struct{}, 1),
		connected: make(chan struct{}, 1),
		queries:   map[string]*query{}, apps: map[string]*app{}}
	for _, text := range cfg.Ranges {
		o.ranges = append(o.ranges, netip.MustParsePrefix(text))
	}
	return o
}

// Source implements Resolver.
func (o *Oakestra) Source() string { return v1.SourceOakestra }

// Lookup implements Resolver.
func (o *Oakestra) Lookup(addr netip.Addr) bool {
	if !(translation{ranges: o.ranges}).virtual(addr) {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if key := addr.String(); o.queries[key] == nil {
		o.makeRoom()
		now := time.Now()
		o.queries[key] = &query{addr: addr, expires: now.Add(queryLimit), next: now, pause: firstRetry}
		o.wake()
	}
	return true
}

// maxQueries are open at once. A service that tries all addresses must not use up memory.
const maxQueries = 4096

// makeRoom gives up on the query that has waited longest: what exists is answered soon.
func (o *Oakestra) makeRoom() {
	if len(o.queries) < maxQueries {
		return
	}
	var oldest *query
	for _, q := range o.queries {
		if q.addr.IsValid() && (oldest == nil || q.expires.Before(oldest.expires)) {
			oldest = q
		}
	}
	if oldest != nil {
		delete(o.queries, oldest.addr.String())
		o.givenUp = append(o.givenUp, oldest.addr)
	}
}

// Release implements Resolver.
func (o *Oakestra) Release(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	name = strings.TrimPrefix(name, oakestraPrefix)
	if o.apps[name] == nil {
		return
	}
	delete(o.apps, name)
	delete(o.queries, name)
	o.send(message{topic: updateTopic(name), unsubscribe: true},
		message{topic: interestTopic(o.cfg.Node), body: interestRemove{name}})
}

// Err implements Resolver.
func (o *Oakestra) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.client == nil || !o.client.IsConnectionOpen() {
		return fmt.Errorf("no connection to the broker %s; trying again and again", o.cfg.Broker)
	}
	return nil
}

// send notes messages; o.mu is held.
func (o *Oakestra) send(m ...message) {
	o.outgoing = append(o.outgoing, m...)
	o.wake()
}

func (o *Oakestra) wake() {
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// Run implements Resolver.
func (o *Oakestra) Run(ctx context.Context, sink Sink) error {
	options, err := o.options(sink)
	if err != nil {
		return err
	}
	o.restore(sink)
	client := mqtt.NewClient(options)
	o.mu.Lock()
	o.client = client
	o.mu.Unlock()
	client.Connect() // continues in the background until there is a broker
	defer client.Disconnect(250)
	var working sync.WaitGroup
	defer working.Wait()
	messages := make(chan []message)
	defer close(messages)
	working.Go(func() {
		for batch := range messages {
			o.publish(client, batch)
		}
	})
	timer := time.NewTimer(0)
	defer timer.Stop()
	var waiting []message
	for {
		due, unknown, next := o.due(time.Now())
		waiting = append(waiting, due...)
		for _, addr := range unknown {
			sink.NotFound(v1.SourceOakestra, addr)
		}
		timer.Reset(time.Until(next))
		to := messages
		if len(waiting) == 0 {
			to = nil
		}
		select {
		case to <- waiting:
			waiting = nil
		case <-ctx.Done():
			return nil
		case <-o.connected:
			o.resume()
		case <-o.changed:
		case <-timer.C:
		}
	}
}

// restore adopts the records that an earlier agent stored. They are looked up again.
func (o *Oakestra) restore(sink Sink) {
	known := sink.Records(v1.SourceOakestra)
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, found := range known {
		o.apps[strings.TrimPrefix(found.Name, oakestraPrefix)] = &app{found}
	}
}

// due takes what is to be sent now, and what has taken too long; next is when to look again.
func (o *Oakestra) due(now time.Time) (out []message, unknown []netip.Addr, next time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	out, o.outgoing = o.outgoing, nil
	unknown, o.givenUp = o.givenUp, nil
	next = now.Add(time.Minute)
	for key, q := range o.queries {
		if !q.expires.IsZero() && !now.Before(q.expires) {
			delete(o.queries, key)
			unknown = append(unknown, q.addr)
			continue
		}
		if !now.Before(q.next) {
			request := tableRequest{Name: q.app}
			if q.addr.IsValid() {
				request.Address = q.addr.String()
			}
			out = append(out, message{topic: requestTopic(o.cfg.Node), body: request})
			q.next, q.pause = now.Add(q.pause), min(2*q.pause, lastRetry)
		}
		next = earliest(next, q.next, q.expires)
	}
	return out, unknown, next
}

func earliest(first time.Time, others ...time.Time) time.Time {
	for _, t := range others {
		if !t.IsZero() && t.Before(first) {
			first = t
		}
	}
	return first
}

// publish sends what can be sent. Queries that cannot are sent again by their own rules, and interest that could not be
// taken back costs the cluster a message.
func (o *Oakestra) publish(client mqtt.Client, batch []message) {
	if !client.IsConnectionOpen() {
		return
	}
	for _, m := range batch {
		switch {
		case m.subscribe:
			client.Subscribe(m.topic, 1, nil)
		case m.unsubscribe:
			client.Unsubscribe(m.topic)
		default:
			data, err := json.Marshal(m.body)
			if err != nil {
				o.log.Error("cannot encode a message", "topic", m.topic, "error", err)
				continue
			}
			client.Publish(m.topic, 1, false, data)
		}
	}
}

// options are those of the connection. It is made again whenever it breaks.
func (o *Oakestra) options(sink Sink) (*mqtt.ClientOptions, error) {
	opts := mqtt.NewClientOptions().AddBroker(o.cfg.Broker).SetClientID("kerb-" + o.cfg.Node).SetProtocolVersion(
		4).SetCleanSession(true).
		SetAutoReconnect(true).SetConnectRetry(true).SetConnectRetryInterval(time.Second).SetMaxReconnectInterval(
		2 * time.Second).
		SetConnectTimeout(5 * time.Second).SetKeepAlive(10 * time.Second).SetPingTimeout(3 * time.Second).SetWriteTimeout(
		writeLimit).
		SetResumeSubs(false)
	opts.SetDefaultPublishHandler(func(_ mqtt.Client, m mqtt.Message) { o.receive(m.Topic(), m.Payload(), sink) })
	opts.SetOnConnectHandler(func(c mqtt.Client) {
		o.log.Info("connected to the broker", "broker", o.cfg.Broker)
		c.Subscribe(resultTopic(o.cfg.Node), 1, nil)
		select {
		case o.connected <- struct{}{}:
		default:
		}
	})
	opts.SetConnectionLostHandler(func(_ mqtt.Client, err error) {
		o.log.Warn("lost the broker; connecting again", "broker", o.cfg.Broker, "error", err)
	})
	if o.cfg.Username != "" {
		opts.SetUsername(o.cfg.Username)
	}
	if o.cfg.PasswordFile != "" {
		password, err := os.ReadFile(o.cfg.PasswordFile)
		if err != nil {
			return nil, err
		}
		opts.SetPassword(strings.TrimRight(string(password), "\r\n"))
	}
	secure, err := o.tls()
	if err != nil {
		return nil, err
	}
	return opts.SetTLSConfig(secure), nil
}

func (o *Oakestra) tls() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.cfg.CA != "" {
		pem, err := os.ReadFile(o.cfg.CA)
		if err != nil {
			return nil, err
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate", o.cfg.CA)
		}
	}
	if o.cfg.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(o.cfg.Certificate, o.cfg.Key)
		if err != nil {
			return nil, err
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// resume subscribes again after a connection was made, and asks for everything again: changes in the meantime were not
// published. Subscriptions come first, so that nothing is missed in between.
func (o *Oakestra) resume() {
	own := ownAddresses(o.cfg.Address)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.own = own
	for name := range o.apps {
		o.send(message{topic: updateTopic(name), subscribe: true})
		o.refresh(name)
	}
	for _, q := range o.queries {
		q.next, q.pause = time.Now(), firstRetry
	}
}

func ownAddresses(stated string) map[netip.Addr]bool {
	own := map[netip.Addr]bool{}
	if a, err := netip.ParseAddr(stated); err == nil {
		own[a] = true
	}
	all, _ := net.InterfaceAddrs() // without them instances of this node look like those of others, which still works
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own[p.Addr().Unmap()] = true
		}
	}
	return own
}

// refresh asks for a known service again. An answer to an older question may be older than what has changed.
func (o *Oakestra) refresh(name string) {
	if q := o.queries[name]; q != nil {
		q.stale = true
		return
	}
	o.queries[name] = &query{app: name, next: time.Now(), pause: firstRetry}
	o.wake()
}

// receive takes a message of the broker. It must not wait: messages come one at a time.
func (o *Oakestra) receive(topic string, payload []byte, sink Sink) {
	if topic == resultTopic(o.cfg.Node) {
		r, err := decodeResult(payload)
		if err != nil {
			o.log.Warn("answer refused", "error", err)
			return
		}
		o.take(r, sink)
		return
	}
	name, isUpdate := strings.CutSuffix(strings.TrimPrefix(topic, "jobs/"), "/updates_available")
	o.mu.Lock()
	defer o.mu.Unlock()
	if isUpdate && o.apps[name] != nil {
		o.refresh(name)
	}
}

// take takes an answer.
func (o *Oakestra) take(r tableResult, sink Sink) {
	o.mu.Lock()
	q := o.queries[canonicalKey(r.Key)]
	known := o.apps[r.App]
	if q == nil && known == nil || r.App == "" && q != nil && !q.addr.IsValid() {
		o.mu.Unlock()
		return // too late, or of no use
	}
	if q != nil && q.stale {
		q.stale, q.next, q.pause = false, time.Now(), firstRetry
		o.wake()
	} else {
		delete(o.queries, canonicalKey(r.Key))
	}
	found := Record{Name: oakestraPrefix + r.App, Spec: translation{o.ranges, o.own}.spec(r)}
	if known != nil && len(found.Spec.Instances) == 0 {
		found.Spec.Addresses = known.found.Spec.Addresses // no instance answers, but the addresses remain the service's
	}
	useful := r.App != "" && len(found.Spec.Addresses) > 0
	if useful && known == nil {
		o.apps[r.App] = &app{}
		o.send(message{topic: updateTopic(r.App), subscribe: true})
	}
	if useful {
		o.apps[r.App].found = found
	}
	o.mu.Unlock()
	o.answer(q, found, useful, sink)
}

// answer reports a result to the sink. In the meantime the table may have released the service.
func (o *Oakestra) answer(q *query, found Record, useful bool, sink Sink) {
	if useful {
		sink.Put(v1.SourceOakestra, found)
	}
	if q != nil && q.addr.IsValid() {
		has := func(a v1.VirtualAddress) bool { return a.Address == q.addr.String() }
		if !useful || !slices.ContainsFunc(found.Spec.Addresses, has) {
			sink.NotFound(v1.SourceOakestra, q.addr)
		}
	}
	o.mu.Lock()
	idle := useful && o.apps[strings.TrimPrefix(found.Name, oakestraPrefix)] == nil
	o.mu.Unlock()
	if idle {
		sink.Delete(v1.SourceOakestra, found.Name)
	}
}

// canonicalKey is the key of a query, however the other side writes addresses.
func canonicalKey(key string) string {
	if a, err := netip.ParseAddr(key); err == nil {
		return a.String()
	}
	return key
}
