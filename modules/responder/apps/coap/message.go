// SPDX-License-Identifier: Apache-2.0

package coap

import "encoding/binary"

// Limits of what the data plane answers; what exceeds them passes to the server.
const (
	MaxRequest = 256  // bytes of a message
	MaxOptions = 16   // of a request
	MaxValue   = 1024 // bytes of a value: the largest block of RFC 7959
	maxHead    = 32   // bytes of a reply before the value
)

// Numbers of options.
const (
	IfMatch       = 1
	URIHost       = 3
	ETag          = 4
	IfNoneMatch   = 5
	Observe       = 6 // RFC 7641
	URIPort       = 7
	URIPath       = 11
	ContentFormat = 12
	MaxAge        = 14
	URIQuery      = 15
	Accept        = 17
	Block2        = 23 // RFC 7959
	ProxyURI      = 35
	Size1         = 60
	Echo          = 252 // RFC 9175
	NoResponse    = 258 // RFC 7967
)

// Option of a message.
type Option struct {
	Number int
	Value  []byte
}

// Uint is an option whose value is a number, in as few bytes as it needs.
func Uint(number int, value uint32) Option {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], value)
	i := 0
	for i < len(b) && b[i] == 0 {
		i++
	}
	return Option{number, b[i:]}
}

func appendOption(out []byte, delta int, value []byte) []byte {
	d, dx := extended(delta)
	l, lx := extended(len(value))
	out = append(append(append(out, d<<4|l), dx...), lx...)
	return append(out, value...)
}

// extended is a delta or length as a nibble and the bytes that follow it (RFC 7252, section 3.1).
func extended(n int) (nibble byte, more []byte) {
	switch {
	case n < 13:
		return byte(n), nil
	case n < 269:
		return 13, []byte{byte(n - 13)}
	}
	return 14, binary.BigEndian.AppendUint16(nil, uint16(n-269))
}
