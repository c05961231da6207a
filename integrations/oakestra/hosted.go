// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"

	"github.com/kerb-edge/kerb/internal/integration/link"
)

// trackedService is a service of which this worker has, or recently had, instances, or that the agent uses. The worker
// maintains its interest in the service: when the last interested worker withdraws, the cluster deletes the service
// from its table.
type trackedService struct {
	instances map[int]*hostedInstance // on this worker
	used      bool                    // by the agent
	empty     bool                    // the cluster has no instance of it
	found     link.Record             // last record sent to the agent
	query     pendingQuery
	stale     bool      // it has changed since the query was sent: send another one
	leaveAt   time.Time // when to withdraw the interest; zero: it has instances here, or the agent uses others
	leaving   bool      // the last query before the withdrawal is open
}

// hostedInstance is an instance of a service on this worker.
type hostedInstance struct {
	app       string
	number    int
	four, six netip.Addr
	confirmed bool      // the cluster has reported these addresses
	unknown   bool      // the cluster does not know the instance, which was logged
	lost      time.Time // since when the cluster lacks the addresses that it had; zero: it has them
	// known receives whether the cluster has the instance: with the first reply, or false when the instance is withdrawn
	// or replaced. It is buffered, or nil.
	known chan bool
	held  bool // not to be announced yet: the tunnel may not deliver packets to it
}

// follow starts to track a service, or continues, and returns it. The caller holds s.mu.
func (s *session) follow(app string) *trackedService {
	f := s.services[app]
	if f == nil {
		f = &trackedService{instances: map[int]*hostedInstance{}}
		s.services[app] = f
	}
	f.leaveAt, f.leaving = time.Time{}, false
	return f
}

// addLocked adds an instance. The caller holds s.mu.
func (s *session) addLocked(i hostedInstance) {
	f := s.follow(i.app)
	if old := f.instances[i.number]; old != nil {
		old.answered(false)
	}
	f.instances[i.number] = &i
}

// add adds an instance without announcing it.
func (s *session) add(i hostedInstance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addLocked(i)
}

// announce publishes a new instance, and waits for the broker's acknowledgement. Then it queries the service, which
// registers the worker's interest; the reply shows whether the cluster has accepted the instance. Without a connection,
// this happens after the next one. It reports whether there is a connection. It does not announce an instance that has
// been withdrawn or replaced in the meantime.
func (s *session) announce(ctx context.Context, i hostedInstance) bool {
	client, has := s.release(i)
	if !has {
		return false
	}
	if client == nil {
		s.log.Warn("the cluster learns the address of a service when the broker is back", "service", i.app,
			"instance", i.number)
		return false
	}
	if err := await(ctx, s.transmit(client, message{topic: topicDeployed, body: s.status(&i)}), s.times.ack); err != nil {
		s.log.Warn("the broker does not acknowledge the address of a service; it is announced again", "service", i.app,
			"instance", i.number, "error", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.services[i.app]; f != nil {
		s.send(message{topic: updateTopic(i.app), subscribe: true})
		s.refresh(f)
	}
	return true
}

// release permits the announcement of an instance, and returns the connection. It returns false if the instance was
// replaced or withdrawn.
func (s *session) release(i hostedInstance) (mqtt.Client, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.services[i.app]
	if f == nil || f.instances[i.number] == nil || f.instances[i.number].known != i.known {
		return nil, false
	}
	f.instances[i.number].held = false
	return s.client, true
}

// answered sends a result to the deployment of the instance, if it waits for one.
func (i *hostedInstance) answered(known bool) {
	select {
	case i.known <- known:
	default:
	}
}

// withdraw removes an instance. The interest in its service is withdrawn some time after the last one, as NetManager
// does.
func (s *session) withdraw(app string, number int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.services[app]
	if f == nil || f.instances[number] == nil {
		return
	}
	f.instances[number].answered(false)
	delete(f.instances, number)
	if len(f.instances) > 0 {
		return
	}
	if f.used {
		s.put(f, f.found) // it need not be kept any more
	}
	s.scheduleLeave(f)
}

// scheduleLeave withdraws the interest some time after the last use. The caller holds s.mu. A service without instances
// is not tracked longer than that: it may have been removed, and if it is created again the cluster rejects it while
// any worker is interested in the former one.
func (s *session) scheduleLeave(f *trackedService) {
	if len(f.instances) == 0 && (!f.used || f.empty) && f.leaveAt.IsZero() {
		f.leaveAt = time.Now().Add(s.times.linger)
		s.wake()
	}
}

func (s *session) status(i *hostedInstance) instanceStatus {
	return instanceStatus{App: i.app, Status: "DEPLOYED", Number: i.number, Address: i.four.String(),
		Address6: i.six.String(), Port: strconv.Itoa(s.port), Host: s.host.String()}
}

// refresh queries a service again, since the reply to an older query may precede a change.
func (s *session) refresh(f *trackedService) {
	if f.query.sent {
		f.stale = true
		return
	}
	f.query.schedule(time.Now(), s.times.retry)
	s.wake()
}

func (s *session) handleNotice(name string, payload []byte) error {
	if err := decodeNotice(payload); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.services[name]; f != nil {
		s.refresh(f)
	}
	return nil
}

// handleTable handles a reply. Replies to queries of others are ignored.
func (s *session) handleTable(payload []byte) error {
	r, err := decodeTable(payload, s.ranges)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if addr, err := netip.ParseAddr(r.Key); err == nil {
		s.handleLookup(addr, r)
		return nil
	}
	f := s.services[r.Key]
	if f == nil {
		return nil
	}
	if r.App != r.Key {
		return &invalid{"app_name", fmt.Sprintf("%q is the answer to a query for %q", r.App, r.Key)}
	}
	if f.leaving {
		s.leaveLocked(r.App)
		return nil
	}
	s.handleService(f, r)
	s.check(f, f.find(r))
	return nil
}

// check compares a reply with the instances of this worker, and announces those that the cluster does not know.
func (s *session) check(f *trackedService, found map[int]location) {
	now := time.Now()
	if wrong := s.compare(f, found); wrong == nil {
		f.query = pendingQuery{next: now.Add(s.times.requery), pause: s.times.retry}
	} else {
		f.query.sent = false // the next query checks the announcement
		s.send(wrong...)
	}
	if f.stale {
		f.stale = false
		f.query.schedule(now, s.times.retry)
		s.wake()
	}
}

// find returns the entries of a reply for instances of this worker.
func (f *trackedService) find(r tableResult) map[int]location {
	found := map[int]location{}
	for _, e := range r.Instances {
		if f.instances[*e.Number] != nil {
			found[*e.Number], _ = e.locate("") // was validated
		}
	}
	return found
}

// compare returns the messages to announce, or nil if the cluster knows all instances of this worker. The result is
// empty, but not nil, if the cluster does not know the instance at all, since it would drop the message.
func (s *session) compare(f *trackedService, found map[int]location) []message {
	var out []message
	for number, i := range f.instances {
		l, known := found[number]
		if i.held {
			continue
		}
		if !known {
			if !i.unknown {
				s.log.Warn("the cluster does not know an instance that runs here", "service", i.app, "instance", number)
			}
			i.unknown = true
			i.answered(false)
			if out == nil {
				out = []message{}
			}
			continue
		}
		i.unknown = false
		if m, wrong := s.compareOne(i, l); wrong {
			out = append(out, m)
		}
	}
	return out
}

// compareOne ignores an instance that the cluster has moved to another worker, or rescheduled, which removes its
// addresses: NodeEngine will soon stop it here. If it is still running after two regular queries, the cluster has lost
// the addresses, and they are announced again.
func (s *session) compareOne(i *hostedInstance, l location) (message, bool) {
	sameAddress := l.address == i.four && l.address6 == i.six
	sameHost := l.host == s.host && l.port == strconv.Itoa(s.port)
	switch {
	case l.worker != "" && l.worker != s.worker:
		i.lost = time.Time{}
		return message{}, false
	case sameAddress && sameHost:
		i.confirmed, i.lost = true, time.Time{}
		i.answered(true)
		return message{}, false
	case sameAddress:
		return message{topic: topicAddressChanged, body: instanceStatus{App: i.app, Number: i.number,
			Port: strconv.Itoa(s.port), Host: s.host.String()}}, true
	case l.worker == "" && i.confirmed:
		if i.lost.IsZero() {
			i.lost = time.Now()
		}
		if time.Since(i.lost) < 2*s.times.requery {
			return message{}, false
		}
		i.confirmed = false
	}
	return message{topic: topicDeployed, body: s.status(i)}, true
}

// leaveLocked withdraws the interest in a service that is not tracked any more. The caller holds s.mu.
func (s *session) leaveLocked(app string) {
	delete(s.services, app)
	s.send(message{topic: topicInterestRemove, body: interestRemove{app}}, message{topic: updateTopic(app),
		unsubscribe: true})
}

// errNoSubnet is the error of a deployment for which the node has no subnet yet.
var errNoSubnet = errors.New("the cluster has not assigned a subnet to this node yet; kerb status shows why")
