// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// Programs that connect and say nothing, or are refused again and again, do not keep others out.
func TestDoorStaysOpen(t *testing.T) {
	d := newClientListener(filepath.Join(t.TempDir(), "m.sock"), "")
	admitted := make(chan uint64, 3*maxWaiting)
	if err := d.open(func(id uint64, _ int) error { admitted <- id; return nil }); err != nil {
		t.Fatal(err)
	}
	defer d.end()
	var first net.Conn
	for want := uint64(1); want <= 3*maxWaiting; want++ {
		conn, err := net.Dial("unixpacket", d.path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if first == nil {
			first = conn
		}
		select {
		case id := <-admitted:
			if id != want {
				t.Fatalf("client %d, want %d", id, want)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("client %d was not let in", want)
		}
	}
	_ = first.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := first.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the oldest one: %v, want its end", err)
	}
	if c := d.take(3 * maxWaiting); c == nil {
		t.Error("the last one cannot be given maps")
	} else {
		c.Close()
	}
	if n := len(d.waiting); n != maxWaiting-1 {
		t.Errorf("%d connections are kept, want %d", n, maxWaiting-1)
	}
}
