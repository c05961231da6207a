// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/sdk"
)

func classes(n int, format string) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(format, i))
	}
	return `{"classes": [` + strings.Join(all, ",") + `]}`
}

// fallback returns a class with a fallback, and more properties of class and fallback.
func fallback(class, more string) string {
	return `{"classes": [{"name": "a", "match": {"protocol": "udp", "ports": [5005]}, ` + class +
		`, "fallback": {"app": "linear"` + more + `}}]}`
}

// Errors name the field and the valid values.
func TestConfigErrors(t *testing.T) {
	for _, c := range []struct{ config, field, reason string }{
		{classes(33, `{"name": "c%d", "action": "pass"}`), "classes", "at most 32"},
		{classes(17, `{"name": "c%d"}`), "classes[16].action", "more than 16 classes"},
		{`{"classes": [{"name": "a"}, {"name": "a"}]}`, "classes[1].name", "another class's too"},
		{`{"classes": [{"name": "a", "action": "keep"}]}`, "classes[0].action", "not one of pass, drop"},
		{`{"classes": [{"name": "a", "maxBytes": 63}]}`, "classes[0].maxBytes", "64 to 16384"},
		{`{"classes": [{"name": "a", "ring": "96Ki"}]}`, "classes[0].ring", "power of two"},
		{`{"classes": [{"name": "a", "ring": "128Mi"}]}`, "classes[0].ring", "power of two"},
		{`{"classes": [{"name": "a", "ring": "4294967297Mi"}]}`, "classes[0].ring", "power of two"},
		{`{"classes": [{"name": "a", "watchdog": "1us"}]}`, "classes[0].watchdog", "1ms or more"},
		{`{"classes": [{"name": "a", "deadline": "soon"}]}`, "config", "100us"},
		{`{"classes": [{"name": "a", "match": {"ports": [1]}}]}`, "classes[0].match.protocol", "udp or tcp"},
		{`{"classes": [{"name": "a", "match": {"protocol": "udp", "ports": ["9-1"]}}]}`, "config", "range such as"},
		{`{"classes": [{"name": "a", "match": {"protocol": "udp", "ports": [1,2,3,4,5,6,7,8,9]}}]}`, "classes[0].match.ports",
			"at most 8"},
		{`{"classes": [{"name": "a", "match": {"protocol": "ip"}}]}`, "config", "neither a number"},
		{`{"classes": [{"name": "a", "match": {"protocol": 256}}]}`, "config", "neither a number"},
		{`{"classes": [{"name": "a", "match": {"label": -1}}]}`, "match.label", "want number"},
		{`{"classes": [{"name": "a", "match": {"label": 65536}}]}`, "match.label", "want number"},
		{`{"classes": [{"name": "a", "match": {"label": 7.5}}]}`, "match.label", "want number"},
		{`{"classes": [{"name": "a", "match": {"label": "7"}}]}`, "match.label", "want number"},
		{`{"classes": [{"name": "a", "match": {"label": [7]}}]}`, "match.label", "want number"},
		{`{"classes": [{"name": "a", "match": {"sources": ["10.0.0.0/33"]}}]}`, "config", "neither an address"},
		{`{"classes": [{"name": "a", "match": {"sources": ["10.0.0.1"], "destinations": ["fd00::1"]}}]}`, "classes[0].match",
			"one class per IP version"},
		{`{"classes": [{"name": "a", "match": {"payload": [{"bytes": "0g"}]}}]}`, "config", "hexadecimal"},
		{`{"classes": [{"name": "a", "match": {"payload": [{"bytes": "0102", "mask": "ff"}]}}]}`,
			"classes[0].match.payload[0]", "as many"},
		{`{"classes": [{"name": "a", "match": {"payload": [{"bytes": "01", "offset": 16384}]}}]}`,
			"classes[0].match.payload[0].offset", "beyond"},
		{`{"classes": [{"name": "a", "match": {"payload": [{"bytes": "` + strings.Repeat("00", 33) + `"}]}}]}`,
			"classes[0].match.payload", "at most 4"},
		{`{"classes": [{"name": "a", "answer": {"app": "echo"}}]}`, "classes[0].answer", "required with action answer"},
		{`{"classes": [{"name": "a", "action": "answer"}]}`, "classes[0].answer", "names the application"},
		{`{"classes": [{"name": "a", "action": "answer", "answer": {"app": "echo"}}]}`, "classes[0].match", "one port"},
		{`{"classes": [{"name": "b"}, {"name": "a", "action": "answer", "match": {"protocol": "udp", "ports": [7]}, "answer": {"app": "ech"}}]}`, "classes[1].answer.app", "not one of"},
		{`{"classes": [{"name": "a", "action": "answer", "match": {"protocol": "udp", "ports": [7]}, "answer": {"app": "echo", "port": 8}}]}`, "classes[0].answer.port", "say it there"},
		{fallback(`"action": "copy", "deadline": "1ms"`, ``), "classes[0].fallback", "requires action steal"},
		{fallback(`"action": "steal"`, ``), "classes[0].fallback", "a deadline"},
		{fallback(`"action": "steal", "deadline": "1ms", "delivery": "afxdp"`, ``), "classes[0].delivery", "AF_XDP"},
		{fallback(`"action": "steal", "deadline": "1ms"`, ``), "classes[0].fallback.sourceRate", "is required"},
		{fallback(`"action": "steal", "deadline": "1ms"`, `, "sourceRate": null`), "classes[0].fallback.sourceRate", "is required"},
		{fallback(`"action": "steal", "deadline": "1ms"`, `, "sourceRate": 0, "reply": "0"`), "classes[0].fallback.reply", "hexadecimal"},
		{`{"classes": [{"name": "a", "colour": "red"}]}`, "colour", "unknown property"},
		{`{"classes": [{"name": "a", "action": "forward"}]}`, "classes[0].forward", "names the host"},
		{`{"classes": [{"name": "a", "forward": {"interface": "eth1"}}]}`, "classes[0].forward", "only there"},
		{forwards(udpOnly, ``), "classes[0].forward", "or interface"},
		{forwards(udpOnly, `"to": "node7"`), "config", "such as 192.0.2.7:7001"},
		{forwards(udpOnly, `"to": "192.0.2.7:0"`), "config", "such as 192.0.2.7:7001"},
		{forwards(udpOnly, `"to": "127.0.0.1:7"`), "classes[0].forward.to", "no address of another host"},
		{forwards(udpOnly, `"to": "224.0.0.5"`), "classes[0].forward.to", "no address of another host"},
		{forwards(udpOnly, `"to": "[fe80::1%eth0]:7"`), "classes[0].forward.to", "no address of another host"},
		{forwards(udpOnly, `"to": "::ffff:192.0.2.7"`), "classes[0].forward.to", "no address of another host"},
		{forwards(`"protocol": "tcp"`, `"to": "192.0.2.7"`), "classes[0].match.protocol", "proxy or nat"},
		{forwards(``, `"to": "192.0.2.7"`), "classes[0].match.protocol", "has to be udp"},
		{forwards(udpOnly+`, "family": 6`, `"to": "192.0.2.7"`), "classes[0].forward.to", "one class per IP version"},
		{strings.Replace(forwards(udpOnly, `"to": "192.0.2.7"`), `"name"`, `"direction": "both", "name"`, 1), "classes[0].direction", "has to be ingress"},
		{strings.Replace(forwards(udpOnly, `"to": "192.0.2.7"`), `"name"`, `"ring": "1Mi", "name"`, 1), "classes[0].ring", "has to be absent"},
	} {
		_, err := Control().Compile(json.RawMessage(c.config))
		var wrong *sdk.ConfigError
		if !errors.As(err, &wrong) || wrong.Field != c.field || !strings.Contains(wrong.Reason, c.reason) {
			t.Errorf("%.120s: %v", c.config, err)
		}
	}
}

// The largest table: 32 classes, 16 of which programs can open.
func TestFullTable(t *testing.T) {
	for _, n := range []int{1, 16} {
		if _, err := Control().Compile(json.RawMessage(classes(n, `{"name": "c%d"}`))); err != nil {
			t.Error(err)
		}
	}
	f := compileConfig(t, classes(32, `{"name": "c%d", "action": "drop"}`))
	if got := f.table(); got.N != 32 || got.Classes[1][31].Ring != noRing || got.OfRing[0] != noRing {
		t.Errorf("%d classes, rings %v", got.N, got.OfRing)
	}
}

// Missed deadlines are reported once, also if a consumer keeps its counters across configurations.
func TestMissesAreReportedOnce(t *testing.T) {
	f := compileConfig(t, threeClasses)
	p := &pages{}
	for _, c := range f.Classes {
		if c.slot != noRing { // classes without a ring have no page
			p[c.slot] = make([]byte, pageBytes)
		}
	}
	s := p.state(f.class("ctrl").slot)
	w := newWatch(f, p)
	s.Late, s.Lates, s.Last[0].T2 = 7, 1, w.begun-1
	if got := w.misses(); len(got) != 0 {
		t.Errorf("numbers that were brought along: %+v", got)
	}
	s.Late, s.Lates, s.Last[1].T2 = 9, 2, w.begun+1
	if got := w.misses(); len(got) != 1 || got[0].Packets != 2 || got[0].Class != "ctrl" {
		t.Errorf("two packets were late: %+v", got)
	}
	if got := w.misses(); len(got) != 0 {
		t.Errorf("again: %+v", got)
	}
}
