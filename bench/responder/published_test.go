// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"
)

// speedOf sends a request and returns the answer, or 0 without one.
func speedOf(t *testing.T, c *contender, request []byte, wait time.Duration) (op, value uint32) {
	t.Helper()
	err := c.place.client.Do(func() error {
		conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.place.address,
			uint16(c.port()))))
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := conn.Write(request); err != nil {
			return err
		}
		conn.SetReadDeadline(time.Now().Add(wait))
		answer := make([]byte, 64)
		if n, err := conn.Read(answer); err == nil && n == 8 { // otherwise ICMP errors
			op, value = binary.NativeEndian.Uint32(answer), binary.NativeEndian.Uint32(answer[4:])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return op, value
}

func message(words ...uint32) (out []byte) {
	for _, w := range words {
		out = binary.NativeEndian.AppendUint32(out, w)
	}
	return out
}

// The published program answers with the published curve, counts cars that arrive and leave, and passes other packets
// to the stack. Its checksums are correct, since sockets receive the answers.
func TestPublishedProgram(t *testing.T) {
	e := newExperiment(t)
	kernel := openContender(t, e, "published", "published-kernel")
	for cars := uint32(1); cars <= 120; cars++ {
		if op, limit := speedOf(t, kernel, message(4, 0), time.Second); op != 3 || limit != curve(cars) {
			t.Fatalf("%d cars: op %d, %d km/h, want %d", cars, op, limit, curve(cars))
		}
	}
	for range 60 {
		speedOf(t, kernel, message(5, 0), time.Millisecond) // has no answer
	}
	if _, limit := speedOf(t, kernel, message(4, 0), time.Second); limit != curve(61) {
		t.Errorf("after 60 of 120 have left: %d km/h, want %d", limit, curve(61))
	}
	for name, request := range map[string][]byte{"op 3": message(3, 0), "short": message(4), "long": message(4, 0, 0),
		"nothing": {}} {
		if op, _ := speedOf(t, kernel, request, 100*time.Millisecond); op != 0 {
			t.Errorf("%s is answered with op %d", name, op)
		}
	}
	if _, limit := speedOf(t, kernel, message(4, 0), time.Second); limit != curve(62) {
		t.Errorf("what is no request was counted: %d km/h, want %d", limit, curve(62))
	}
	mixed := openContender(t, e, "published", "published-mixed")
	if err := mixed.state.Put(keyOf("cars"), uint32(64)); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(100 * time.Millisecond) { // until the next second
		var limit uint32
		if err := mixed.state.Lookup(keyOf("limit"), &limit); err != nil || time.Now().After(deadline) {
			t.Fatalf("mixed: %d km/h, want %d: %v", limit, curve(64), err)
		}
		if limit == curve(64) {
			break
		}
	}
	if op, limit := speedOf(t, mixed, message(4, 0), time.Second); op != 3 || limit != curve(64) {
		t.Errorf("mixed: op %d, %d km/h, want %d", op, limit, curve(64))
	}
}
