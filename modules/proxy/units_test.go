// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Runs never overlap, rest before they are reused, and merge into the whole array at the end.
func TestBlocks(t *testing.T) {
	const size = 100_000 // no power of two
	r := rand.New(rand.NewPCG(5, 6))
	b, now := newBlocks(size, time.Second), time.Unix(0, 0)
	runs, freed := map[uint32]uint32{}, map[uint32]time.Time{}
	owner := make([]bool, size)
	for range 20_000 {
		now = now.Add(time.Duration(r.IntN(20)) * time.Millisecond)
		if len(runs) > 300 {
			for at, n := range runs {
				for i := at; i < at+n; i++ {
					owner[i], freed[i] = false, now
				}
				b.release(at, now)
				delete(runs, at)
				break
			}
			continue
		}
		n := 1 + uint32(r.IntN(200))
		at, ok := b.take(n, now)
		if !ok {
			t.Fatalf("no room for %d in %d, %d used", n, size, b.used)
		}
		for i := at; i < at+n; i++ {
			if owner[i] || now.Sub(freed[i]) < time.Second && !freed[i].IsZero() {
				t.Fatalf("element %d is dealt out again, freed %v ago", i, now.Sub(freed[i]))
			}
			owner[i] = true
		}
		runs[at] = n
	}
	for at := range runs {
		b.release(at, now)
	}
	b.wake(now.Add(time.Second))
	if b.used != 0 || len(b.taken) != 0 {
		t.Errorf("%d used, %d taken in the end", b.used, len(b.taken))
	}
	if _, ok := b.take(1<<16, now); !ok {
		t.Error("neighbours did not come together")
	}
}

// A restarted control plane adopts the existing runs, and allocates only free ones.
func TestBlocksAdopt(t *testing.T) {
	b, now := newBlocks(4096, time.Second), time.Unix(0, 0)
	runs := map[uint32]uint32{}
	for _, n := range []uint32{1, 1021, 3, 251, 16, 7} {
		at, ok := b.take(n, now)
		if !ok {
			t.Fatal(n)
		}
		runs[at] = n
	}
	again := newBlocks(4096, time.Second)
	for at, n := range runs {
		if !again.adopt(at, n) {
			t.Errorf("%d at %d is not adopted", n, at)
		}
		if again.adopt(at, n) {
			t.Errorf("%d at %d is adopted twice", n, at)
		}
	}
	if again.used != b.used {
		t.Errorf("%d used, %d before", again.used, b.used)
	}
	for n := uint32(0); ; n++ {
		at, ok := again.take(1, now)
		if !ok {
			if n != 4096-b.used {
				t.Errorf("%d left, want %d", n, 4096-b.used)
			}
			break
		}
		if _, taken := runs[at]; taken {
			t.Fatalf("%d is dealt out twice", at)
		}
	}
	for _, wrong := range [][2]uint32{{1, 2}, {4096, 1}, {0, 0}, {8192, 16}} {
		if newBlocks(4096, 0).adopt(wrong[0], wrong[1]) {
			t.Errorf("%v is adopted", wrong)
		}
	}
}

func TestNumbers(t *testing.T) {
	now := time.Unix(0, 0)
	n := newNumbers(1, 6, time.Second, map[uint32]bool{2: true, 4: true})
	var got []uint32
	for {
		i, ok := n.take(now)
		if !ok {
			break
		}
		got = append(got, i)
	}
	if diff := cmp.Diff([]uint32{1, 3, 5}, got); diff != "" {
		t.Error(diff)
	}
	n.release(4, now)
	if i, ok := n.take(now.Add(time.Second / 2)); ok {
		t.Errorf("%d has not rested", i)
	}
	if i, ok := n.take(now.Add(time.Second)); !ok || i != 4 {
		t.Errorf("%d %t after its rest, want 4", i, ok)
	}
}

func addressNo(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 30, byte(i >> 8), byte(i)}) }

func frames(packets []*heldPacket) (out []string) {
	for _, p := range packets {
		out = append(out, string(p.frame))
	}
	return
}

func TestHeld(t *testing.T) {
	h, now := newHeld(3, 6, 1000, 5*time.Second), time.Unix(0, 0)
	add := func(to, n int) bool {
		return h.add(heldPacket{to: addressNo(to), ifindex: 7, frame: fmt.Appendf(nil, "%d.%d", to, n)}, now)
	}
	for n := range 5 {
		if first := add(1, n); first != (n == 0) {
			t.Errorf("packet %d first: %t", n, first)
		}
	}
	add(2, 0)
	if diff := cmp.Diff([]string{"1.2", "1.3", "1.4"}, frames(h.take(addressNo(1)))); diff != "" {
		t.Errorf("not the youngest three, oldest first:\n%s", diff)
	}
	if h.Dropped != 2 {
		t.Errorf("%d dropped, want 2", h.Dropped)
	}
	for n := 10; n < 17; n++ {
		add(n, 0)
	}
	if h.all.Len() != 6 || h.Dropped != 4 {
		t.Errorf("%d held, %d dropped, want 6 and 4", h.all.Len(), h.Dropped)
	}
	if got := h.take(addressNo(10)); len(got) != 0 {
		t.Errorf("the oldest of all was not evicted: %v", frames(got))
	}
	h.add(heldPacket{to: addressNo(20), frame: make([]byte, 990)}, now)
	if h.all.Len() != 3 || h.size != 998 {
		t.Errorf("%d packets of %d bytes held, limit 1000", h.all.Len(), h.size)
	}
	now = now.Add(5*time.Second - 1)
	add(21, 0)
	for range 2 {
		if over := h.overdue(now.Add(1)); len(over) != 2 {
			t.Errorf("%d overdue, want 2: %v", len(over), over)
		}
	}
	for _, a := range h.overdue(now.Add(time.Hour)) {
		h.take(a)
	}
	if h.size != 0 || h.all.Len() != 0 || len(h.addresses) != 0 {
		t.Errorf("not empty: %d bytes, %d packets, %d addresses", h.size, h.all.Len(), len(h.addresses))
	}
}

// Held packets of one service evict no held packets of others, to the same or other addresses.
func TestHeldByInterface(t *testing.T) {
	for _, same := range []bool{false, true} {
		h, now := newHeld(4, 8, 1000, time.Second), time.Unix(0, 0)
		h.add(heldPacket{to: addressNo(1), ifindex: 7, frame: []byte("mine")}, now)
		for n := range 100 {
			to := addressNo(1)
			if !same {
				to = addressNo(2 + n)
			}
			h.add(heldPacket{to: to, ifindex: 8, frame: []byte("evil")}, now)
		}
		if got := frames(h.take(addressNo(1))); len(got) == 0 || got[0] != "mine" {
			t.Errorf("same address %t: %v", same, got)
		}
	}
}

// A scan of a virtual range with one packet per address is limited, too.
func TestHeldBoundsAddresses(t *testing.T) {
	h, now := newHeld(3, 6, 1000, 5*time.Second), time.Unix(0, 0)
	for i := range 10_000 {
		h.add(heldPacket{to: addressNo(i), frame: []byte("x")}, now)
	}
	if h.all.Len() > 6 || len(h.addresses) > 6 {
		t.Errorf("%d packets, %d addresses", h.all.Len(), len(h.addresses))
	}
}

func TestNegative(t *testing.T) {
	n, now := newNegative(10*time.Second, 3), time.Unix(0, 0)
	for i := range 5 {
		until, over := n.add(addressNo(i), 7, now.Add(time.Duration(i)*time.Second))
		if want := now.Add(time.Duration(10+i) * time.Second); until != want {
			t.Errorf("%d until %v, want %v", i, until, want)
		}
		if i < 3 && over != nil || i >= 3 && !cmp.Equal(over, []netip.Addr{addressNo(i - 3)},
			cmp.Comparer(func(a, b netip.Addr) bool { return a == b })) {
			t.Errorf("%v is evicted for %d", over, i)
		}
	}
	n.remove(addressNo(3))
	n.add(addressNo(2), 7, now.Add(5*time.Second)) // requested again
	if over := n.expired(now.Add(14*time.Second - 1)); over != nil {
		t.Errorf("%v too early", over)
	}
	if over := n.expired(now.Add(15 * time.Second)); len(over) != 2 || over[0] != addressNo(4) || over[1] != addressNo(2) {
		t.Errorf("%v, want 4 and 2", over)
	}
	if len(n.askers) != 0 || len(n.entries) != 0 {
		t.Error("not empty")
	}
}
