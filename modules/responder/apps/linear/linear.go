// SPDX-License-Identifier: Apache-2.0

// Package linear answers with fixed bytes, words of the request, and a linear function of its numbers.
package linear

import (
	"encoding/hex"
	"fmt"
	"math"

	"github.com/kerb-edge/kerb/modules/responder/app"
	"github.com/kerb-edge/kerb/sdk"
)

// App returns the application.
func App() app.App { return linear{} }

type linear struct{}

var _ app.Filler = linear{}

// Config of a listener.
type Config struct {
	Reply     string `json:"reply"` // hexadecimal
	Copy      []Copy `json:"copy"`
	Sum       []Term `json:"sum"`
	Constant  int32  `json:"constant"`
	To        uint16 `json:"to"` // where the sum goes
	ByteOrder string `json:"byteOrder"`
}

// Copy is 4 bytes of the request that are copied to the reply.
type Copy struct {
	From uint16 `json:"from"`
	To   uint16 `json:"to"`
}

// Term is a number of the request and what it is multiplied by.
type Term struct {
	From  uint16  `json:"from"`
	Times float64 `json:"times"`
}

// Numbers of linear.h and respond.h.
const (
	mapLaws    = "linear_laws"
	maxReply   = 64
	maxWords   = 4
	maxTerms   = 4
	maxRequest = 1472
	slots      = 64
	wordSize   = 4
	fixedOne   = 1 << 16
)

// law mirrors struct linear_law.
type law struct {
	Reply                      [maxReply]byte
	Word                       [maxWords]Copy
	Term                       [maxTerms]term
	Constant                   int32
	To, Len                    uint16
	Words, Terms, LittleEndian uint8
	Zero                       [5]uint8
}

type term struct {
	Times      int32 // of 2^-16
	From, Zero uint16
}

type service struct {
	law
	minRequest uint16
}

// Compile implements app.App.
func (linear) Compile(l app.Listener) (app.Service, error) {
	c := Config{ByteOrder: "big"}
	if err := app.Decode(l.Config, &c); err != nil {
		return nil, err
	}
	reply, err := hex.DecodeString(c.Reply)
	if err != nil || len(reply) == 0 || len(reply) > maxReply {
		return nil, sdk.ConfigErrorf("reply", "%q has to be 1 to %d bytes as hexadecimal digits", c.Reply, maxReply)
	}
	if len(reply) > int(l.MaxReply) {
		return nil, sdk.ConfigErrorf("reply", "has %d bytes, more than maxReply (%d): nothing would be answered", len(reply),
			l.MaxReply)
	}
	s := &service{law: law{Constant: c.Constant, To: c.To, Len: uint16(len(reply)), Words: uint8(len(c.Copy)),
		Terms: uint8(len(c.Sum))}}
	copy(s.Reply[:], reply)
	switch c.ByteOrder {
	case "little":
		s.LittleEndian = 1
	case "big":
	default:
		return nil, sdk.ConfigErrorf("byteOrder", "%q is neither big nor little", c.ByteOrder)
	}
	if err := s.setWords(c.Copy); err != nil {
		return nil, err
	}
	return s, s.setTerms(&c)
}

func (s *service) setWords(all []Copy) error {
	if len(all) > maxWords {
		return sdk.ConfigErrorf("copy", "%d entries; at most %d are possible", len(all), maxWords)
	}
	for i, w := range all {
		if err := s.checkPlaces(w.From, w.To); err != nil {
			return sdk.PrefixField(fmt.Sprintf("copy[%d]", i), err)
		}
		s.Word[i] = w
	}
	return nil
}

// setTerms checks the terms of the sum and converts factors to 16.16 fixed point, as BPF has no floating point.
func (s *service) setTerms(c *Config) error {
	if len(c.Sum) > maxTerms {
		return sdk.ConfigErrorf("sum", "%d terms; at most %d are possible", len(c.Sum), maxTerms)
	}
	if len(c.Sum) == 0 && (c.To != 0 || c.Constant != 0) {
		return sdk.ConfigErrorf("sum", "has to have a term, as to or constant is set; write a constant answer into reply")
	}
	for i, t := range c.Sum {
		err := s.checkPlaces(t.From, c.To)
		if scaled := math.Round(t.Times * fixedOne); err == nil && scaled >= math.MinInt32 && scaled <= math.MaxInt32 {
			s.Term[i] = term{Times: int32(scaled), From: t.From}
		} else if err == nil {
			err = sdk.ConfigErrorf("times", "%v is not from -32768 to 32767.99", t.Times)
		}
		if err != nil {
			return sdk.PrefixField(fmt.Sprintf("sum[%d]", i), err)
		}
	}
	return nil
}

// checkPlaces checks offsets of 4 bytes, and has requests be long enough for them.
func (s *service) checkPlaces(from, to uint16) error {
	if int(from) > maxRequest-wordSize {
		return sdk.ConfigErrorf("from", "%d: 4 bytes from there are beyond the largest request, %d bytes", from, maxRequest)
	}
	if int(to) > int(s.Len)-wordSize {
		return sdk.ConfigErrorf("to", "%d: 4 bytes from there are beyond the reply's %d bytes", to, s.Len)
	}
	s.minRequest = max(s.minRequest, from+wordSize)
	return nil
}

// Params implements app.Service.
func (s *service) Params() app.Params {
	return app.Params{MinRequest: s.minRequest, MaxRequest: maxRequest, LongReplies: s.Len > s.minRequest}
}

// Fill implements app.Filler.
func (linear) Fill(m sdk.Maps, all []app.PlacedListener) error {
	half, err := m.FreeHalf()
	if err != nil {
		return err
	}
	for _, p := range all {
		if err := m.Put(mapLaws, uint32(half*slots)+p.Slot, p.Service.(*service).law); err != nil {
			return err
		}
	}
	return nil
}
