// SPDX-License-Identifier: Apache-2.0

package coap

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/dchest/siphash"
)

// How long a message is a duplicate of an earlier one (RFC 7252, section 4.8.2).
const (
	exchangeLifetime = 247 * time.Second // confirmable
	nonLifetime      = 145 * time.Second
)

// Verdict on a message.
type Verdict int

// Verdicts.
const (
	Pass   Verdict = iota // passes to the server
	Reply                 // answered
	Ignore                // a duplicate that gets no answer
)

// Model decides on messages as coap.h does.
type Model struct {
	Hosts      map[string]bool // accepted in Uri-Host
	Resources  map[string]*Resource
	MaxReply   int // bytes of a message
	Duplicates bool
	// Amplification is the maximum number of reply bytes per request byte, including IP headers, to a source without proof
	// of its address; 0: no limit. Secret is the key of the proofs.
	Amplification int
	Secret        [16]byte

	seen map[exchange]answered
}

// Resource of the model: the latest value, and the previous one for duplicates.
type Resource struct {
	now, before *Value
}

// Set sets the value of a resource; nil removes it.
func (r *Resource) Set(v *Value) { r.before, r.now = r.now, v }

// exchange has the common fields of duplicates.
type exchange struct {
	from, to netip.AddrPort
	id       uint16
}

// answered is an answered message. One with the same id, but another type, token or resource is not a duplicate: its
// client has reused an id, and would not accept the earlier answer.
type answered struct {
	head     byte
	token    string
	resource *Resource
	value    *Value
	at       time.Duration
}

// request is a GET that the data plane can answer.
type request struct {
	*Message
	path   string // as in a request
	etags  [][8]byte
	accept int    // -1: anything
	echo   []byte // of 8 bytes; nil: none
	block  int    // largest block, as its exponent minus 4; -1: not requested
}

// Decide returns what happens to a datagram that arrives at now, a time since boot.
func (m *Model) Decide(from, to netip.AddrPort, datagram []byte, now time.Duration) ([]byte, Verdict) {
	r := m.read(datagram, to.Port())
	if r == nil {
		return nil, Pass
	}
	res := m.Resources[r.path]
	if res == nil {
		return nil, Pass
	}
	value, at := res.now, now
	key := exchange{from, to, r.ID}
	earlier, known := m.seen[key]
	lifetime := exchangeLifetime
	if r.Type == NonConfirmable {
		lifetime = nonLifetime
	}
	known = known && now < earlier.at+lifetime &&
		earlier.head == datagram[0] && earlier.token == string(r.Token) && earlier.resource == res
	switch {
	case known && r.Type == NonConfirmable:
		return nil, Ignore
	case known && earlier.value != nil && (earlier.value == res.now || earlier.value == res.before):
		value, at = earlier.value, earlier.at
	default:
		known = false
	}
	reply := r.reply(value, at)
	if reply == nil || len(reply) > m.MaxReply {
		return nil, Pass
	}
	if !m.isProven(r, from.Addr(), len(reply), len(datagram), now) {
		return r.challenge(m.proof(from.Addr(), now>>echoShift)), Reply
	}
	if m.Duplicates && !known {
		if m.seen == nil {
			m.seen = map[exchange]answered{}
		}
		m.seen[key] = answered{datagram[0], string(r.Token), res, value, now}
	}
	return reply, Reply
}

// echoShift: an Echo value is valid for the period of 2^36 ns in which it was created, and for the next one.
const echoShift = 36

// proof returns the Echo value of a source in a period: SipHash-2-4 of address, family and period.
func (m *Model) proof(source netip.Addr, period time.Duration) []byte {
	claim := make([]byte, 32)
	copy(claim, source.AsSlice())
	claim[16] = 6
	if source.Is4() {
		claim[16] = 4
	}
	binary.LittleEndian.PutUint64(claim[24:], uint64(period))
	hash := siphash.Hash(binary.LittleEndian.Uint64(m.Secret[:]), binary.LittleEndian.Uint64(m.Secret[8:]), claim)
	return binary.LittleEndian.AppendUint64(nil, hash)
}

// isProven reports whether a source can get a reply: a small one, or one with proof that the source receives at its
// address.
func (m *Model) isProven(r *request, source netip.Addr, reply, asked int, now time.Duration) bool {
	headers := 48
	if source.Is4() {
		headers = 28
	}
	if m.Amplification == 0 || headers+reply <= m.Amplification*(headers+asked) {
		return true
	}
	period := now >> echoShift
	return bytes.Equal(r.echo, m.proof(source, period)) || bytes.Equal(r.echo, m.proof(source, period-1))
}

// challenge returns 4.01 with an Echo value for the repeated request (RFC 9175, section 2.3).
func (r *request) challenge(echo []byte) []byte {
	return r.answer(Unauthorized, Option{Echo, echo}).Bytes()
}

// answer returns a response without a payload.
func (r *request) answer(code Code, options ...Option) *Message {
	out := &Message{Type: Acknowledgement, Code: code, ID: r.ID, Token: r.Token, Options: options}
	if r.Type == NonConfirmable {
		out.Type, out.ID = NonConfirmable, ^r.ID
	}
	return out
}

// read returns nil for a message that the data plane does not handle.
func (m *Model) read(datagram []byte, port uint16) *request {
	msg, err := Read(datagram)
	if err != nil || len(datagram) > MaxRequest || msg.Type > NonConfirmable || msg.Code != GET ||
		len(msg.Payload) > 0 || len(msg.Options) > MaxOptions {
		return nil
	}
	r := &request{Message: msg, accept: -1, block: -1}
	var segments []string
	seen := map[int]bool{}
	for _, o := range msg.Options {
		once := !seen[o.Number]
		seen[o.Number] = true
		switch o.Number {
		case URIPath:
			segments = append(segments, string(o.Value))
		case ETag:
			if len(o.Value) == 8 {
				r.etags = append(r.etags, [8]byte(o.Value))
			}
		case Echo:
			if r.echo = nil; len(o.Value) == 8 {
				r.echo = o.Value
			}
		case Accept:
			n, ok := o.Uint(2)
			if r.accept = int(n); !ok || !once {
				return nil
			}
		case Block2:
			n, ok := o.Uint(3)
			if r.block = int(n & 7); !ok || !once || n>>4 != 0 || r.block == 7 {
				return nil
			}
		case URIHost:
			if !once || !m.Hosts[string(o.Value)] {
				return nil
			}
		case URIPort:
			if n, ok := o.Uint(2); !ok || !once || n != uint32(port) {
				return nil
			}
		case Observe, NoResponse:
			return nil
		default:
			if o.Number%2 == 1 { // critical
				return nil
			}
		}
	}
	path := encodePath(segments)
	r.path = string(path)
	return r
}

// reply returns nil when the value does not answer the request.
func (r *request) reply(v *Value, at time.Duration) []byte {
	if v == nil || v.Expires != 0 && at >= v.Expires || r.accept >= 0 && r.accept != v.Format {
		return nil
	}
	age := uint32(v.MaxAge)
	if v.Expires != 0 {
		age = uint32((v.Expires - at) / time.Second)
	}
	out := r.answer(Content, Option{ETag, v.ETag[:]}, Uint(MaxAge, age))
	for _, etag := range r.etags {
		if etag == v.ETag {
			out.Code = Valid
			return out.Bytes()
		}
	}
	if r.block >= 0 {
		if len(v.Data) > 16<<r.block {
			return nil
		}
		out.Options = append(out.Options, Uint(Block2, uint32(r.block)))
	}
	if v.Format >= 0 {
		out.Options = append(out.Options, Uint(ContentFormat, uint32(v.Format)))
	}
	out.Payload = v.Data
	return out.Bytes()
}
