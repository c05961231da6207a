// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/seed"
	"github.com/kerb-edge/kerb/modules/responder/apps/linear"
	"github.com/kerb-edge/kerb/sdk"
)

func leastRequest(c *linear.Config) (n int) {
	for _, w := range c.Copy {
		n = max(n, int(w.From)+4)
	}
	for _, t := range c.Sum {
		n = max(n, int(t.From)+4)
	}
	return n
}

// linearReply computes the reply of docs/responder.md with big integers.
func linearReply(c *linear.Config, request []byte) []byte {
	reply, _ := hex.DecodeString(c.Reply)
	for _, w := range c.Copy {
		copy(reply[w.To:], request[w.From:w.From+4])
	}
	if len(c.Sum) == 0 {
		return reply
	}
	order := binary.ByteOrder(binary.BigEndian)
	if c.ByteOrder == "little" {
		order = binary.LittleEndian
	}
	sum := big.NewInt(int64(c.Constant))
	for _, t := range c.Sum {
		steps := int64(math.Round(t.Times * 65536))
		n := new(big.Int).Mul(big.NewInt(int64(int32(order.Uint32(request[t.From:])))), big.NewInt(steps))
		n.Add(n, big.NewInt(1<<15))
		sum.Add(sum, n.Div(n, big.NewInt(1<<16))) // to the lower number
	}
	value := max(math.MinInt32, min(math.MaxInt32, sum.Int64()))
	order.PutUint32(reply[c.To:], uint32(int32(value)))
	return reply
}

// law returns a random config of a listener.
func (g generator) law() *linear.Config {
	size := often(g, 4+g.IntN(61), 4, 64)
	c := &linear.Config{Reply: hex.EncodeToString(g.bytes(size)), ByteOrder: pick(g, "big", "little")}
	place := func() uint16 { return uint16(g.IntN(size - 3)) }
	from := func() uint16 { return uint16(often(g, g.IntN(40), 1400+g.IntN(69), 0)) }
	for range g.IntN(5) {
		c.Copy = append(c.Copy, linear.Copy{From: from(), To: place()})
	}
	for range g.IntN(5) {
		times := often(g, (g.Float64()-0.5)*math.Pow(2, float64(g.IntN(17))), -32768, 32768-1.0/65536, 1.0/65536, 0)
		c.Sum = append(c.Sum, linear.Term{From: from(), Times: times})
	}
	if len(c.Sum) > 0 {
		c.To, c.Constant = place(), often(g, int32(g.Uint32()), 0, math.MinInt32, math.MaxInt32)
	}
	return c
}

const laws = 4 // listeners of a config, from port 9000 on

func (g generator) laws(m *model) string {
	var listeners []string
	m.listeners = nil
	for i := range laws {
		c := g.law()
		text, _ := json.Marshal(c)
		name, port := fmt.Sprintf("law%d", i), 9000+i
		listeners = append(listeners, fmt.Sprintf(`{"app": "linear", "name": %q, "port": %d, "sourceRate": 0, `+
			`"amplification": 0, %s`, name, port, text[1:]))
		m.listeners = append(m.listeners, modelListener{name: name, app: "linear", port: uint16(port), maxReply: 1232,
			linear: c})
	}
	return `{"listeners": [` + strings.Join(listeners, ", ") + `]}`
}

// Random coefficients, offsets and sizes agree with the model, for requests of any length, well-formed or not.
func TestLinearAgreesWithTheModel(t *testing.T) {
	g, m := generator{seed.Rand(t), 0}, fuzzModel("")
	onHooks(t, g.laws(m), func(t *testing.T, k *kernel) {
		g.shortest, m.hook = shortest[k.hook], k.hook
		k.at(fuzzNetworks...)
		opts, all := newRun(), 0
		for range rounds(t) / 500 {
			config := g.laws(m)
			k.change(config)
			for range 100 {
				p := g.packet()
				i := g.IntN(laws)
				p.dport = uint16(9000 + i)
				least := leastRequest(m.listeners[i].linear)
				p.payload = g.bytes(often(g, least+g.IntN(20), max(0, least-1), g.IntN(60), 1400, 1472))
				frame := p.frame()
				if g.IntN(4) == 0 {
					frame = g.mutate(frame)
				}
				want, reply := m.run(frame)
				got, out := opts.run(k, frame)
				if want == answered { // a short frame keeps its padding
					out = out[:min(len(out), len(reply))]
					all++
				}
				if got != want || !bytes.Equal(out, reply) {
					t.Fatalf("%s, model %s\n%s\nframe %x\n  got %x\nmodel %x", got, want, config, frame, out, reply)
				}
			}
		}
		if all < rounds(t)/500*20 {
			t.Errorf("%d requests were answered: the packets do not try the laws", all)
		}
	})
}

// Invalid laws are rejected, and the error names the property.
func TestLinearConfig(t *testing.T) {
	for config, field := range map[string]string{
		`"reply": ""`:  "reply",
		`"reply": "0"`: "reply",
		`"reply": "` + strings.Repeat("00", 65) + `"`:                                  "reply",
		`"reply": "000000", "maxReply": 2`:                                             "reply",
		`"reply": "00", "other": 1`:                                                    "other",
		`"reply": "00", "byteOrder": "middle"`:                                         "byteOrder",
		`"reply": "00000000", "copy": [{"from": 0, "to": 1}]`:                          "copy[0].to",
		`"reply": "00000000", "copy": [{"from": 0, "to": 0}, {"from": 1469, "to": 0}]`: "copy[1].from",
		`"reply": "000000", "sum": [{"from": 0, "times": 1}]`:                          "sum[0].to",
		`"reply": "00000000", "sum": [{"from": 0, "times": 32768}]`:                    "sum[0].times",
		`"reply": "00000000", "sum": [{"from": 1469, "times": 1}]`:                     "sum[0].from",
		`"reply": "00000000", "constant": 5`:                                           "sum",
		`"reply": "00000000", "copy": [{}, {}, {}, {}, {}]`:                            "copy",
		`"reply": "00000000", "sum": [{}, {}, {}, {}, {}]`:                             "sum",
		`"reply": "00000000", "to": 65535, "sum": [{"from": 0, "times": 1}]`:           "sum[0].to",
		`"reply": "00000000", "copy": [{"from": 65535, "to": 0}]`:                      "copy[0].from",
	} {
		_, err := Control().Compile(json.RawMessage(`{"listeners": [{"app": "linear", "port": 9000, ` + config + `}]}`))
		var wrong *sdk.ConfigError
		if !errors.As(err, &wrong) || wrong.Field != "listeners[0]."+field {
			t.Errorf("%s: %v", config, err)
		}
	}
}
