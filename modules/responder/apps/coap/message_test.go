// SPDX-License-Identifier: Apache-2.0

package coap

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"
)

// Type of a message (RFC 7252, section 4).
type Type uint8

// Types.
const (
	Confirmable Type = iota
	NonConfirmable
	Acknowledgement
	Reset
)

// Code is a class in the upper three bits and a detail in the lower five.
type Code uint8

// Codes.
const (
	Empty   Code = 0
	GET     Code = 1
	POST    Code = 2
	PUT     Code = 3
	DELETE  Code = 4
	FETCH   Code = 5    // RFC 8132
	Valid   Code = 0x43 // 2.03
	Content Code = 0x45 // 2.05

	Unauthorized Code = 0x81 // 4.01
)

// Uint returns the value of an option as a number; ok is false if it has too many bytes.
func (o Option) Uint(most int) (n uint32, ok bool) {
	for _, b := range o.Value {
		n = n<<8 | uint32(b)
	}
	return n, len(o.Value) <= most
}

// Message is a CoAP message.
type Message struct {
	Type    Type
	Code    Code
	ID      uint16
	Token   []byte
	Options []Option // sorted by Bytes
	Payload []byte
}

// Bytes returns the message as on the wire.
func (m *Message) Bytes() []byte {
	out := []byte{1<<6 | byte(m.Type)<<4 | byte(len(m.Token)), byte(m.Code), byte(m.ID >> 8), byte(m.ID)}
	out = append(out, m.Token...)
	options := slices.Clone(m.Options)
	slices.SortStableFunc(options, func(a, b Option) int { return cmp.Compare(a.Number, b.Number) })
	last := 0
	for _, o := range options {
		out = appendOption(out, o.Number-last, o.Value)
		last = o.Number
	}
	if len(m.Payload) > 0 {
		out = append(append(out, 0xff), m.Payload...)
	}
	return out
}

var errFormat = errors.New("message format error")

// Read parses a datagram.
func Read(b []byte) (*Message, error) {
	if len(b) < 4 || b[0]>>6 != 1 || b[0]&15 > 8 || len(b) < 4+int(b[0]&15) {
		return nil, errFormat
	}
	m := &Message{Type: Type(b[0] >> 4 & 3), Code: Code(b[1]), ID: binary.BigEndian.Uint16(b[2:]), Token: b[4 : 4+b[0]&15]}
	if m.Code == Empty && len(b) > 4 {
		return nil, errFormat
	}
	number := 0
	for b = b[4+len(m.Token):]; len(b) > 0; {
		if b[0] == 0xff {
			if m.Payload = b[1:]; len(m.Payload) == 0 {
				return nil, errFormat
			}
			return m, nil
		}
		delta, length := int(b[0]>>4), int(b[0]&15)
		b = b[1:]
		var err error
		if delta, b, err = extend(delta, b); err != nil {
			return nil, err
		}
		if length, b, err = extend(length, b); err != nil {
			return nil, err
		}
		if number += delta; number > 0xffff || length > len(b) {
			return nil, errFormat
		}
		m.Options = append(m.Options, Option{number, b[:length]})
		b = b[length:]
	}
	return m, nil
}

func extend(nibble int, b []byte) (int, []byte, error) {
	switch {
	case nibble < 13:
		return nibble, b, nil
	case nibble == 13 && len(b) >= 1:
		return 13 + int(b[0]), b[1:], nil
	case nibble == 14 && len(b) >= 2:
		return 269 + int(binary.BigEndian.Uint16(b)), b[2:], nil
	}
	return 0, nil, errFormat
}
