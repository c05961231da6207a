// SPDX-License-Identifier: Apache-2.0

package bpftest

import (
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/internal/dataplane"
	abi "github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/packet"
	"github.com/kerb-edge/kerb/internal/seed"
)

// mutate damages a frame the way that matters to a parser: header bytes, cuts, padding, bytes put in.
func mutate(rng *rand.Rand, frame []byte) []byte {
	out := slices.Clone(frame)
	for range 1 + rng.IntN(2) {
		at := rng.IntN(min(len(out), 120))
		switch rng.IntN(6) {
		case 0:
			out[at] = byte(rng.Uint32())
		case 1:
			out[at] ^= 1 << rng.IntN(8)
		case 2:
			out[at] = interesting[rng.IntN(len(interesting))]
		case 3:
			out = out[:max(15, rng.IntN(len(out)+1))]
		case 4:
			out = append(out, make([]byte, rng.IntN(20))...)
		case 5:
			out = slices.Insert(out, at, payload(8)...)
		}
	}
	return out
}

// interesting bytes: protocol numbers, halves of EtherTypes, bounds.
var interesting = []byte{0, 1, 4, 5, 6, 8, 17, 43, 44, 50, 51, 58, 59, 60, 135, 0x45, 0x46, 0x4f, 0x60, 0x81, 0x86,
	0x88, 0xa8, 0xdd, 0xff}

// vary changes fields that a parser must ignore: hardware and IP addresses, ports, TTL, checksums.
func vary(rng *rand.Rand, s sample) []byte {
	out := slices.Clone(s.frame)
	random := func(from, to uint64) {
		for i := from; i < min(to, uint64(len(out))); i++ {
			out[i] = byte(rng.Uint32())
		}
	}
	random(0, 12)
	switch s.family {
	case 4:
		random(s.l3+8, s.l3+9)
		random(s.l3+10, s.l3+20)
	case 6:
		random(s.l3+7, s.l3+40)
	}
	if s.flags&abi.FlagL4 != 0 {
		random(s.l4, s.l4+4)
	}
	return out
}

// generate returns a frame: of five one as in samples but for addresses and the like, three damaged, one random.
func generate(rng *rand.Rand, all, plain []sample) []byte {
	s := all[rng.IntN(len(all))]
	if rng.IntN(2) == 0 {
		s = plain[rng.IntN(len(plain))]
	}
	switch frame := vary(rng, s); rng.IntN(5) {
	case 0:
		return frame
	case 1:
		return randomFrame(rng)
	default:
		return mutate(rng, frame)
	}
}

// isPlain reports whether the straight part of the parser takes a packet, of which the model says p.
func isPlain(frame []byte, p abi.Packet) bool {
	header := map[uint8]uint64{4: 20, 6: 40}[p.Family]
	if p.Outcome != ok || p.Flags != abi.FlagL4 || p.L3 != 14 || p.L4 != p.L3+header {
		return false
	}
	return p.Proto == protoTCP || p.Proto == protoUDP && be.Uint16(frame[p.L4+4:]) >= 8
}

// checkPath compares which part of the parser takes a frame.
func checkPath(tb testing.TB, heads []head, frame []byte, want bool) {
	tb.Helper()
	for _, h := range heads {
		if !h.takes(frame) {
			continue
		}
		ret, err := h.plain.Run(&ebpf.RunOptions{Data: frame, Repeat: 1})
		if err != nil || (ret == 1) != want {
			tb.Errorf("%s, frame %x: straight part %d, want %t (%v)", h.hook, frame, ret, want, err)
		}
	}
}

// checkCut runs the head for XDP frames in several buffers on a frame that is cut somewhere.
func checkCut(tb testing.TB, rng *rand.Rand, heads []head, frame []byte) {
	tb.Helper()
	want := packet.Dissect(frame)
	for _, h := range heads {
		if h.frags {
			got := h.parseCut(tb, frame, rng.IntN(len(frame)))
			got.DataEnd = want.DataEnd
			if got != want {
				tb.Errorf("XDP in several buffers, frame %x: model - kernel +\n%s", frame, cmp.Diff(want, got))
			}
		}
	}
}

// TestDifferential compares kernel and model on valid, damaged and random frames; package seed repeats a failure.
// KERB_PARSE_FRAMES sets the number of frames. The shares are below what 300,000 frames show, so that generators that
// no longer reach a part of the parser fail.
func TestDifferential(t *testing.T) {
	heads := loadHeads(t)
	rng := seed.Rand(t)
	all := samples(t)
	plain := slices.DeleteFunc(slices.Clone(all), func(s sample) bool {
		return !isPlain(s.frame, packet.Dissect(s.frame))
	})
	outcomes := make(map[abi.ParseOutcome]int)
	frames, straight, l4 := frameCount(t), 0, 0
	for i := 0; i < frames && !t.Failed(); i++ {
		frame := generate(rng, all, plain)
		p := check(t, heads, frame)
		checkPath(t, heads, frame, isPlain(frame, p))
		if i%4 == 0 && dataplane.CanPullXDP() {
			checkCut(t, rng, heads, frame)
		}
		outcomes[p.Outcome]++
		straight += count(isPlain(frame, p))
		l4 += count(p.Flags&abi.FlagL4 != 0)
	}
	t.Logf("outcomes %v; %d by the straight part, %d with ports", outcomes, straight, l4)
	atLeast := func(what string, n, perMille int) {
		if n*1000 < frames*perMille {
			t.Errorf("%s: %d of %d frames, want at least %d in 1,000", what, n, frames, perMille)
		}
	}
	atLeast("straight part", straight, 150)
	atLeast("general part with ports", l4-straight, 60)
	for o, name := range abi.ParseOutcomes {
		atLeast(name, outcomes[abi.ParseOutcome(o)], 2)
	}
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

func frameCount(t *testing.T) int {
	if text := os.Getenv("KERB_PARSE_FRAMES"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("KERB_PARSE_FRAMES: %v", err)
		}
		return n
	}
	if testing.Short() {
		return 30_000
	}
	return 300_000
}

// randomFrame has random bytes behind the EtherType of IPv4, IPv6 or a tag, and a version that fits in most of them.
func randomFrame(rng *rand.Rand) []byte {
	frame := make([]byte, 15+rng.IntN(150))
	for i := range frame {
		frame[i] = byte(rng.Uint32())
	}
	start := [][]byte{{8, 0, 0x45}, {0x86, 0xdd, 0x60}, {0x81, 0, 0}}[rng.IntN(3)]
	copy(frame[12:], start)
	if len(frame) > 24 && rng.IntN(2) == 0 {
		frame[16], frame[20], frame[23] = 0, byte(rng.IntN(64)), interesting[rng.IntN(len(interesting))]
	}
	return frame
}
