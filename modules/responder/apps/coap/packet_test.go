// SPDX-License-Identifier: Apache-2.0

package coap

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func casesConfig() map[string]any {
	return map[string]any{
		"hosts": []string{"sensor.example"},
		"resources": []any{
			map[string]any{"path": "sensors/temp", "contentFormat": "application/json", "maxAge": "30s", "value": "21.5"},
			map[string]any{"path": "plain", "contentFormat": "text/plain", "value": "hello"},
			map[string]any{"path": "nothing"},
			map[string]any{"path": "empty", "maxAge": "0s", "value": ""},
			map[string]any{"path": "/", "value": "root"},
			map[string]any{"path": "long/" + strings.Repeat("s", 40), "value": strings.Repeat("v", 1024)},
			map[string]any{"path": "a%2Fb", "value": "one segment"},
		},
	}
}

func path(segments ...string) (out []Option) {
	for _, s := range segments {
		out = append(out, Option{URIPath, []byte(s)})
	}
	return out
}

// temp returns a request for sensors/temp with further options.
func temp(more ...Option) []byte {
	return (&Message{ID: 0x1234, Code: GET, Token: []byte{7}, Options: append(path("sensors", "temp"), more...)}).Bytes()
}

func get(options ...Option) []byte {
	return (&Message{ID: 0x1234, Code: GET, Options: options}).Bytes()
}

// edit returns a request with the byte at an offset replaced.
func edit(b []byte, at int, value byte) []byte {
	b[at] = value
	return b
}

var tempETag = newValue([]byte("21.5"), 50, 30, 0).ETag

// Requirements of RFC 7252, and requests that pass to the server in user space, tested without the model.
var cases = []struct {
	name     string
	datagram []byte
	want     string // "" is passed on; else code, options and payload in short
}{
	{"confirmable", temp(), "2.05 ACK format 50 age 30 21.5"},
	{"non-confirmable", edit(temp(), 0, 0x51), "2.05 NON format 50 age 30 21.5"},
	{"default max-age", get(path("plain")...), "2.05 ACK format 0 age 60 hello"},
	{"root", get(), "2.05 ACK age 60 root"},
	{"empty value", get(path("empty")...), "2.05 ACK age 0 "},
	{"two-byte length of a segment", get(path("long", strings.Repeat("s", 40))...), "2.05 ACK age 60 " +
		strings.Repeat("v", 1024)},
	{"slash in a segment", get(path("a/b")...), "2.05 ACK age 60 one segment"},
	{"token of 8", (&Message{Code: GET, Token: []byte("12345678"), Options: path("plain")}).Bytes(),
		"2.05 ACK format 0 age 60 hello"},

	{"accept", temp(Uint(Accept, 50)), "2.05 ACK format 50 age 30 21.5"},
	{"accept 0", get(append(path("plain"), Uint(Accept, 0))...), "2.05 ACK format 0 age 60 hello"},
	{"accept 0 with a zero byte", get(append(path("plain"), Option{Accept, []byte{0}})...),
		"2.05 ACK format 0 age 60 hello"},
	{"accept another format", temp(Uint(Accept, 60)), ""},
	{"accept where there is no format", get(append(path("nothing"), Uint(Accept, 0))...), ""},
	{"accept twice", temp(Uint(Accept, 50), Uint(Accept, 50)), ""},
	{"accept of three bytes", temp(Option{Accept, []byte{0, 0, 50}}), ""},

	{"etag", temp(Option{ETag, tempETag[:]}), "2.03 ACK age 30 "},
	{"one etag of several", temp(Option{ETag, []byte("another1")}, Option{ETag, []byte{1}}, Option{ETag, tempETag[:]}),
		"2.03 ACK age 30 "},
	{"another etag", temp(Option{ETag, []byte("another1")}), "2.05 ACK format 50 age 30 21.5"},
	{"etag without bytes", temp(Option{ETag, nil}), "2.05 ACK format 50 age 30 21.5"},
	{"etag of nine bytes", temp(Option{ETag, []byte("123456789")}), "2.05 ACK format 50 age 30 21.5"},
	{"etag and block", temp(Option{ETag, tempETag[:]}, Uint(Block2, 0)), "2.03 ACK age 30 "},

	{"block 0 of 16", temp(Uint(Block2, 0)), "2.05 ACK format 50 age 30 block 0 21.5"},
	{"block 0 of 1024", get(append(path("long", strings.Repeat("s", 40)), Uint(Block2, 6))...),
		"2.05 ACK age 60 block 6 " + strings.Repeat("v", 1024)},
	{"block 0 that does not fit", get(append(path("long", strings.Repeat("s", 40)), Uint(Block2, 5))...), ""},
	{"block 1", temp(Uint(Block2, 1<<4)), ""},
	{"reserved block size", temp(Uint(Block2, 7)), ""},
	{"block of four bytes", temp(Option{Block2, []byte{0, 0, 0, 0}}), ""},

	{"host", temp(Option{URIHost, []byte("sensor.example")}), "2.05 ACK format 50 age 30 21.5"},
	{"another host", temp(Option{URIHost, []byte("other.example")}), ""},
	{"empty host", temp(Option{URIHost, nil}), ""},
	{"host twice", temp(Option{URIHost, []byte("sensor.example")}, Option{URIHost, []byte("sensor.example")}), ""},
	{"port of the request", temp(Uint(URIPort, port)), "2.05 ACK format 50 age 30 21.5"},
	{"another port", temp(Uint(URIPort, 5684)), ""},

	{"unknown elective option", temp(Option{2048, []byte("x")}), "2.05 ACK format 50 age 30 21.5"},
	{"elective option far away", temp(Option{65000, bytes.Repeat([]byte{1}, 30)}), "2.05 ACK format 50 age 30 21.5"},
	{"content format in a request", temp(Uint(ContentFormat, 60)), "2.05 ACK format 50 age 30 21.5"},
	{"unknown critical option", temp(Option{2049, nil}), ""},
	{"critical option far away", temp(Option{65001, nil}), ""},
	{"query", temp(Option{URIQuery, []byte("a=b")}), ""},
	{"if-match", temp(Option{IfMatch, nil}), ""},
	{"if-none-match", temp(Option{IfNoneMatch, nil}), ""},
	{"observe", temp(Uint(Observe, 0)), ""},
	{"end of observe", temp(Uint(Observe, 1)), ""},
	{"proxy-uri", temp(Option{ProxyURI, []byte("coap://other.example/")}), ""},
	{"proxy-scheme", temp(Option{39, []byte("coap")}), ""},
	{"no-response", temp(Uint(NoResponse, 2)), ""},
	{"oscore", temp(Option{9, nil}), ""},

	{"unknown path", get(path("sensors", "humidity")...), ""},
	{"part of a path", get(path("sensors")...), ""},
	{"path and more", temp(Option{URIPath, []byte("x")}), ""},
	{"path with an empty segment", temp(Option{URIPath, nil}), ""},
	{"path in capitals", get(path("Sensors", "temp")...), ""},
	{"one segment for two", get(path("sensors/temp")...), ""},
	{"path too long", get(path(strings.Repeat("x", 70))...), ""},
	{"no value", get(path("nothing")...), ""},

	{"post", edit(temp(), 1, byte(POST)), ""},
	{"put", edit(temp(), 1, byte(PUT)), ""},
	{"delete", edit(temp(), 1, byte(DELETE)), ""},
	{"fetch", edit(temp(), 1, byte(FETCH)), ""},
	{"a response", edit(temp(), 1, byte(Content)), ""},
	{"ping", []byte{0x40, 0, 1, 2}, ""},
	{"acknowledgement", []byte{0x60, 0, 1, 2}, ""},
	{"reset", []byte{0x70, 0, 1, 2}, ""},
	{"get as an acknowledgement", edit(temp(), 0, 0x61), ""},
	{"payload", append(temp(), 0xff, 'x'), ""},
	{"payload marker alone", append(temp(), 0xff), ""},
	{"version 2", edit(temp(), 0, 0x81), ""},
	{"token length 9", edit(temp(), 0, 0x49), ""},
	{"token length 15", edit(temp(), 0, 0x4f), ""},
	{"token cut off", []byte{0x48, 1, 0, 0, 1, 2, 3}, ""},
	{"three bytes", []byte{0x40, 1, 0}, ""},
	{"one byte", []byte{0x40}, ""},
	{"option cut off", temp()[:len(temp())-1], ""},
	{"reserved delta", append(temp(), 0xf1, 0), ""},
	{"reserved length", append(temp(), 0x1f, 0), ""},
	{"length extension cut off", append(temp(), 0x1d), ""},
	{"delta extension cut off", append(temp(), 0xe0, 1), ""},
	{"option number too large", append(temp(Option{65000, nil}), 0xe0, 0xff, 0xff), ""},
	{"16 options", temp(make16()...), "2.05 ACK format 50 age 30 21.5"},
	{"17 options", temp(append(make16(), Option{2048, nil})...), ""},
	{"256 bytes", temp(Option{2048, bytes.Repeat([]byte{1}, 256-len(temp())-4)}), "2.05 ACK format 50 age 30 21.5"},
	{"257 bytes", temp(Option{2048, bytes.Repeat([]byte{1}, 257-len(temp())-4)}), ""},
}

// make16 returns the 14 options that are possible in addition to two segments.
func make16() (out []Option) {
	for range 14 {
		out = append(out, Option{2048, nil})
	}
	return out
}

// short returns a reply's contents.
func short(t *testing.T, request, reply []byte) string {
	t.Helper()
	m, err := Read(reply)
	if err != nil {
		t.Fatalf("%v: %x", err, reply)
	}
	asked, _ := Read(request)
	if !bytes.Equal(m.Token, asked.Token) {
		t.Errorf("token %x for %x", m.Token, asked.Token)
	}
	if (m.ID == asked.ID) != (m.Type == Acknowledgement) {
		t.Errorf("message id %x of type %d for %x", m.ID, m.Type, asked.ID)
	}
	out := map[Code]string{Content: "2.05", Valid: "2.03"}[m.Code] + map[Type]string{NonConfirmable: " NON",
		Acknowledgement: " ACK"}[m.Type]
	etags := 0
	for _, o := range m.Options {
		n, _ := o.Uint(4)
		switch o.Number {
		case ETag:
			etags++
		case ContentFormat:
			out += " format " + fmt.Sprint(n)
		case MaxAge:
			out += " age " + fmt.Sprint(n)
		case Block2:
			out += " block " + fmt.Sprint(n)
		default:
			t.Errorf("option %d", o.Number)
		}
	}
	if etags != 1 {
		t.Errorf("%d entity tags", etags)
	}
	return out + " " + string(m.Payload)
}

func TestCases(t *testing.T) {
	clients := []string{"192.0.2.1:40000", "[2001:db8::1]:40000"}
	for _, hook := range hooks {
		config := casesConfig()
		config["duplicates"] = false
		d := load(t, hook, config)
		for _, client := range clients {
			from := netip.MustParseAddrPort(client)
			for _, c := range cases {
				t.Run(hook.name+" "+client+" "+c.name, func(t *testing.T) {
					got := ""
					if reply, verdict := d.send(t, from, serverOf(from), c.datagram); verdict == Reply {
						got = short(t, c.datagram, reply)
					}
					if got != c.want {
						t.Errorf("got %q, want %q", got, c.want)
					}
				})
			}
		}
	}
}

var client = netip.MustParseAddrPort("192.0.2.1:40000")

// A checksum of zero means that there is none, and is sent as all ones instead, in requests and replies (RFC 768). Over
// IPv6 it is not allowed.
func TestChecksumOfAllOnes(t *testing.T) {
	config := casesConfig()
	config["duplicates"] = false
	for _, hook := range hooks {
		d := load(t, hook, config)
		for _, client := range []string{"192.0.2.1:1000", "[2001:db8::1]:1000"} {
			from := netip.MustParseAddrPort(client)
			requests, replies := 0, 0
			for id := range 1 << 16 {
				datagram := (&Message{ID: uint16(id), Code: GET, Options: path("plain")}).Bytes()
				want, _ := d.model.Decide(from, serverOf(from), datagram, 0)
				asked, answered := allOnes(from, serverOf(from), datagram), allOnes(serverOf(from), from, want)
				if !asked && !answered {
					continue
				}
				if got, verdict := d.send(t, from, serverOf(from), datagram); verdict != Reply || !bytes.Equal(got, want) {
					t.Errorf("%s, %s, %x: %v %x, want %x", hook.name, client, datagram, verdict, got, want)
				}
				requests += map[bool]int{true: 1}[asked]
				replies += map[bool]int{true: 1}[answered]
			}
			if requests != 1 || replies != 1 {
				t.Errorf("%s: %d requests and %d replies, want one of each", client, requests, replies)
			}
		}
	}
}

// allOnes reports whether a datagram's checksum is 0xffff.
func allOnes(from, to netip.AddrPort, payload []byte) bool {
	f := frame(from, to, payload)
	return bytes.Equal(f[len(f)-len(payload)-2:len(f)-len(payload)], []byte{0xff, 0xff})
}

// A duplicate of a confirmable request gets the same answer, byte by byte, also after the value has changed; a
// duplicate of a non-confirmable one gets none. An equal id alone is not a duplicate.
func TestDuplicates(t *testing.T) {
	for _, hook := range hooks {
		t.Run(hook.name, func(t *testing.T) {
			d := load(t, hook, casesConfig())
			ask := func(from netip.AddrPort, b []byte) (string, Verdict) {
				reply, verdict := d.send(t, from, serverOf(from), b)
				return string(reply), verdict
			}
			d.set(t, "nothing", []byte("leased"), 100*time.Second)
			con := get(path("nothing")...)
			first, _ := ask(client, con)
			d.set(t, "nothing", []byte("replaced"), 50*time.Second)
			if again, _ := ask(client, con); again != first || !strings.HasSuffix(first, "leased") {
				t.Errorf("%q, then %q", first, again)
			}
			other := netip.AddrPortFrom(client.Addr(), client.Port()+1)
			if fresh, _ := ask(other, con); !strings.HasSuffix(fresh, "replaced") {
				t.Errorf("another client's message with this id: %q", fresh)
			}
			if fresh, _ := ask(client, temp()); !strings.HasSuffix(fresh, "21.5") {
				t.Errorf("another request with this id: %q", fresh)
			}
			non := edit(get(path("plain")...), 0, 0x50)
			if _, verdict := ask(client, non); verdict != Reply {
				t.Errorf("non-confirmable: %v", verdict)
			}
			if _, verdict := ask(client, non); verdict != Ignore {
				t.Errorf("non-confirmable again: %v", verdict)
			}
			d.set(t, "nothing", []byte("third"), 0)
			if again, _ := ask(other, con); !strings.HasSuffix(again, "replaced") {
				t.Errorf("the value before the present one: %q", again)
			}
		})
	}
}

func TestMaxAgeCountsDown(t *testing.T) {
	for _, hook := range hooks {
		t.Run(hook.name, func(t *testing.T) {
			config := casesConfig()
			config["duplicates"] = false
			d := load(t, hook, config)
			const lease = 1500 * time.Millisecond
			begin := time.Now()
			d.set(t, "plain", []byte("x"), lease)
			reply, verdict := d.send(t, client, serverOf(client), get(path("plain")...))
			took := time.Since(begin) // half a second, on some machines
			switch {
			case verdict == Reply && short(t, get(), reply) == "2.05 ACK format 0 age 1 x":
			case verdict == Reply && short(t, get(), reply) == "2.05 ACK format 0 age 0 x" && took > lease-time.Second:
			case verdict == Pass && took > lease:
			default:
				t.Errorf("%v %x after %v", verdict, reply, took)
			}
			for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				if _, verdict := d.send(t, client, serverOf(client), get(path("plain")...)); verdict == Pass {
					break
				}
				if time.Now().After(end) {
					t.Fatal("an expired value is answered")
				}
			}
			d.set(t, "plain", nil, 0)
			if reply, _ := d.send(t, client, serverOf(client), get(path("plain")...)); short(t, get(),
				reply) != "2.05 ACK format 0 age 60 hello" {
				t.Errorf("the config's value is not back: %q", reply)
			}
		})
	}
}

// A reply of more than three times the bytes of its request requires a proof of the source's address: others get 4.01
// with an Echo value that is valid for their address only, in the period of its creation and the next one (RFC 9175).
func TestAmplification(t *testing.T) {
	config := map[string]any{"resources": []any{
		map[string]any{"path": "long", "value": strings.Repeat("v", 1000)}, map[string]any{"path": "short", "value": "v"}}}
	clients := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:1000"), netip.MustParseAddrPort("192.0.2.2:1000"),
		netip.MustParseAddrPort("[2001:db8::1]:1000"), netip.MustParseAddrPort("[2001:db8::2]:1000")}
	for _, hook := range hooks {
		t.Run(hook.name, func(t *testing.T) {
			d := loadWith(t, hook, config, amplification)
			id := uint16(0)
			ask := func(from netip.AddrPort, path string, echo []byte) *Message {
				t.Helper()
				id++
				m := &Message{Type: Confirmable, Code: GET, ID: id, Token: []byte{1}, Options: []Option{{URIPath, []byte(path)}}}
				if echo != nil {
					m.Options = append(m.Options, Option{Echo, echo})
				}
				request := m.Bytes()
				reply, verdict := d.send(t, from, serverOf(from), request)
				if verdict != Reply {
					t.Fatalf("%s from %v: %v", path, from, verdict)
				}
				out, err := Read(reply)
				if err != nil || out.ID != id || string(out.Token) != "\x01" {
					t.Fatalf("%+v, %v", out, err)
				}
				if headers := 28; out.Code == Unauthorized && headers+len(reply) > amplification*(headers+len(request)) {
					t.Errorf("a challenge of %d bytes for a request of %d", len(reply), len(request))
				}
				return out
			}
			request := (&Message{Type: Confirmable, Code: GET, ID: 1, Options: []Option{{URIPath, []byte("long")}}}).Bytes()
			if err := d.maps[mapSecrets].Put(uint32(0), secret{}); err != nil {
				t.Fatal(err)
			}
			if _, verdict := d.send(t, clients[0], serverOf(clients[0]), request); verdict != Pass {
				t.Errorf("without a key a long value: %v", verdict)
			}
			if err := d.maps[mapSecrets].Put(uint32(0), d.model.Secret); err != nil {
				t.Fatal(err)
			}
			for i, from := range clients {
				if got := ask(from, "short", nil); got.Code != Content {
					t.Errorf("a short value: %v", got.Code)
				}
				challenge := ask(from, "long", nil)
				if challenge.Code != Unauthorized || len(challenge.Options) != 1 || challenge.Options[0].Number != Echo {
					t.Fatalf("%+v", challenge)
				}
				echo := challenge.Options[0].Value
				if got := ask(from, "long", echo); got.Code != Content || len(got.Payload) != 1000 {
					t.Errorf("with the proof: %v, %d bytes", got.Code, len(got.Payload))
				}
				other := netip.AddrPortFrom(from.Addr(), 2000)
				if got := ask(other, "long", echo); got.Code != Content {
					t.Errorf("from another port of the same address: %v", got.Code)
				}
				if got := ask(clients[(i+1)%len(clients)], "long", echo); got.Code != Unauthorized {
					t.Errorf("from another address: %v", got.Code)
				}
				if got := ask(from, "long", make([]byte, 8)); got.Code != Unauthorized {
					t.Errorf("with zeros: %v", got.Code)
				}
				period := coarseClock(t) >> echoShift
				if got := ask(from, "long", d.model.proof(from.Addr(), period-1)); got.Code != Content {
					t.Errorf("with the proof of the period before: %v", got.Code)
				}
				if got := ask(from, "long", d.model.proof(from.Addr(), period-3)); got.Code != Unauthorized {
					t.Errorf("with an old proof: %v", got.Code)
				}
			}
		})
	}
}
