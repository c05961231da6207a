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

// followed is a service of which this worker has, or recently had, instances, or that the agent uses. The worker
// maintains its interest in the service: when the last interested worker withdraws, the cluster deletes the service
// from its table.
type followed struct {
	instances map[int]*hostedInstance // on this worker
	used      bool                    // the agent has it
	empty     bool                    // the cluster has no instance of it
	found     link.Record             // last record sent to the agent
	query     question
	stale     bool      // something has changed since the query was sent: another one follows
	leave     time.Time // when to withdraw the interest; zero while there are instances here, or the agent can use others
	leaving   bool      // the last query before that is open
}

// hostedInstance is an instance of a service on this worker.
type hostedInstance struct {
	app        string
	number     int
	four, six  netip.Addr
	confirmed  bool      // the cluster has reported these addresses
	impossible bool      // the cluster does not know the instance, which was logged
	lost       time.Time // since when the cluster has lacked the addresses that it had; zero: it has them
	// known gets whether the cluster has the instance, with the first answer, or false when the instance is withdrawn or
	// replaced; has room for one, or is nil.
	known chan bool
	held  bool // is not to be announced yet: the tunnel may not deliver packets to it
}

// follow returns a service, which is followed from now on; s.mu is held.
func (s *session) follow(app string) *followed {
	f := s.services[app]
	if f == nil {
		f = &followed{instances: map[int]*hostedInstance{}}
		s.services[app] = f
	}
	f.leave, f.leaving = time.Time{}, false
	return f
}

// addLocked notes an instance; s.mu is held.
func (s *session) addLocked(i hostedInstance) {
	f := s.follow(i.app)
	if old := f.instances[i.number]; old != nil {
		old.answered(false)
	}
	f.instances[i.number] = &i
}

// add notes an instance without announcing it.
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

// release lets an instance be announced, and returns the connection; false if it is not the one of its number any more.
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

// answered reports to the deployment of the instance, if it waits.
func (i *hostedInstance) answered(known bool) {
	select {
	case i.known <- known:
	default:
	}
}

// withdraw forgets an instance. Interest in its service ends some time after the last one, as for NetManager.
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
		s.put(f, f.found) // it is not to be kept any more
	}
	s.leaveLater(f)
}

// leaveLater withdraws the interest some time after the last use; s.mu is held. A service without instances is not
// followed any longer than that: it may have been removed, and if it is created again the cluster refuses it until no
// worker is interested in the former one.
func (s *session) leaveLater(f *followed) {
	if len(f.instances) == 0 && (!f.used || f.empty) && f.leave.IsZero() {
		f.leave = time.Now().Add(s.times.keep)
		s.wake()
	}
}

func (s *session) status(i *hostedInstance) instanceStatus {
	return instanceStatus{App: i.app, Status: "DEPLOYED", Number: i.number, Address: i.four.String(),
		Address6: i.six.String(), Port: strconv.Itoa(s.port), Host: s.host.String()}
}

// refresh queries a service again, since the reply to an older query may precede a change.
func (s *session) refresh(f *followed) {
	if f.query.sent {
		f.stale = true
		return
	}
	f.query.ask(time.Now(), s.times.retry)
	s.wake()
}

func (s *session) takeNotice(name string, payload []byte) error {
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

// takeTable takes an answer. Answers to queries of others are ignored.
func (s *session) takeTable(payload []byte) error {
	r, err := decodeTable(payload, s.ranges)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if addr, err := netip.ParseAddr(r.Key); err == nil {
		s.takeLookup(addr, r)
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
	s.takeService(f, r)
	s.check(f, f.find(r))
	return nil
}

// check compares a reply with the instances of this worker, and announces those that the cluster does not know.
func (s *session) check(f *followed, found map[int]location) {
	now := time.Now()
	if wrong := s.compare(f, found); wrong == nil {
		f.query = question{next: now.Add(s.times.again), pause: s.times.retry}
	} else {
		f.query.sent = false // the query that follows checks the announcement
		s.send(wrong...)
	}
	if f.stale {
		f.stale = false
		f.query.ask(now, s.times.retry)
		s.wake()
	}
}

// find returns the entries of a reply for instances of this worker.
func (f *followed) find(r tableResult) map[int]location {
	found := map[int]location{}
	for _, e := range r.Instances {
		if f.instances[*e.Number] != nil {
			found[*e.Number], _ = e.locate("") // was checked
		}
	}
	return found
}

// compare returns the messages to announce, or nil if the cluster knows all instances of this worker. The result is
// empty, but not nil, if the cluster does not know the instance at all, since it would drop the message.
func (s *session) compare(f *followed, found map[int]location) []message {
	var out []message
	for number, i := range f.instances {
		l, known := found[number]
		if i.held {
			continue
		}
		if !known {
			if !i.impossible {
				s.log.Warn("the cluster does not know an instance that runs here", "service", i.app, "instance", number)
			}
			i.impossible = true
			i.answered(false)
			if out == nil {
				out = []message{}
			}
			continue
		}
		i.impossible = false
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
		if time.Since(i.lost) < 2*s.times.again {
			return message{}, false
		}
		i.confirmed = false
	}
	return message{topic: topicDeployed, body: s.status(i)}, true
}

// leaveLocked withdraws the interest in a service that is not followed any more; s.mu is held.
func (s *session) leaveLocked(app string) {
	delete(s.services, app)
	s.send(message{topic: topicInterestRemove, body: interestRemove{app}}, message{topic: updateTopic(app),
		unsubscribe: true})
}

// errNoSubnet is the error of a deployment for which the node has no subnet yet.
var errNoSubnet = errors.New("the cluster has not assigned a subnet to this node yet; kerb status shows why")
