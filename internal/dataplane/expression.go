// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/net/bpf"

	"github.com/kerb-edge/kerb/internal/chain"
)

// A trace may have an expression: a classic BPF program, such as tcpdump compiles from `tcp port 80`, that filters
// frames as they arrive at the chain. The linker translates it and replaces matchesFunction (chain_trace.h) by it.
const matchesFunction = "kerb_trace_matches"

// Registers and stack frame of a translated program. R0 to R5 are for calls and packet pointers.
const (
	regCtx, regA, regX = asm.R6, asm.R7, asm.R8
	loadedAt           = -8  // value loaded from the packet
	scratchAt          = -12 // of word 0; the others are below
)

// longestExpression is the maximum number of instructions of an expression.
const longestExpression = 512

// ParseExpression parses a classic BPF program as printed by tcpdump -ddd: the number of instructions, and the code,
// the two jumps and the constant of each, in lines or separated by commas. The error explains what is wrong.
func ParseExpression(text string) ([]bpf.Instruction, error) {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '\n' })
	if n := len(lines) - 1; n < 1 || n > longestExpression || strings.TrimSpace(lines[0]) != fmt.Sprint(n) {
		return nil, fmt.Errorf("want the number of instructions, 1 to %d, and then the instructions, as tcpdump -ddd "+
			"prints them", longestExpression)
	}
	raw := make([]bpf.RawInstruction, len(lines)-1)
	for i, line := range lines[1:] {
		r := &raw[i]
		if _, err := fmt.Sscanf(line, "%d %d %d %d", &r.Op, &r.Jt, &r.Jf, &r.K); err != nil {
			return nil, fmt.Errorf("instruction %d: %q: want four numbers", i, line)
		}
	}
	program, _ := bpf.Disassemble(raw)
	for _, hook := range []chain.Hook{chain.TC, chain.XDP} {
		if _, err := translateExpression(program, hook, false, ""); err != nil {
			return nil, err
		}
	}
	if _, err := bpf.NewVM(program); err != nil { // for example a jump out of the program
		return nil, err
	}
	return program, nil
}

// expression translates a classic BPF program for frames with an Ethernet header into a function of the hook's context
// that returns 0 for a frame that does not match. Where classic BPF leaves the behaviour open, it follows the kernel's
// cbpf_to_ebpf: a load beyond the end of the frame and a division by zero end the program without a match.
type expression struct {
	hook chain.Hook
	frag bool   // frames may be in several buffers: XDP only
	of   string // prefix of labels
	code asm.Instructions
}

// translateExpression returns the function without a name; its labels begin with of. On XDP the program sees only the
// first buffer of a frame.
func translateExpression(program []bpf.Instruction, hook chain.Hook, frags bool, of string) (asm.Instructions, error) {
	x := expression{hook: hook, frag: frags, of: of}
	x.add(asm.Mov.Reg(regCtx, asm.R1), asm.Mov.Imm(regA, 0), asm.Mov.Imm(regX, 0))
	for n := range usedScratch(program) {
		x.add(asm.StoreImm(asm.RFP, scratch(n), 0, asm.Word))
	}
	for i, ins := range program {
		first := len(x.code)
		if err := x.translate(i, ins); err != nil {
			return nil, fmt.Errorf("instruction %d: %w", i, err)
		}
		x.code[first] = x.code[first].WithSymbol(x.place(i))
	}
	if slices.ContainsFunc(x.code, func(ins asm.Instruction) bool { return ins.Reference() == x.noMatch() }) {
		x.add(asm.Mov.Imm(asm.R0, 0).WithSymbol(x.noMatch()), asm.Return())
	}
	return x.code, nil
}

func (x *expression) place(i int) string { return x.of + fmt.Sprint("at", i) }

func (x *expression) noMatch() string { return x.of + "no-match" }

func scratch(n int) int16 { return int16(scratchAt - 4*n) }

// usedScratch returns the memory words that a program reads, which are initially zero.
func usedScratch(program []bpf.Instruction) map[int]bool {
	used := map[int]bool{}
	for _, ins := range program {
		if load, ok := ins.(bpf.LoadScratch); ok {
			used[load.N] = true
		}
	}
	return used
}

func (x *expression) add(code ...asm.Instruction) { x.code = append(x.code, code...) }

// register of the emulated machine.
func register(r bpf.Register) asm.Register {
	if r == bpf.RegX {
		return regX
	}
	return regA
}

// translate adds instruction i of the program.
func (x *expression) translate(i int, ins bpf.Instruction) error {
	switch ins := ins.(type) {
	case bpf.LoadConstant:
		x.add(asm.Mov.Imm32(register(ins.Dst), int32(ins.Val)))
	case bpf.LoadScratch:
		x.add(asm.LoadMem(register(ins.Dst), asm.RFP, scratch(ins.N), asm.Word))
	case bpf.StoreScratch:
		x.add(asm.StoreMem(asm.RFP, scratch(ins.N), register(ins.Src), asm.Word))
	case bpf.LoadAbsolute:
		x.add(asm.Mov.Imm32(asm.R2, int32(ins.Off)))
		return x.load(regA, ins.Size)
	case bpf.LoadIndirect:
		x.add(asm.Mov.Reg(asm.R2, regX), asm.LoadImm(asm.R3, int64(ins.Off), asm.DWord), asm.Add.Reg(asm.R2, asm.R3))
		return x.load(regA, ins.Size)
	case bpf.LoadMemShift:
		x.add(asm.Mov.Imm32(asm.R2, int32(ins.Off)))
		if err := x.load(regX, 1); err != nil {
			return err
		}
		x.add(asm.And.Imm32(regX, 0xf), asm.LSh.Imm32(regX, 2))
	case bpf.LoadExtension:
		return x.extension(ins.Num)
	case bpf.ALUOpConstant:
		return x.constant(ins)
	case bpf.ALUOpX:
		return x.byX(ins.Op)
	case bpf.TAX:
		x.add(asm.Mov.Reg32(regX, regA))
	case bpf.TXA:
		x.add(asm.Mov.Reg32(regA, regX))
	case bpf.RetA:
		x.add(asm.Mov.Reg32(asm.R0, regA), asm.Return())
	case bpf.RetConstant:
		x.add(asm.Mov.Imm32(asm.R0, int32(min(ins.Val, 1))), asm.Return())
	case bpf.Jump:
		x.add(asm.Ja.Label(x.place(i + 1 + int(ins.Skip))))
	case bpf.JumpIf:
		x.jump(i, ins.Cond, ins.SkipTrue, ins.SkipFalse, func(op asm.JumpOp, label string) asm.Instruction {
			return op.Imm32(regA, int32(ins.Val), label)
		})
	case bpf.JumpIfX:
		x.jump(i, ins.Cond, ins.SkipTrue, ins.SkipFalse, func(op asm.JumpOp, label string) asm.Instruction {
			return op.Reg32(regA, regX, label)
		})
	default:
		return fmt.Errorf("%v is no instruction that tcpdump uses", ins)
	}
	return nil
}

// load loads from the offset in R2 of the frame, in network byte order.
func (x *expression) load(to asm.Register, bytes int) error {
	size, ok := map[int]asm.Size{1: asm.Byte, 2: asm.Half, 4: asm.Word}[bytes]
	if !ok {
		return fmt.Errorf("a load of %d bytes", bytes)
	}
	if x.hook == chain.XDP {
		x.add(asm.JGT.Imm(asm.R2, math.MaxInt16, x.noMatch()),
			asm.LoadMem(asm.R3, regCtx, 0, asm.Word), asm.LoadMem(asm.R4, regCtx, 4, asm.Word), // data, data_end
			asm.Add.Reg(asm.R3, asm.R2), asm.Mov.Reg(asm.R5, asm.R3), asm.Add.Imm(asm.R5, int32(bytes)),
			asm.JGT.Reg(asm.R5, asm.R4, x.noMatch()), asm.LoadMem(to, asm.R3, 0, size))
	} else {
		x.add(asm.JGT.Imm(asm.R2, math.MaxUint16, x.noMatch()), asm.Mov.Reg(asm.R1, regCtx),
			asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, loadedAt), asm.Mov.Imm(asm.R4, int32(bytes)),
			asm.FnSkbLoadBytes.Call(), asm.JNE.Imm(asm.R0, 0, x.noMatch()), asm.LoadMem(to, asm.RFP, loadedAt, size))
	}
	if size != asm.Byte {
		x.add(asm.HostTo(asm.BE, to, size))
	}
	return nil
}

// extension loads a value that is not part of the frame: its length.
func (x *expression) extension(e bpf.Extension) error {
	switch {
	case e != bpf.ExtLen:
		return fmt.Errorf("extension %d is not part of the frame: inbound and outbound, for example, are not known here", e)
	case x.hook != chain.XDP:
		x.add(asm.LoadMem(regA, regCtx, 0, asm.Word)) // len
	case x.frag:
		x.add(asm.Mov.Reg(asm.R1, regCtx), asm.FnXdpGetBuffLen.Call(), asm.Mov.Reg32(regA, asm.R0))
	default:
		x.add(asm.LoadMem(asm.R3, regCtx, 0, asm.Word), asm.LoadMem(regA, regCtx, 4, asm.Word), asm.Sub.Reg(regA, asm.R3))
	}
	return nil
}

var aluOps = map[bpf.ALUOp]asm.ALUOp{bpf.ALUOpAdd: asm.Add, bpf.ALUOpSub: asm.Sub, bpf.ALUOpMul: asm.Mul,
	bpf.ALUOpDiv: asm.Div, bpf.ALUOpOr: asm.Or, bpf.ALUOpAnd: asm.And, bpf.ALUOpShiftLeft: asm.LSh,
	bpf.ALUOpShiftRight: asm.RSh, bpf.ALUOpMod: asm.Mod, bpf.ALUOpXor: asm.Xor}

func (x *expression) constant(ins bpf.ALUOpConstant) error {
	op, known := aluOps[ins.Op]
	if shift := op == asm.LSh || op == asm.RSh; !known || shift && ins.Val > 31 {
		return fmt.Errorf("%v", ins)
	}
	x.add(op.Imm32(regA, int32(ins.Val)))
	return nil
}

func (x *expression) byX(code bpf.ALUOp) error {
	op, known := aluOps[code]
	if !known {
		return fmt.Errorf("%v", bpf.ALUOpX{Op: code})
	}
	if op == asm.Div || op == asm.Mod {
		x.add(asm.JEq.Imm32(regX, 0, x.noMatch()))
	}
	x.add(op.Reg32(regA, regX))
	return nil
}

// jumpOps are by the condition; those without one jump if the opposite is false.
var jumpOps = map[bpf.JumpTest]struct {
	op       asm.JumpOp
	opposite bool
}{bpf.JumpEqual: {asm.JEq, false}, bpf.JumpNotEqual: {asm.JNE, false}, bpf.JumpGreaterThan: {asm.JGT, false},
	bpf.JumpLessThan: {asm.JLT, false}, bpf.JumpGreaterOrEqual: {asm.JGE, false}, bpf.JumpLessOrEqual: {asm.JLE, false},
	bpf.JumpBitsSet: {asm.JSet, false}, bpf.JumpBitsNotSet: {asm.JSet, true}}

func (x *expression) jump(i int, test bpf.JumpTest, yes, no uint8, to func(asm.JumpOp, string) asm.Instruction) {
	j := jumpOps[test]
	if j.opposite {
		yes, no = no, yes
	}
	x.add(to(j.op, x.place(i+1+int(yes))), asm.Ja.Label(x.place(i+1+int(no))))
}

// withExpressions replaces, at the head, the function that accepts all frames by the expressions of the sessions.
func (l *linker) withExpressions(code asm.Instructions) (asm.Instructions, error) {
	const name = "kerb_trace_head__" + matchesFunction
	start := slices.IndexFunc(code, func(ins asm.Instruction) bool { return ins.Symbol() == name })
	if start < 0 || !slices.ContainsFunc(l.expressions[:], func(x []bpf.Instruction) bool { return x != nil }) {
		return code, nil
	}
	end := start + 1
	for end < len(code) && btf.FuncMetadata(&code[end]) == nil {
		end++
	}
	choice, rest := asm.Instructions{asm.Mov.Imm(asm.R0, 1).WithMetadata(code[start].Metadata)}, asm.Instructions{}
	for session, program := range l.expressions {
		if program == nil {
			continue
		}
		of := fmt.Sprint("session", session)
		own, err := translateExpression(program, l.spec.Side.Hook(), l.frags, of)
		if err != nil {
			return nil, fmt.Errorf("expression: %w", err)
		}
		own[0] = own[0].WithSymbol(of)
		choice, rest = append(choice, asm.JEq.Imm(asm.R2, int32(session), of)), append(rest, own...)
	}
	return slices.Concat(code[:start], append(choice, asm.Return()), rest, code[end:]), nil
}
