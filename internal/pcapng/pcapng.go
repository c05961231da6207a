// SPDX-License-Identifier: Apache-2.0

// Package pcapng writes captures that Wireshark reads (draft-ietf-opsawg-pcapng), with what a program decided about
// each packet. gopacket, the library for that, would add 2 MB to the binary: it links its decoders of all protocols.
package pcapng

import (
	"encoding/binary"
	"io"
	"time"
)

// LinkType is a number of the registry of link types, which says what frames begin with.
type LinkType uint16

// Link types.
const (
	Ethernet   LinkType = 1
	Raw        LinkType = 101 // IPv4 or IPv6 header
	IEEE802154 LinkType = 195 // with FCS
)

// Interface is where packets were captured.
type Interface struct {
	Name, Description string
	LinkType          LinkType
	SnapLen           uint32 // bytes that are captured of a packet at most
}

// Packet is a captured packet.
type Packet struct {
	Interface int // number that Writer.Interface returned
	Time      time.Time
	Data      []byte // first bytes of the frame
	Length    int    // bytes of the frame
	Outbound  bool   // else inbound
	Verdict   Verdict
	ID        uint64 // the same for a packet that is in the file several times; 0: none
	Comment   string // UTF-8; Wireshark shows it and searches in it: frame.comment
}

// Hook is the kind of program that a verdict is of.
type Hook uint8

// Hooks, as the option epb_verdict numbers them.
const (
	TC  Hook = 1
	XDP Hook = 2
)

// Verdict is what a program returned for the packet.
type Verdict struct {
	Hook  Hook
	Value uint64 // TC_ACT_* or XDP_*
}

// Types of blocks.
const (
	sectionHeader  = 0x0a0d0d0a
	interfaceBlock = 1
	packetBlock    = 6
)

// Codes of options. The first two are those of all blocks, then those of sections, interfaces and packets.
const (
	optEnd     = 0
	optComment = 1

	shbApplication = 4

	ifName        = 2
	ifDescription = 3
	ifResolution  = 9

	epbFlags    = 2
	epbPacketID = 5
	epbVerdict  = 7
)

// Writer writes a capture. Integers have the byte order of the machine, which the file names.
type Writer struct {
	w          io.Writer
	interfaces int
}

// NewWriter begins a capture that a program of this name and version makes.
func NewWriter(w io.Writer, application string) (*Writer, error) {
	const byteOrder, major, minor, unknownLength = 0x1a2b3c4d, 1, 0, 1<<64 - 1
	b := binary.NativeEndian.AppendUint32(nil, byteOrder)
	b = binary.NativeEndian.AppendUint16(b, major)
	b = binary.NativeEndian.AppendUint16(b, minor)
	b = binary.NativeEndian.AppendUint64(b, unknownLength)
	b = appendOption(b, shbApplication, []byte(application))
	return &Writer{w: w}, writeBlock(w, sectionHeader, b)
}

// Interface adds an interface, and returns its number.
func (w *Writer) Interface(i Interface) (int, error) {
	const nanoseconds = 9
	b := binary.NativeEndian.AppendUint16(nil, uint16(i.LinkType))
	b = binary.NativeEndian.AppendUint16(b, 0)
	b = binary.NativeEndian.AppendUint32(b, i.SnapLen)
	b = appendOption(b, ifName, []byte(i.Name))
	b = appendOption(b, ifDescription, []byte(i.Description))
	b = appendOption(b, ifResolution, []byte{nanoseconds})
	w.interfaces++
	return w.interfaces - 1, writeBlock(w.w, interfaceBlock, b)
}

// Packet adds a packet.
func (w *Writer) Packet(p Packet) error {
	const inbound, outbound = 1, 2
	ns := uint64(p.Time.UnixNano())
	b := binary.NativeEndian.AppendUint32(nil, uint32(p.Interface))
	b = binary.NativeEndian.AppendUint32(b, uint32(ns>>32))
	b = binary.NativeEndian.AppendUint32(b, uint32(ns))
	b = binary.NativeEndian.AppendUint32(b, uint32(len(p.Data)))
	b = binary.NativeEndian.AppendUint32(b, uint32(p.Length))
	b = pad(append(b, p.Data...))
	flags := uint32(inbound)
	if p.Outbound {
		flags = outbound
	}
	b = appendOption(b, epbFlags, binary.NativeEndian.AppendUint32(nil, flags))
	if p.ID != 0 {
		b = appendOption(b, epbPacketID, binary.NativeEndian.AppendUint64(nil, p.ID))
	}
	b = appendOption(b, epbVerdict, binary.NativeEndian.AppendUint64([]byte{byte(p.Verdict.Hook)}, p.Verdict.Value))
	b = appendOption(b, optComment, []byte(p.Comment))
	return writeBlock(w.w, packetBlock, b)
}

// appendOption adds an option, unless it is empty. One that is too long for its length field is cut off.
func appendOption(b []byte, code uint16, value []byte) []byte {
	if len(value) == 0 {
		return b
	}
	value = value[:min(len(value), 1<<16-1)]
	b = binary.NativeEndian.AppendUint16(b, code)
	b = binary.NativeEndian.AppendUint16(b, uint16(len(value)))
	return pad(append(b, value...))
}

// pad makes the length a multiple of four bytes.
func pad(b []byte) []byte { return append(b, make([]byte, -len(b)&3)...) }

// writeBlock writes a block in one call, so that a file that grows is complete up to its last packet.
func writeBlock(w io.Writer, kind uint32, body []byte) error {
	const frame = 12 // bytes: type, and the length twice
	body = binary.NativeEndian.AppendUint32(body, optEnd)
	out := binary.NativeEndian.AppendUint32(nil, kind)
	out = binary.NativeEndian.AppendUint32(out, uint32(len(body)+frame))
	out = binary.NativeEndian.AppendUint32(append(out, body...), uint32(len(body)+frame))
	_, err := w.Write(out)
	return err
}
