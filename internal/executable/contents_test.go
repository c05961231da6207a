// SPDX-License-Identifier: Apache-2.0

package executable

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestX86(t *testing.T) {
	for name, c := range map[string]struct {
		text   []byte
		static bool
		want   []string
	}{
		"mov esi":           {[]byte{0xbe, 0x1b, 0x54, 0, 0}, false, []string{Queued}},
		"mov rsi":           {[]byte{0x48, 0xc7, 0xc6, 0x1b, 0x54, 0, 0}, false, []string{Queued}},
		"jump so far":       {[]byte{0xe9, 0x1b, 0x54, 0, 0}, false, nil},
		"data":              {[]byte{0, 0, 0x1b, 0x54, 0, 0}, false, nil},
		"mark":              {[]byte{0xbe, 0x05, 0x89, 0, 0}, false, []string{Urgent}},
		"system call":       {[]byte{0xb8, 0x13, 1, 0, 0, 0x0f, 0x05}, true, []string{Splice}},
		"with a C library":  {[]byte{0xb8, 0x13, 1, 0, 0, 0x0f, 0x05}, false, nil},
		"number far away":   {append([]byte{0xb8, 0x13, 1, 0, 0}, append(make([]byte, 64), 0x0f, 0x05)...), true, nil},
		"at the first byte": {[]byte{0x1b, 0x54, 0, 0}, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			uses := map[string]bool{}
			x86{}.mark(uses, c.text, c.static)
			if got := slices.Sorted(maps.Keys(uses)); !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

func words(ops ...uint32) (out []byte) {
	for _, op := range ops {
		out = binary.LittleEndian.AppendUint32(out, op)
	}
	return out
}

func TestARM64(t *testing.T) {
	const svc = 0xd4000001
	for name, c := range map[string]struct {
		text []byte
		want []string
	}{
		"mov w1":      {words(0x528a8361), []string{Queued}},
		"mov x1":      {words(0xd28a8361), []string{Queued}},
		"shifted":     {words(0x52aa8361), nil},
		"mark":        {words(0x529120a1), []string{Urgent}},
		"system call": {words(0xd2800988, 0xd503201f, svc), []string{Splice}}, // mov x8, 76; nop; svc 0
		"other":       {words(0xd2800968, svc), nil},                          // mov x8, 75
	} {
		t.Run(name, func(t *testing.T) {
			uses := map[string]bool{}
			arm64{}.mark(uses, c.text, true)
			if got := slices.Sorted(maps.Keys(uses)); !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

// Flags of recv(2) are found before calls by a stub, and by the table directly.
func TestFlagsX86(t *testing.T) {
	const slot, plt, text = 0x4000, 0x1000, 0x2000
	stub := append([]byte{0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0x25}, words(slot-(plt+10))...) // endbr64; jmp [rip+...]
	call := func(before ...byte) []byte {
		return append(append(before, 0xe8), words(uint32(plt-(text+len(before)+5)))...)
	}
	direct := append([]byte{0xb9, 0, 1, 0, 0, 0xff, 0x15}, words(slot-(text+11))...)
	for name, c := range map[string]struct {
		text []byte
		want []string
	}{
		"none":          {call(0x31, 0xc9), nil},
		"wait all":      {call(0xb9, 0, 1, 0, 0), []string{WaitAll}},
		"urgent":        {call(0xb9, 1, 0, 0, 0), []string{Urgent}},
		"both":          {call(0xb9, 1, 1, 0, 0), []string{Urgent, WaitAll}},
		"don't wait":    {call(0xb9, 0x40, 0, 0, 0), nil},
		"cleared again": {call(0xb9, 0, 1, 0, 0, 0x31, 0xc9), nil},
		"other value":   {call(0xb9, 0, 1, 0, 0, 0x89, 0xd1), nil},         // mov ecx, edx
		"other number":  {call(0x41, 0xb9, 0, 1, 0, 0), nil},               // mov r9d
		"no call":       {[]byte{0xb9, 0, 1, 0, 0, 0xe8, 0, 0, 0, 0}, nil}, // to elsewhere
		"by the table":  {direct, []string{WaitAll}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &receivers{slots: map[uint64]int{slot: flagsArgument["recv"]}, stubs: map[uint64]int{}}
			x86{}.stubs(r, stub, plt)
			uses := map[string]bool{}
			x86{}.receives(uses, r, append(c.text, 0x90, 0x90), text)
			if got := slices.Sorted(maps.Keys(uses)); !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

func TestFlagsARM64(t *testing.T) {
	const slot, plt, text = 0x14010, 0x1000, 0x2000
	// adrp x16, 0x14000 (19 pages on); ldr x17, [x16, 16]; add; br x17
	stub := words(0xf0000090, 0xf9400a11, 0x91004210, 0xd61f0220)
	call := func(before ...uint32) []byte {
		at := text + 4*len(before)
		return words(append(before, 0x94000000|uint32((plt-at)>>2)&0x3ffffff)...)
	}
	for name, c := range map[string]struct {
		text []byte
		want []string
	}{
		"none":     {call(0x52800003), nil},                           // mov w3, 0
		"wait all": {call(0x52802003, 0xd503201f), []string{WaitAll}}, // mov w3, 0x100; nop
		"urgent":   {call(0x52800023), []string{Urgent}},
		"size":     {call(0x52802002), nil}, // mov w2, 0x100
	} {
		t.Run(name, func(t *testing.T) {
			r := &receivers{slots: map[uint64]int{slot: flagsArgument["recv"]}, stubs: map[uint64]int{}}
			arm64{}.stubs(r, stub, plt)
			uses := map[string]bool{}
			arm64{}.receives(uses, r, c.text, text)
			if got := slices.Sorted(maps.Keys(uses)); !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v; stubs %v", got, c.want, r.stubs)
			}
		})
	}
}

// What lies across the border of two pieces is found.
func TestChunks(t *testing.T) {
	for _, at := range []int{chunk - 2, chunk + overlap - 3, 2*chunk + 1, 2 * chunk} {
		data := make([]byte, 3*chunk)
		copy(data[at:], []byte{0xbe, 0x1b, 0x54, 0, 0})
		uses, seen := map[string]bool{}, 0
		err := eachChunk(bytes.NewReader(data), make([]byte, overlap+chunk), func(piece []byte, from uint64) {
			x86{}.mark(uses, piece, false)
			if i := bytes.IndexByte(piece, 0xbe); i >= 0 && int(from)+i != at {
				t.Errorf("found at %d, not %d", int(from)+i, at)
			}
			seen = int(from) + len(piece)
		})
		if err != nil || !uses[Queued] || seen != len(data) {
			t.Errorf("at %d: %v, %v; read to %d of %d", at, uses, err, seen, len(data))
		}
	}
}

// Malicious files are rejected or parsed, and do no harm.
func FuzzExamine(f *testing.F) {
	whole, err := os.ReadFile("/bin/sleep")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint16(0), uint64(0))
	f.Add(uint16(32), ^uint64(0))
	f.Add(uint16(40), uint64(1)<<40)
	path := filepath.Join(f.TempDir(), "program")
	f.Fuzz(func(t *testing.T, at uint16, word uint64) {
		data := bytes.Clone(whole)
		if int(at)+8 > len(data) {
			return
		}
		binary.LittleEndian.PutUint64(data[at:], word)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		examine(file)
	})
}

func TestUnknownMachines(t *testing.T) {
	if codeOf(elf.EM_S390) != nil {
		t.Error("machine code of s390 is known")
	}
}
