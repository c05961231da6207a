// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
)

// strip overwrites with zeros what nodes have no use for: source lines, which only logs of the verifier show, and
// relocations of debug information, which loaders of BPF ignore. They are half of a compressed object, and the kernel
// would keep the lines of each program in memory. The size and the other offsets remain.
func strip(object []byte) error {
	f, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		return err
	}
	for _, s := range f.Sections {
		if s.Type == elf.SHT_NOBITS || s.Offset+s.Size > uint64(len(object)) {
			continue
		}
		data := object[s.Offset : s.Offset+s.Size]
		switch s.Name {
		case ".BTF":
			err = eraseLines(data)
		case ".BTF.ext":
			err = eraseLineInfo(data)
		case ".rel.BTF", ".rel.BTF.ext":
			clear(data)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	return nil
}

var errTruncated = errors.New("truncated")

// eraseLines overwrites the strings that begin with a tab: lines of source code, never names.
func eraseLines(section []byte) error {
	strings, err := part(section, 16)
	if err != nil {
		return err
	}
	for text := range bytes.SplitSeq(strings, []byte{0}) {
		if bytes.HasPrefix(text, []byte("\t")) {
			clear(text)
		}
	}
	return nil
}

// eraseLineInfo leaves of the line information nothing but its first field, the size of a record: loaders of BPF read
// it before they find that there are no records.
func eraseLineInfo(section []byte) error {
	lines, err := part(section, 16)
	if err != nil || len(lines) < 4 {
		return err
	}
	clear(lines[4:])
	binary.LittleEndian.PutUint32(section[20:], 4)
	return nil
}

// part returns the part of .BTF or .BTF.ext whose offset, from the end of the header, and length are at a place of the
// header. Data planes are compiled for little-endian machines.
func part(section []byte, at int) ([]byte, error) {
	if len(section) < at+8 {
		return nil, errTruncated
	}
	header := uint64(binary.LittleEndian.Uint32(section[4:]))
	start := header + uint64(binary.LittleEndian.Uint32(section[at:]))
	end := start + uint64(binary.LittleEndian.Uint32(section[at+4:]))
	if end > uint64(len(section)) {
		return nil, errTruncated
	}
	return section[start:end], nil
}
