// SPDX-License-Identifier: Apache-2.0

package executable

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// contents is what an executable or a library says of itself.
type contents struct {
	uses      []string
	goVersion string
	searched  uint64 // bytes
	err       error
}

const (
	maxSearched = 512 << 20 // bytes of a program and its libraries that are examined: Envoy has 100 MB, Chrome 250 MB
	chunk       = 1 << 20
	overlap     = 128 // bytes that chunks share, so that none of what is searched for is cut
)

// examine never fails loudly: a file that cannot be examined has an error.
func examine(f *os.File) *contents {
	c := &contents{}
	o, err := openObject(f)
	if err != nil {
		c.err = err
		return c
	}
	innocent, err := o.isInnocent()
	if err == nil && !innocent {
		err = c.examine(o)
	}
	if err != nil {
		return &contents{searched: c.searched, err: err}
	}
	return c
}

func (c *contents) examine(o *object) error {
	symbols, err := o.symbols()
	if err != nil {
		return err
	}
	uses := map[string]bool{}
	static := !markImports(uses, symbols)
	if err := c.search(uses, o, symbols, static); err != nil {
		return err
	}
	c.uses = slices.Sorted(maps.Keys(uses))
	return nil
}

// innocent are libraries whose calls are no sign of what a program does with its sockets: those of C and C++, which
// have every call, for programs to import, and those that only ask terminals, or sockets of their own that are not TCP.
var innocent = []string{"libc", "libc.musl-x86_64", "libc.musl-aarch64", "ld-linux-x86-64", "ld-linux-aarch64",
	"ld-musl-x86_64", "ld-musl-aarch64",
	"libpthread", "libstdc++", "libc++", "libreadline", "libedit", "libsystemd", "libudev"}

func (o *object) isInnocent() (bool, error) {
	name, err := o.soname()
	stem, _, _ := strings.Cut(name, ".so")
	return slices.Contains(innocent, stem), err
}

// markImports reports whether there are imports: a static program has none.
func markImports(uses map[string]bool, s symbols) (found bool) {
	for i := range uint64(len(s.table) / symbolSize) {
		name, imported := s.imported(i)
		found = found || imported
		switch name {
		case "splice":
			uses[Splice] = true
		case "sockatmark":
			uses[Urgent] = true
		}
	}
	return found
}

// goFunctions are kept by name in every Go program, stripped or not.
var goFunctions = map[string]string{
	"\x00internal/poll.Splice\x00":         Splice, // what io.Copy from one TCP connection to another ends in
	"\x00syscall.Splice\x00":               Splice,
	"\x00golang.org/x/sys/unix.Splice\x00": Splice,
}

// search examines what the program has in memory while it runs.
func (c *contents) search(uses map[string]bool, o *object, s symbols, static bool) error {
	code := codeOf(o.machine)
	if code == nil {
		return fmt.Errorf("machine code of %s is not known", o.machine)
	}
	ways, err := receiversOf(o, s, code)
	if err != nil {
		return err
	}
	segments := slices.DeleteFunc(slices.Clone(o.segments), func(p elf.Prog64) bool {
		return p.Type != uint32(elf.PT_LOAD)
	})
	for _, segment := range segments {
		if segment.Filesz > maxSearched-c.searched { // they may overlap
			return errTooLarge
		}
		c.searched += segment.Filesz
	}
	buffer := make([]byte, overlap+chunk)
	for _, segment := range segments {
		look := c.markNames
		if segment.Flags&uint32(elf.PF_X) != 0 {
			look = func(uses map[string]bool, data []byte, at uint64) {
				c.markNames(uses, data, at) // linkers may put constants there too
				code.mark(uses, data, static)
				code.receives(uses, ways, data, segment.Vaddr+at)
			}
		}
		content := io.NewSectionReader(o.file, int64(segment.Off), int64(segment.Filesz))
		err := eachChunk(content, buffer, func(data []byte, at uint64) { look(uses, data, at) })
		if err != nil {
			return err
		}
	}
	return nil
}

var errTooLarge = fmt.Errorf("more than %d MiB are too much to examine", maxSearched>>20)

func (c *contents) markNames(uses map[string]bool, data []byte, _ uint64) {
	for name, what := range goFunctions {
		if !uses[what] && bytes.Contains(data, []byte(name)) {
			uses[what] = true
		}
	}
	if c.goVersion == "" {
		c.goVersion = goVersionIn(data)
	}
}

// goVersionIn finds what Go 1.18 and later put in front of a program's build information: debug/buildinfo.
func goVersionIn(data []byte) string {
	// behind the magic: size of pointers, flags; then the version, after its length
	const magic, header = "\xff Go buildinf:", 32
	for {
		i := bytes.Index(data, []byte(magic))
		if i < 0 || len(data) <= i+header {
			return ""
		}
		data = data[i+len(magic):]
		version := data[header-len(magic):]
		if n := int(version[0]); n < min(len(version), overlap-header) && bytes.HasPrefix(version[1:1+n], []byte("go1.")) {
			return printable(string(version[1 : 1+n]))
		}
	}
}

// eachChunk reads piece by piece: the program may be large, and its file may change under our hands.
func eachChunk(r io.Reader, buffer []byte, look func(data []byte, at uint64)) error {
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
