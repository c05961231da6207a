// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"

	"github.com/kerb-edge/kerb/internal/integration/link"
)

// session represents this worker in its cluster, from registration until stop: it exchanges messages with the cluster
// service manager through the cluster's broker. It connects in the background, and reconnects when the connection is
// lost. After each connection, it compares the cluster's table with the deployed instances. It is safe for concurrent
// use.
type session struct {
	sessionOptions
	log *slog.Logger

	cancel  context.CancelFunc
	ended   chan struct{}
	changed chan struct{} // wakes work; buffered

	mu          sync.Mutex
	client      mqtt.Client // nil without a connection
	problem     error       // why there is no connection
	host        netip.Addr  // of this node, as announced
	own         map[netip.Addr]bool
	subnet      pendingQuery // open until assigned
	services    map[string]*trackedService
	lookups     map[netip.Addr]*lookup
	outgoing    []message
	lastMessage time.Time // time of the last valid message
}

// sessionOptions are the options of a session.
type sessionOptions struct {
	worker, cluster string
	broker          Broker
	address         string // of this node as other nodes reach it; empty: determined from the route to the cluster
	port            int    // of the tunnel, to announce
	ranges          []netip.Prefix
	times           intervals
	assigned        bool                         // the node has a subnet; guarded by session.mu
	onSubnet        func(four, six netip.Prefix) // called once, in a separate goroutine
	resolved        func(link.Result)            // receives results of lookups for the agent
	onJob           func(job)                    // must not block
	onConnect       func()                       // called before each attempt; must not block
	onReady         func()                       // called when connected; must not block
}

// intervals are the intervals of a session.
type intervals struct {
	retry, maxRetry   time.Duration // backoff of a query without a reply
	lookup            time.Duration // retry interval of a lookup, for which a packet waits
	subnet, maxSubnet time.Duration // backoff of requests for a subnet, each of which may use one up
	// requery is the interval of queries after a reply, and of checks of the node's address.
	requery      time.Duration
	linger       time.Duration // how long the interest in a service outlasts its last instance
	reconnect    time.Duration
	maxReconnect time.Duration
	ack          time.Duration // for the broker to acknowledge service/deployed
}

var defaultTimes = intervals{retry: time.Second, maxRetry: time.Minute, lookup: 200 * time.Millisecond,
	subnet: 5 * time.Second, maxSubnet: 5 * time.Minute, requery: 2 * time.Minute, linger: 10 * time.Second,
	reconnect: time.Second, maxReconnect: 15 * time.Second, ack: 2 * time.Second}

// message is a message to send.
type message struct {
	topic       string // of a publication below nodes/ID/net/
	body        any
	subscribe   bool
	unsubscribe bool
}

// startSession starts a session with the instances of this worker, and with the services that the agent uses.
func startSession(o sessionOptions, log *slog.Logger, own []hostedInstance, used []string) *session {
	ctx, cancel := context.WithCancel(context.Background())
	s := &session{sessionOptions: o, log: log, cancel: cancel, ended: make(chan struct{}),
		changed: make(chan struct{}, 1), services: map[string]*trackedService{},
		lookups: map[netip.Addr]*lookup{}, problem: errors.New("has not connected yet")}
	for _, i := range own {
		s.addLocked(i)
	}
	for _, app := range used {
		s.follow(app).used = true
	}
	go func() {
		defer close(s.ended)
		s.run(ctx)
	}()
	return s
}

// stop ends the session. A call of onSubnet may still be running.
func (s *session) stop() {
	s.cancel()
	<-s.ended
}

// run maintains a connection to the broker until ctx ends. The backoff doubles up to maxReconnect, and is reset after a
// connection that lasted longer than that.
func (s *session) run(ctx context.Context) {
	for pause := s.times.reconnect; ctx.Err() == nil; pause = min(2*pause, s.times.maxReconnect) {
		since := time.Now()
		err := s.connection(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(since) > s.times.maxReconnect {
			pause = s.times.reconnect
		}
		s.log.Warn("no connection to the broker", "broker", s.broker.url(s.cluster), "error", err, "retryIn", pause.String())
		s.mu.Lock()
		s.client, s.problem = nil, err
		s.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// connection connects, and works until the connection is lost. Each connection has a new client: with automatic
// reconnection, a client would resend old messages, such as addresses of removed services.
func (s *session) connection(ctx context.Context) error {
	s.onConnect()
	opts, err := s.broker.options(s.cluster, s.worker)
	if err != nil {
		return err
	}
	lost := make(chan error, 1)
	opts.SetDefaultPublishHandler(func(_ mqtt.Client, m mqtt.Message) { s.receive(m.Topic(), m.Payload()) })
	opts.SetConnectionLostHandler(func(_ mqtt.Client, err error) { lost <- err })
	client := mqtt.NewClient(opts)
	defer client.Disconnect(100) // also one that connects too late
	if err := await(ctx, client.Connect(), connectLimit); err != nil {
		return err
	}
	own := map[string]byte{s.topic(topicSubnetResult): 1, s.topic(topicTableResult): 1, s.jobTopic(): 1}
	if err := await(ctx, client.SubscribeMultiple(own, nil), ackTimeout); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	s.log.Info("connected to the broker", "broker", s.broker.url(s.cluster), "worker", s.worker)
	s.resume(ctx, client)
	s.onReady()
	return s.work(ctx, client, lost)
}

// await waits for the broker.
func await(ctx context.Context, t mqtt.Token, limit time.Duration) error {
	select {
	case <-t.Done():
		return t.Error()
	case <-time.After(limit):
		return fmt.Errorf("no response within %s", limit)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// resume starts to use a connection. It subscribes before it sends queries, so that it misses no change.
func (s *session) resume(ctx context.Context, client mqtt.Client) {
	host := s.findHost(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.client, s.problem = client, nil
	s.setHost(host)
	now := time.Now()
	s.outgoing = nil
	if !s.assigned {
		s.subnet.schedule(now, s.times.subnet)
	}
	for name, f := range s.services {
		s.send(message{topic: updateTopic(name), subscribe: true})
		f.query.schedule(now, s.times.retry)
	}
	for _, l := range s.lookups {
		l.schedule(now, s.times.lookup)
	}
}

// work sends messages that are due until the connection is lost or ctx ends. Changes, and a timer for the next message,
// wake it.
func (s *session) work(ctx context.Context, client mqtt.Client, lost <-chan error) error {
	timer, look := time.NewTimer(0), time.NewTicker(s.times.requery)
	defer timer.Stop()
	defer look.Stop()
	for {
		due, next := s.due(time.Now())
		for _, m := range due {
			s.transmit(client, m)
		}
		timer.Reset(time.Until(next))
		select {
		case <-ctx.Done():
			return nil
		case err := <-lost:
			return err
		case <-look.C:
			s.followHost(s.findHost(ctx))
		case <-s.changed:
		case <-timer.C:
		}
	}
}

// findHost returns the address to announce, or the last one if the node has none at the moment.
func (s *session) findHost(ctx context.Context) netip.Addr {
	if stated, err := netip.ParseAddr(s.address); err == nil {
		return stated
	}
	host, err := sourceAddress(ctx, s.cluster, s.broker.Port)
	if err != nil {
		s.log.Warn("the address of this node is unknown; set oakestra.address", "error", err)
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.host
	}
	return host
}

// source returns the source address of packets from this node to the cluster; the announced address may be that of a
// router.
func (s *session) source(ctx context.Context) (netip.Addr, error) {
	return sourceAddress(ctx, s.cluster, s.broker.Port)
}

// followHost queries the cluster after the address of this node has changed. The replies lead to announcements.
func (s *session) followHost(host netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if host == s.host {
		return
	}
	s.log.Info("the address of this node has changed", "old", s.host, "new", host)
	s.setHost(host)
	for _, f := range s.services {
		f.query.schedule(time.Now(), s.times.retry)
	}
	s.wake()
}

// due returns the messages to send now, and the time of the next ones.
func (s *session) due(now time.Time) (out []message, next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, s.outgoing = s.outgoing, nil
	next = now.Add(s.times.requery)
	if s.subnet.due(now, s.times.maxSubnet) {
		out = append(out, message{topic: topicSubnet, body: subnetRequest{"GET"}})
	}
	next = s.subnet.earlier(next)
	for name, f := range s.services {
		if !f.leaveAt.IsZero() && !now.Before(f.leaveAt) && !f.leaving {
			f.leaving = true
			if f.used {
				s.drop(f, name)
			}
			f.query.schedule(now, s.times.retry) // the service manager must know the interest that it is to remove
		}
		if f.query.due(now, s.times.maxRetry) {
			out = append(out, message{topic: topicTableRequest, body: tableRequest{Name: name}})
		}
		if next = f.query.earlier(next); !f.leaving && !f.leaveAt.IsZero() && f.leaveAt.Before(next) {
			next = f.leaveAt
		}
	}
	for addr, l := range s.lookups {
		if now.After(l.until) {
			delete(s.lookups, addr) // the agent does not wait any longer
			continue
		}
		if l.due(now, s.times.maxRetry) {
			out = append(out, message{topic: topicTableRequest, body: tableRequest{Address: addr.String()}})
		}
		next = l.earlier(next)
	}
	return out, next
}

func (s *session) topic(t string) string { return "nodes/" + s.worker + "/net/" + t }

func (s *session) jobTopic() string { return "nodes/" + s.worker + "/" + topicJob }

func (s *session) transmit(client mqtt.Client, m message) mqtt.Token {
	switch {
	case m.subscribe:
		return client.Subscribe(m.topic, 1, nil)
	case m.unsubscribe:
		return client.Unsubscribe(m.topic)
	}
	data, err := json.Marshal(m.body)
	if err != nil { // cannot happen: they are strings and numbers
		s.log.Error("cannot encode a message", "topic", m.topic, "error", err)
	}
	return client.Publish(s.topic(m.topic), 1, false, data)
}

// send queues messages. The caller holds s.mu.
func (s *session) send(m ...message) {
	s.outgoing = append(s.outgoing, m...)
	s.wake()
}

func (s *session) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// maxReason limits the part of a message that is logged.
const maxReason = 200

// receive handles a message of the broker. It must not block: messages arrive one at a time.
func (s *session) receive(topic string, payload []byte) {
	var err error
	name, isUpdate := strings.CutPrefix(topic, updatePrefix)
	name, ends := strings.CutSuffix(name, updateSuffix)
	switch {
	case topic == s.topic(topicSubnetResult):
		err = s.handleSubnet(payload)
	case topic == s.topic(topicTableResult):
		err = s.handleTable(payload)
	case topic == s.jobTopic():
		err = s.handleJob(payload)
	case isUpdate && ends:
		err = s.handleNotice(name, payload)
	default:
		err = &invalid{"topic", "is not one of this worker"}
	}
	var wrong *invalid
	if errors.As(err, &wrong) {
		s.log.Warn("refused a message of the cluster", "topic", topic, "field", wrong.field,
			"reason", wrong.reason[:min(len(wrong.reason), maxReason)]) // it may quote the message
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastMessage = time.Now()
}

// handleSubnet accepts the first subnet. Further ones are replies to repeated requests.
func (s *session) handleSubnet(payload []byte) error {
	four, six, err := decodeSubnet(payload, s.ranges)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.assigned {
		return nil
	}
	s.assigned, s.subnet = true, pendingQuery{}
	go s.onSubnet(four, six)
	return nil
}

const notConnected = "NotConnected"

// connected reports whether messages can be sent now.
func (s *session) connected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem == nil
}

// describe returns a reason and a message for a condition. The reason is empty if there is no problem.
func (s *session) describe() (reason, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	heard := "never"
	if !s.lastMessage.IsZero() {
		heard = s.lastMessage.UTC().Format(time.RFC3339)
	}
	text = fmt.Sprintf("cluster %s, node %s, last message %s", s.cluster, s.worker, heard)
	switch {
	case s.problem != nil:
		return notConnected, fmt.Sprintf("%s; no connection to the broker %s: %v", text, s.broker.url(s.cluster),
			s.problem)
	case !s.assigned && s.subnet.repeated:
		return "NoSubnet", text + "; the cluster does not assign a subnet, and services cannot be deployed: it may have " +
			"none left, or its service manager does not run; see the log of the cluster service manager"
	}
	return "", text
}

// pendingQuery is a query to the cluster without a reply so far.
type pendingQuery struct {
	next     time.Time // time of the next transmission; zero: never
	pause    time.Duration
	sent     bool // and has no reply yet
	repeated bool // sent more than once
}

func (q *pendingQuery) schedule(now time.Time, pause time.Duration) {
	*q = pendingQuery{next: now, pause: pause}
}

// due reports whether to send the query now, and doubles the backoff.
func (q *pendingQuery) due(now time.Time, longest time.Duration) bool {
	if q.next.IsZero() || now.Before(q.next) {
		return false
	}
	q.next, q.pause = now.Add(q.pause), min(2*q.pause, longest)
	q.repeated, q.sent = q.sent, true
	return true
}

func (q *pendingQuery) earlier(t time.Time) time.Time {
	if !q.next.IsZero() && q.next.Before(t) {
		return q.next
	}
	return t
}
