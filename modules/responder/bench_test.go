// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"testing"
	"time"
)

// BenchmarkAnswer measures a chain with the responder only. A test run passes the packet as left by the previous pass:
// an echo between two answering addresses goes back and forth, and a consumed packet stays unchanged.
func BenchmarkAnswer(b *testing.B) {
	const config = `{"listeners": [
		{"app": "echo", "name": "echo", "port": 7000, "sourceRate": 0, "addresses": ["192.0.2.1", "192.0.2.50", "2001:db8::1", "2001:db8::50"]},
		{"app": "speedlimit", "name": "sign", "port": 8080, "sourceRate": 0, "addresses": ["192.0.2.1"]}]}`
	echo := func(p packet) packet { return p.with(func(p *packet) { p.sport = 7000 }) }
	for _, hook := range hooks {
		k := load(b, hook, config)
		if err := k.maps.Put(mapPorts, uint32(0), answersAnybody(7000, 8080)); err != nil {
			b.Fatal(err)
		}
		for _, c := range []struct {
			name   string
			packet packet
			want   verdict
		}{
			{"echo4", echo(get()), answered},
			{"echo6", echo(get6()), answered},
			{"echo4-1200", echo(get()).with(func(p *packet) { p.payload = make([]byte, 1200) }), answered},
			{"consume4", ask(5), dropped},
			{"other", get().with(func(p *packet) { p.dport = 53 }), passed},
		} {
			b.Run(string(hook)+"/"+c.name, func(b *testing.B) {
				frame := c.packet.frame()
				if got, _ := k.run(frame); got != c.want {
					b.Fatal(got)
				}
				_, took, err := k.prog.Benchmark(frame, b.N, nil)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(took)/float64(time.Nanosecond), "ns/op")
			})
		}
	}
}

// answersAnybody removes the source ports that get no answer.
func answersAnybody(answered ...uint16) *ports {
	var p ports
	for _, port := range answered {
		p.Answered[port>>5] |= 1 << (port & 31)
	}
	return &p
}
