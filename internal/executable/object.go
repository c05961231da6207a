// SPDX-License-Identifier: Apache-2.0

package executable

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// object is a 64-bit little-endian ELF file. A tenant may have crafted it to harm the agent, so that only what is asked
// for is read, and nothing that is kept is larger than it is in the file. debug/elf would copy names that overlap, and
// unpack what is compressed.
type object struct {
	file     io.ReaderAt
	left     uint64 // bytes of sections that may still be read: they may overlap, too
	machine  elf.Machine
	segments []elf.Prog64
	sections []elf.Section64
	names    []byte // of sections
}

var errNoELF = errors.New("no ELF file")

const maxTables = 128 << 20 // bytes of a file's sections that are read as a whole

func openObject(f io.ReaderAt) (*object, error) {
	o := &object{file: f, left: maxTables}
	var h elf.Header64
	if err := o.read(0, &h); err != nil || !bytes.HasPrefix(h.Ident[:], []byte(elf.ELFMAG)) {
		return nil, errNoELF
	}
	if elf.Class(h.Ident[elf.EI_CLASS]) != elf.ELFCLASS64 || elf.Data(h.Ident[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return nil, errors.New("machine code other than 64-bit little-endian is not known")
	}
	o.machine, o.segments, o.sections = elf.Machine(h.Machine), make([]elf.Prog64, h.Phnum), make([]elf.Section64, h.Shnum)
	if err := errors.Join(o.read(h.Phoff, o.segments), o.read(h.Shoff, o.sections)); err != nil {
		return nil, fmt.Errorf("read headers: %w", err)
	}
	var err error
	if int(h.Shstrndx) < len(o.sections) {
		o.names, err = o.table(o.sections[h.Shstrndx])
	}
	return o, err
}

// read fills a structure, or a slice of some.
func (o *object) read(at uint64, to any) error {
	return binary.Read(io.NewSectionReader(o.file, int64(at), int64(binary.Size(to))), binary.LittleEndian, to)
}

// table is what a section holds in the file.
func (o *object) table(s elf.Section64) ([]byte, error) {
	if s.Type == uint32(elf.SHT_NOBITS) || s.Type == uint32(elf.SHT_NULL) {
		return nil, nil
	}
	if s.Size > o.left {
		return nil, fmt.Errorf("more than %d bytes of sections are too many to examine", maxTables)
	}
	o.left -= s.Size
	data := make([]byte, s.Size)
	if _, err := o.file.ReadAt(data, int64(s.Off)); err != nil {
		return nil, fmt.Errorf("read a section of %d bytes: %w", s.Size, err)
	}
	return data, nil
}

// linked are the first section of a type, and the names that it refers to; nothing if there is none.
func (o *object) linked(kind elf.SectionType) (data, names []byte, err error) {
	for _, s := range o.sections {
		if s.Type != uint32(kind) {
			continue
		}
		if data, err = o.table(s); err == nil && s.Link < uint32(len(o.sections)) {
			names, err = o.table(o.sections[s.Link])
		}
		return data, names, err
	}
	return nil, nil, nil
}

// named are the sections whose names begin so.
func (o *object) named(prefix string) (out []elf.Section64) {
	for _, s := range o.sections {
		if strings.HasPrefix(nameAt(o.names, uint64(s.Name)), prefix) {
			out = append(out, s)
		}
	}
	return out
}

// soname is what a library calls itself.
func (o *object) soname() (string, error) {
	entries, names, err := o.linked(elf.SHT_DYNAMIC)
	for ; len(entries) >= 16; entries = entries[16:] { // Elf64_Dyn: tag, value
		if elf.DynTag(binary.LittleEndian.Uint64(entries)) == elf.DT_SONAME {
			return nameAt(names, binary.LittleEndian.Uint64(entries[8:])), err
		}
	}
	return "", err
}

// symbols are those of the dynamic linker.
type symbols struct{ table, names []byte }

func (o *object) symbols() (symbols, error) {
	table, names, err := o.linked(elf.SHT_DYNSYM)
	return symbols{table, names}, err
}

const symbolSize = 24 // Elf64_Sym: name (4), info, other, section (2), value, size

// imported is the name of a symbol that the file wants of a library. The first one, 0, is none.
func (s symbols) imported(number uint64) (name string, ok bool) {
	if number == 0 || number >= uint64(len(s.table))/symbolSize {
		return "", false
	}
	entry := s.table[number*symbolSize:]
	if binary.LittleEndian.Uint16(entry[6:]) != uint16(elf.SHN_UNDEF) {
		return "", false
	}
	return nameAt(s.names, uint64(binary.LittleEndian.Uint32(entry))), true
}

// maxName is longer than the names that matter.
const maxName = 64

// nameAt is a name, or the beginning of a long one.
func nameAt(names []byte, at uint64) string {
	if at >= uint64(len(names)) {
		return ""
	}
	short, _, _ := bytes.Cut(names[at:min(at+maxName, uint64(len(names)))], []byte{0})
	return string(short)
}
