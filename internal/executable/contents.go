// SPDX-License-Identifier: Apache-2.0

package executable

import (
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// contents is what an executable or a library says of itself.
type contents struct {
	uses      []string
	goVersion string
	err       error
}

var errNoELF = errors.New("no ELF file")

const (
	maxSegment = 1 << 30  // bytes of a file that are looked at, in each segment
	maxSymbols = 64 << 20 // bytes of its table of dynamic symbols
	chunk      = 1 << 20
	overlap    = 128 // bytes that chunks share, so that none of what is searched for is cut
)

// examine never fails loudly: a file that cannot be examined has an error.
func examine(f *os.File) *contents {
	object, err := elf.NewFile(f)
	if err != nil {
		return &contents{err: fmt.Errorf("%w: %w", errNoELF, err)}
	}
	if isInnocent(object) {
		return &contents{}
	}
	c := &contents{}
	uses := map[string]bool{}
	imports, err := importsOf(object)
	if err == nil {
		markImports(uses, imports)
		err = c.search(uses, object, len(imports) == 0)
	}
	if info, infoErr := buildinfo.Read(f); infoErr == nil {
		c.goVersion = info.GoVersion
	}
	if err != nil {
		return &contents{err: err}
	}
	for name := range uses {
		c.uses = append(c.uses, name)
	}
	slices.Sort(c.uses)
	return c
}

// innocent are libraries whose calls are no sign of what a program does with its sockets: those of C and C++, which have every
// call, for programs to import, and those that only ask terminals, or sockets of their own that are not TCP.
var innocent = []string{"libc", "libc.musl-x86_64", "libc.musl-aarch64", "ld-linux-x86-64", "ld-linux-aarch64", "ld-musl-x86_64", "ld-musl-aarch64",
	"libpthread", "libstdc++", "libc++", "libreadline", "libedit", "libsystemd", "libudev"}

func isInnocent(object *elf.File) bool {
	names, err := object.DynString(elf.DT_SONAME)
	return err == nil && slices.ContainsFunc(names, func(name string) bool {
		stem, _, _ := strings.Cut(name, ".so")
		return slices.Contains(innocent, stem)
	})
}

// importsOf are the names that the file wants of libraries; none for a static program.
func importsOf(object *elf.File) (map[string]bool, error) {
	imports := map[string]bool{}
	table := object.SectionByType(elf.SHT_DYNSYM)
	if table == nil {
		return imports, nil
	}
	if table.FileSize > maxSymbols {
		return nil, fmt.Errorf("%d bytes of symbols are too many to examine", table.FileSize)
	}
	symbols, err := object.DynamicSymbols()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		return nil, err
	}
	for _, s := range symbols {
		if s.Section == elf.SHN_UNDEF {
			imports[s.Name] = true
		}
	}
	return imports, nil
}

func markImports(uses, imports map[string]bool) {
	uses[Splice] = imports["splice"]
	uses[Urgent] = imports["sockatmark"]
	for name, there := range uses {
		if !there {
			delete(uses, name)
		}
	}
}

// goFunctions are kept by name in every Go program, stripped or not.
var goFunctions = map[string]string{
	"\x00internal/poll.Splice\x00":         Splice, // what io.Copy from one TCP connection to another ends in
	"\x00syscall.Splice\x00":               Splice,
	"\x00golang.org/x/sys/unix.Splice\x00": Splice,
}

// search looks at what the program has in memory while it runs.
func (c *contents) search(uses map[string]bool, object *elf.File, static bool) error {
	code := codeOf(object.Machine)
	if code == nil {
		return fmt.Errorf("machine code of %s is not known", object.Machine)
	}
	ways, err := receiversOf(object, code)
	if err != nil {
		return err
	}
	for _, segment := range object.Progs {
		if segment.Type != elf.PT_LOAD {
			continue
		}
		if segment.Filesz > maxSegment {
			return fmt.Errorf("%d bytes in a segment are too many to examine", segment.Filesz)
		}
		look := func(data []byte, _ uint64) { markNames(uses, data) }
		if segment.Flags&elf.PF_X != 0 {
			look = func(data []byte, at uint64) {
				markNames(uses, data) // linkers may put constants there too
				code.mark(uses, data, static)
				code.receives(uses, ways, data, segment.Vaddr+at)
			}
		}
		if err := eachChunk(io.NewSectionReader(segment, 0, int64(segment.Filesz)), look); err != nil {
			return err
		}
	}
	return nil
}

func markNames(uses map[string]bool, data []byte) {
	for name, what := range goFunctions {
		if !uses[what] && bytes.Contains(data, []byte(name)) {
			uses[what] = true
		}
	}
}

// eachChunk reads piece by piece: the program may be large, and its file may change under our hands.
func eachChunk(r io.Reader, look func(data []byte, at uint64)) error {
	buffer := make([]byte, overlap+chunk)
	kept, at := 0, uint64(0)
	for {
		n, err := io.ReadFull(r, buffer[kept:])
		data := buffer[:kept+n]
		look(data, at)
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil
		}
		if err != nil {
			return err
		}
		at += uint64(len(data) - overlap)
		kept = copy(buffer, data[len(data)-overlap:])
	}
}
