// SPDX-License-Identifier: Apache-2.0

package coap

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// generator generates requests from few values, so that they often match the config.
type generator struct {
	*rand.Rand
	model *Model
	paths [][]string
	ids   int    // number of message ids
	proof []byte // an Echo value that is, or was, valid for the source
}

func pick[T any](g *generator, from ...T) T { return from[g.IntN(len(from))] }

// datagram returns a request; a third of them are corrupted.
func (g *generator) datagram() []byte {
	out := g.message().Bytes()
	if g.IntN(3) == 0 {
		for range 1 + g.IntN(3) {
			out = g.damage(out)
		}
	}
	return out
}

func (g *generator) damage(b []byte) []byte {
	if len(b) == 0 {
		return b
	}
	at := g.IntN(len(b))
	switch g.IntN(6) {
	case 0:
		return b[:at]
	case 1:
		return append(b[:at:at], append(g.bytes(1+g.IntN(4)), b[at:]...)...)
	case 2:
		return append(b, g.bytes(1+g.IntN(300))...)
	case 3:
		b[at] = pick[byte](g, 0, 0xff, 0xd0, 0xe0, 0x0e, 0xf1, 0x1f, 0xdd, 0xee)
	case 4:
		b[0] = b[0]&0xf0 | byte(g.IntN(16))
	default:
		b[at] ^= 1 << g.IntN(8)
	}
	return b
}

func (g *generator) bytes(n int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = byte(g.Uint32())
	}
	return out
}

func (g *generator) message() *Message {
	m := &Message{Type: pick(g, Confirmable, Confirmable, NonConfirmable, NonConfirmable), Code: GET,
		ID: uint16(g.IntN(g.ids)), Token: g.bytes(g.IntN(9))}
	if g.IntN(4) > 0 {
		m.Token = []byte{1, 2, 3}[:g.IntN(4)]
	}
	if g.IntN(20) == 0 {
		m.Type = pick(g, Acknowledgement, Reset)
	}
	if g.IntN(20) == 0 {
		m.Code = pick(g, Empty, POST, PUT, DELETE, FETCH, Content)
	}
	if g.IntN(20) == 0 {
		m.Payload = g.bytes(1 + g.IntN(8))
	}
	for _, s := range g.path() {
		m.Options = append(m.Options, Option{URIPath, []byte(s)})
	}
	for range g.IntN(3) {
		m.Options = append(m.Options, g.option())
	}
	if g.proof != nil && g.IntN(2) == 0 {
		m.Options = append(m.Options, Option{Echo, g.proof})
	}
	if g.IntN(40) == 0 {
		for range g.IntN(20) {
			m.Options = append(m.Options, Option{ETag, g.bytes(g.IntN(9))})
		}
	}
	return m
}

// path returns a path that is answered, or a similar one.
func (g *generator) path() []string {
	path := pick(g, g.paths...)
	if g.IntN(8) > 0 {
		return path
	}
	path = append([]string{}, path...)
	switch g.IntN(3) {
	case 0:
		return append(path, pick(g, "", "x", strings.Repeat("y", g.IntN(60))))
	case 1:
		return path[:len(path)/2]
	}
	for i := range path {
		path[i] = strings.ToUpper(path[i])
	}
	return path
}

func (g *generator) option() Option {
	switch g.IntN(12) {
	case 0:
		return Uint(Accept, pick[uint32](g, 0, 50, 60, 50, 70000))
	case 1, 2, 3:
		return Option{ETag, g.etag()}
	case 4, 5:
		return Uint(Block2, pick[uint32](g, 0, 1, 2, 4, 6, 7, 8, 16, 6|8, 1<<20))
	case 6:
		return Option{URIHost, []byte(pick(g, "sensor.example", "other.example", "", "s"))}
	case 7:
		return Uint(URIPort, pick[uint32](g, 5683, 5683, 5684, 0))
	case 8:
		return Option{pick(g, ContentFormat, MaxAge, Size1, 2048, 65000, 270, 1000), g.bytes(g.IntN(16))} // elective
	case 9:
		return Option{pick(g, IfMatch, IfNoneMatch, URIQuery, ProxyURI, 9, 21, 2049, 65001), g.bytes(g.IntN(16))} // critical
	case 10:
		return Uint(pick(g, Observe, NoResponse), uint32(g.IntN(3)))
	}
	return Option{pick(g, Accept, Block2, URIPort), g.bytes(g.IntN(5))}
}

// etag returns an ETag, often that of a value.
func (g *generator) etag() []byte {
	if g.IntN(3) == 0 {
		return g.bytes(g.IntN(9))
	}
	if r := g.model.Resources[pick(g, slices.Sorted(maps.Keys(g.model.Resources))...)]; r.now != nil {
		return r.now.ETag[:]
	}
	return nil
}
