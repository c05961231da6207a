// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	_ "embed"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"golang.org/x/net/bpf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/lab/testrun"
	"github.com/kerb-edge/kerb/internal/packet"
)

//go:embed testdata/expressions.txt
var expressions string

// expressionFrames are frames that the expressions tell apart, and the same with bytes changed and cut off.
func expressionFrames(t *testing.T, random *rand.Rand) (frames [][]byte) {
	t.Helper()
	for _, text := range []string{
		"tcp 10.0.0.1:40000 > 10.0.0.2:80 syn", "tcp 10.0.0.2:80 > 10.0.0.1:40000", "tcp 10.0.0.1:22 > 192.0.2.1:22 fin",
		"udp 10.0.0.1:5000 > 10.0.0.2:53", "udp 10.0.0.1:53 > 192.0.2.9:55", "udp 192.0.2.1:8005 > 192.0.2.9:9",
		"icmp 10.0.0.1 > 10.0.0.2", "icmpv6 fd00::1 > fd00::2", "udp [fd00::1]:55 > [fd00::2]:53",
		"tcp [fd00::1]:8010 > [fd00::2]:443",
	} {
		fields, err := packet.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		frame, err := fields.Frame()
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, frame, append(frame[:len(frame):len(frame)], make([]byte, 60)...))
	}
	request := append(append([]byte(nil), frames[0][:14+20+20]...), "GET / HTTP/1.1\r\n\r\n"...)
	arp := append(append(make([]byte, 12), 8, 6), make([]byte, 28)...)
	frames = append(frames, request, arp)
	for _, frame := range frames[:len(frames):len(frames)] {
		for range 10 {
			changed := append([]byte(nil), frame[:15+random.IntN(len(frame)-14)]...)
			changed[random.IntN(len(changed))] = byte(random.Uint32())
			frames = append(frames, changed)
		}
	}
	return frames
}

// Expressions of tcpdump accept the frames that a machine of classic BPF accepts, on both hooks.
func TestExpressions(t *testing.T) {
	needsRoot(t)
	frames := expressionFrames(t, rand.New(rand.NewPCG(11, 55)))
	lines := strings.Split(strings.TrimSpace(expressions), "\n")[1:]
	for _, line := range lines {
		at := strings.LastIndex(line, ": ")
		name := line[:at]
		t.Run(name, func(t *testing.T) {
			program, err := ParseExpression(line[at+2:])
			if err != nil {
				t.Fatal(err)
			}
			accepted := sameAsClassic(t, program, frames)
			if accepted == 0 && name != "vlan and ip" || accepted == len(frames) {
				t.Errorf("%d of %d frames match: the frames do not test it", accepted, len(frames))
			}
		})
	}
}

// Random programs of all instructions do, too.
func TestRandomExpressions(t *testing.T) {
	needsRoot(t)
	random := rand.New(rand.NewPCG(11, 56))
	frames := expressionFrames(t, random)
	accepted := 0
	const programs = 300
	for range programs {
		accepted += sameAsClassic(t, randomClassic(random), frames[:60])
	}
	if accepted < programs*6 || accepted > programs*54 {
		t.Errorf("%d of %d frames match: the programs do not compute much", accepted, programs*60)
	}
}

// sameAsClassic compares a translated program with the original, and returns how many frames match.
func sameAsClassic(t *testing.T, program []bpf.Instruction, frames [][]byte) (accepted int) {
	t.Helper()
	vm, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	for _, on := range []struct {
		hook     chain.Hook
		frags    bool
		kind     ebpf.ProgramType
		shortest int // frames; the kernel refuses test runs with shorter ones
	}{{chain.TC, false, ebpf.SchedCLS, 14 + 40}, {chain.XDP, true, ebpf.XDP, 0}, {chain.XDP, false, ebpf.XDP, 0}} {
		if on.frags && features.HaveProgramHelper(on.kind, asm.FnXdpGetBuffLen) != nil { // before Linux 5.18
			continue
		}
		code, err := translateExpression(program, on.hook, on.frags, "")
		if err != nil {
			t.Fatal(err)
		}
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: on.kind, License: "GPL", Instructions: code})
		if err != nil {
			t.Fatalf("%v: %+v\n%v", on, err, program)
		}
		defer p.Close()
		accepted = 0
		for _, frame := range frames {
			if len(frame) < on.shortest {
				continue
			}
			want, err := vm.Run(frame)
			if err != nil {
				t.Fatal(err)
			}
			got, err := testrun.Run(p, &ebpf.RunOptions{Data: frame})
			if err != nil {
				t.Fatal(err)
			}
			if (got != 0) != (want != 0) {
				t.Fatalf("%v: %x: returns %d, want %d\n%v", on, frame, got, want, program)
			}
			if got != 0 {
				accepted++
			}
		}
	}
	return accepted
}

// randomClassic is a program whose instructions can all be reached.
func randomClassic(r *rand.Rand) (program []bpf.Instruction) {
	number := func() uint32 { return []uint32{0, 1, 7, 12, 14, 20, 80, 2048, 1 << 31, r.Uint32()}[r.IntN(10)] }
	ops := []bpf.ALUOp{bpf.ALUOpAdd, bpf.ALUOpSub, bpf.ALUOpMul, bpf.ALUOpOr, bpf.ALUOpAnd, bpf.ALUOpXor, bpf.ALUOpDiv,
		bpf.ALUOpMod}
	sizes := []int{1, 2, 4}
	const length = 24
	for len(program) < length {
		left := length - len(program) - 1
		yes, no := uint8(r.IntN(min(left, 3)+1)), uint8(0)
		if r.IntN(2) == 0 {
			yes, no = no, yes
		}
		program = append(program, []bpf.Instruction{
			bpf.LoadConstant{Dst: bpf.Register(r.IntN(2)), Val: number()},
			bpf.LoadAbsolute{Off: uint32(r.IntN(40)), Size: sizes[r.IntN(3)]},
			bpf.LoadIndirect{Off: uint32(r.IntN(20)), Size: sizes[r.IntN(3)]},
			bpf.LoadMemShift{Off: uint32(r.IntN(40))},
			bpf.LoadExtension{Num: bpf.ExtLen},
			bpf.LoadScratch{Dst: bpf.Register(r.IntN(2)), N: r.IntN(16)},
			bpf.StoreScratch{Src: bpf.Register(r.IntN(2)), N: r.IntN(16)},
			bpf.ALUOpConstant{Op: ops[r.IntN(len(ops))], Val: number() | 1},
			bpf.ALUOpConstant{Op: bpf.ALUOpShiftLeft, Val: uint32(r.IntN(32))},
			bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: uint32(r.IntN(32))},
			bpf.ALUOpX{Op: ops[r.IntN(len(ops))]},
			bpf.TAX{}, bpf.TXA{},
			bpf.JumpIf{Cond: bpf.JumpTest(r.IntN(8)), Val: number(), SkipTrue: yes, SkipFalse: no},
			bpf.JumpIfX{Cond: bpf.JumpTest(r.IntN(8)), SkipTrue: yes, SkipFalse: no},
		}[r.IntN(15)])
	}
	return append(program, bpf.RetA{})
}

func TestParseExpressionRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                            "want the number of instructions",
		"2,6 0 0 1":                   "want the number of instructions",
		"1,6 0 0":                     "instruction 0: \"6 0 0\": want four numbers",
		"1,6 0 0 4294967296":          "want four numbers",
		"2,5 0 0 7,6 0 0 1":           "jump",
		"1,48 0 0 0":                  "must end with RetA or RetConstant",
		"2,40 0 0 4294963244,6 0 0 1": "extension 44 is not part of the frame",
		"2,255 0 0 0,6 0 0 1":         "instruction",
	} {
		if _, err := ParseExpression(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	long := fmt.Sprint(longestExpression+1) + strings.Repeat(",6 0 0 1", longestExpression+1)
	if _, err := ParseExpression(long); err == nil {
		t.Error("a program that is too long is accepted")
	}
}

// A trace with an expression has the packets that match it, and no others.
func TestTraceExpression(t *testing.T) {
	needsRoot(t)
	var text string // udp dst port 53 or udp dst port 55
	for line := range strings.Lines(expressions) {
		if after, ok := strings.CutPrefix(line, "udp dst port 53 or udp dst port 55: "); ok {
			text = after
		}
	}
	program, err := ParseExpression(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, side := range []chain.Side{chain.OnTCIngress, chain.OnXDP} {
		t.Run(string(side), func(t *testing.T) {
			w := newWorld(t, Options{})
			p := chain.Point{Ifindex: w.a.OuterIndex(), Side: side}
			pass := testModule(t, "pass", "count", nil)
			spec := w.deploy(t, p, chain.Egress, pass)
			trace, err := w.Trace(TraceFilter{Expression: program, Bytes: 64}, map[chain.Point]chain.Spec{p: spec},
				map[string]Module{"count": pass})
			if err != nil {
				t.Fatal(err)
			}
			defer trace.Close()
			for _, port := range []int{54, 53, 56, 55} {
				w.datagram(t, port, 4)
			}
			for _, want := range []uint16{53, 53, 55, 55} { // at the head, and after the module
				e, err := trace.Read(time.Now().Add(30 * time.Second))
				if err != nil {
					t.Fatal(err)
				}
				if e.DestPort != want {
					t.Errorf("a packet to port %d, want %d", e.DestPort, want)
				}
			}
			if err := w.Attach(p, spec); err != nil {
				t.Fatal(err)
			}
		})
	}
}
