// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// model is the proxy in plain Go, for the traffic of differential_test.go: clients on one interface, some of them
// instances with names, and instances on other nodes.
type model struct {
	services map[netip.Addr]*modelService
	forward  map[modelFlow]*modelSession // direction of the client
	reverse  map[modelFlow]*modelSession // direction of the instance
	order    []modelFlow                 // keys that reverse has or had
	names    map[netip.Addr]netip.Addr   // virtual addresses of clients in new sessions
}

type modelService struct {
	policy    uint8
	ports     map[uint16]uint16 // nil: all
	instances []*modelInstance  // the run of slots
	turn      uint64
}

type modelInstance struct {
	index      uint32
	addr       netip.Addr
	virtual    netip.Addr // source of answers to clients with names; invalid: addr
	generation int
	gone       bool
	draining   bool
	sessions   int
}

type modelFlow struct {
	proto        int
	src, dst     netip.Addr
	sport, dport uint16
}

type modelSession struct {
	key        modelFlow
	instance   *modelInstance
	generation int
	addr       netip.Addr
	port       uint16
	name       netip.Addr // of the client; invalid: none
	answered   bool
	clientFIN  bool
	serverFIN  bool
	reset      bool
	closed     bool
}

// modelVerdict is the expected verdict on a packet.
type modelVerdict int

const (
	modelPass modelVerdict = iota
	modelChange
	modelAnswer
	modelDrop
)

func flowOf(p packet) modelFlow { return modelFlow{p.proto, p.src, p.dst, p.sport, p.dport} }

// out handles a packet from the client, and returns the translated one.
func (m *model) out(p packet) (modelVerdict, packet) {
	f := flowOf(p)
	s := m.forward[f]
	if s != nil {
		verdict, on := m.attend(s, p)
		if !on {
			return verdict, p
		}
		s = m.forward[f] // another one, or none
	}
	if s == nil {
		service := m.services[p.dst]
		if service == nil {
			return modelPass, p
		}
		verdict, fresh := m.begin(service, p)
		if fresh == nil {
			return verdict, p
		}
		s = fresh
	}
	p.dst, p.dport = s.addr, s.port
	if s.name.IsValid() {
		p.src = s.name
	}
	return modelChange, p
}

// attend reports whether the packet continues, with or without the session.
func (m *model) attend(s *modelSession, p packet) (modelVerdict, bool) {
	in, begins := s.instance, p.flags&(tcpSYN|tcpACK) == tcpSYN
	if begins && s.closed {
		m.forget(s)
		return 0, true
	}
	if in.gone || in.generation != s.generation {
		m.forget(s)
		if p.proto == protoTCP && (s.answered || s.clientFIN || s.serverFIN || s.reset) {
			if begins {
				return 0, true
			}
			if p.flags&tcpRST != 0 {
				return modelDrop, false
			}
			return modelAnswer, false
		}
		if !in.gone {
			m.enrol(s.key, in, s.port, s.name).answered = s.answered
		}
		return 0, true
	}
	s.clientFIN = s.clientFIN || p.flags&tcpFIN != 0
	s.reset = s.reset || p.flags&tcpRST != 0
	s.settle()
	return 0, true
}

func (s *modelSession) settle() {
	if (s.reset || s.clientFIN && s.serverFIN) && !s.closed {
		s.closed = true
		s.instance.sessions--
	}
}

func (m *model) begin(service *modelService, p packet) (modelVerdict, *modelSession) {
	if p.flags&tcpRST != 0 {
		return modelDrop, nil
	}
	target := p.dport
	if service.ports != nil {
		to, ok := service.ports[p.dport]
		if !ok {
			return modelAnswer, nil
		}
		target = to
	}
	if p.proto == protoTCP && p.flags&tcpSYN == 0 && service.policy != policyHashFlow &&
		service.policy != policyHashSource {
		return modelAnswer, nil
	}
	in := service.choose(flowOf(p))
	if in == nil {
		return modelAnswer, nil
	}
	return modelChange, m.enrol(flowOf(p), in, target, m.names[p.src])
}

func (m *model) enrol(f modelFlow, in *modelInstance, port uint16, name netip.Addr) *modelSession {
	s := &modelSession{key: f, instance: in, generation: in.generation, addr: in.addr, port: port, name: name}
	m.forward[f] = s
	m.reverse[s.back()] = s
	m.order = append(m.order, s.back())
	in.sessions++
	return s
}

// back returns the instance's answer.
func (s *modelSession) back() modelFlow {
	src := s.addr
	if s.name.IsValid() && s.instance.virtual.IsValid() {
		src = s.instance.virtual
	}
	return modelFlow{s.key.proto, src, s.key.src, s.port, s.key.sport}
}

func (m *model) forget(s *modelSession) {
	delete(m.forward, s.key)
	delete(m.reverse, s.back())
	if !s.closed {
		s.instance.sessions--
	}
}

// in handles a packet from an instance to the client.
func (m *model) in(p packet) (modelVerdict, packet) {
	s := m.reverse[flowOf(p)]
	if s == nil {
		return modelPass, p
	}
	s.answered = s.answered || p.flags&tcpRST == 0
	s.serverFIN = s.serverFIN || p.flags&tcpFIN != 0
	s.reset = s.reset || p.flags&tcpRST != 0
	s.settle()
	p.src, p.sport = s.key.dst, s.key.dport
	return modelChange, p
}

func (s *modelService) choose(f modelFlow) *modelInstance {
	if len(s.instances) == 0 {
		return nil
	}
	var start uint64
	switch s.policy {
	case policyHashSource:
		start = uint64(hashFlow(f, false))
	case policyHashFlow:
		start = uint64(hashFlow(f, true))
	default:
		start = s.turn
		s.turn++
	}
	tries := 8
	if s.policy == policyLeast {
		tries = min(scanSlots, len(s.instances))
	}
	var best *modelInstance
	for i := range uint64(tries) {
		in := s.instances[(start%uint64(len(s.instances))+i)%uint64(len(s.instances))]
		if in.gone || in.draining {
			continue
		}
		if s.policy != policyLeast {
			return in
		}
		if best == nil || in.sessions < best.sessions {
			best = in
		}
	}
	return best
}

// hashFlow returns Bob Jenkins' lookup3 over the words of the source, or of the whole flow.
func hashFlow(f modelFlow, whole bool) uint32 {
	src, dst := addressOf(f.src), addressOf(f.dst)
	sport, dport := portOf(f.sport), portOf(f.dport)
	raw := append(append(append(append(src[:], dst[:]...), sport[:]...), dport[:]...), byte(f.proto), 0, 0, 0)
	if !whole {
		raw = raw[:16]
	}
	words := make([]uint32, len(raw)/4)
	for i := range words {
		words[i] = binary.NativeEndian.Uint32(raw[4*i:])
	}
	a := 0xdeadbeef + uint32(len(words))<<2
	b, c := a, a
	rol := bits.RotateLeft32
	for len(words) > 3 {
		a, b, c = a+words[0], b+words[1], c+words[2]
		a -= c
		a ^= rol(c, 4)
		c += b
		b -= a
		b ^= rol(a, 6)
		a += c
		c -= b
		c ^= rol(b, 8)
		b += a
		a -= c
		a ^= rol(c, 16)
		c += b
		b -= a
		b ^= rol(a, 19)
		a += c
		c -= b
		c ^= rol(b, 4)
		b += a
		words = words[3:]
	}
	a += words[0]
	c ^= b
	c -= rol(b, 14)
	a ^= c
	a -= rol(c, 11)
	b ^= a
	b -= rol(a, 25)
	c ^= b
	c -= rol(b, 16)
	a ^= c
	a -= rol(c, 4)
	b ^= a
	b -= rol(a, 14)
	c ^= b
	c -= rol(b, 24)
	return c
}
