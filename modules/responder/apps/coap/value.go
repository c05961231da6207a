// SPDX-License-Identifier: Apache-2.0

package coap

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

// Value of a resource.
type Value struct {
	Data   []byte
	Format int // -1: none
	ETag   [8]byte
	// MaxAge is sent in seconds, unless Expires, a time since boot, says how long the value is fresh.
	MaxAge  uint32
	Expires time.Duration
}

// newValue makes a value with the entity tag of its content: the same content is the same representation, also when it
// was another one meanwhile.
func newValue(data []byte, format int, maxAge uint32, expires time.Duration) *Value {
	h := sha256.New()
	_ = binary.Write(h, binary.BigEndian, int32(format))
	h.Write(data)
	return &Value{Data: data, Format: format, ETag: [8]byte(h.Sum(nil)), MaxAge: maxAge, Expires: expires}
}

// setting mirrors struct coap_setting: a value that was set at run time.
type setting struct {
	Expires uint64
	Len     uint64
	Data    [MaxValue]byte
}

// newSetting makes one of at most MaxValue bytes. lease is how long it is fresh; 0: without limit.
func newSetting(data []byte, lease time.Duration) *setting {
	s := &setting{}
	s.Len = uint64(copy(s.Data[:], data))
	if lease > 0 {
		s.Expires = sdk.Monotonic() + uint64(lease)
	}
	return s
}

// value of a resource: what was set, or else what its config says. nil: none.
func (r *resource) value(s *setting) *Value {
	if s != nil {
		return newValue(s.Data[:s.Len], r.format, r.maxAge, time.Duration(s.Expires))
	}
	if r.initial != nil {
		return newValue(r.initial, r.format, r.maxAge, 0)
	}
	return nil
}

func (v *Value) equals(o *Value) bool {
	return v == o || v != nil && o != nil && v.ETag == o.ETag && v.MaxAge == o.MaxAge && v.Expires == o.Expires
}

// kernelValue mirrors struct coap_value.
type kernelValue struct {
	ETag      [8]byte
	Expires   uint64
	MaxAge    uint32
	Format    uint32
	Option    [4]byte
	Len       uint16
	OptionLen uint8
	Set       uint8
	Data      [MaxValue]byte
}

const noFormat = 1<<32 - 1

// kernel is the value as the data plane reads it; nil is none.
func (v *Value) kernel() *kernelValue {
	out := &kernelValue{Format: noFormat}
	if v == nil {
		return out
	}
	out.ETag, out.Expires, out.MaxAge, out.Set = v.ETag, uint64(v.Expires), v.MaxAge, 1
	out.Len = uint16(copy(out.Data[:], v.Data))
	if v.Format >= 0 {
		out.Format = uint32(v.Format)
		option := appendOption(nil, ContentFormat-ETag, Uint(ContentFormat, uint32(v.Format)).Value)
		out.OptionLen = uint8(copy(out.Option[:], option))
	}
	return out
}

// value is kernel's reverse.
func (k *kernelValue) value() *Value {
	if k.Set == 0 {
		return nil
	}
	v := &Value{Data: k.Data[:k.Len:k.Len], Format: int(k.Format), ETag: k.ETag, MaxAge: k.MaxAge,
		Expires: time.Duration(k.Expires)}
	if k.Format == noFormat {
		v.Format = -1
	}
	return v
}
