// SPDX-License-Identifier: Apache-2.0

package classifier

import (
	"encoding/binary"
	"slices"

	"github.com/kerb-edge/kerb/modules/classifier/inference"
)

// A batch has one message of each kind from each source of the published network, as ZEP datagrams (version 2, data) of
// equal length. ZEP has the length of the frame; the rest are zeros.
const (
	zepPort    = 17754
	zepHeader  = 32
	fcsLen     = 2 // checksum of the frame
	frameMax   = 47
	datagram   = zepHeader + frameMax + fcsLen
	kinds      = 4
	batchLen   = kinds * inference.Sources
	sequenceAt = zepHeader + 2 // of the frame, after its control field
)

// Messages of nodes from the 6LoWPAN header on. RPL messages: next header inline, hop limit 255, source from the MAC
// header, destination ff02::1a (RFC 6282), then ICMPv6 155 (RFC 6550). Data: UDP, compressed.
var messages = [kinds][]byte{
	{0x7b, 0x3b, 58, 0x1a, 155, 0, 0, 0, 0, 0},                                  // DIS
	slices.Concat([]byte{0x7b, 0x3b, 58, 0x1a, 155, 1, 0, 0}, make([]byte, 24)), // DIO
	slices.Concat([]byte{0x7b, 0x3b, 58, 0x1a, 155, 2, 0, 0}, make([]byte, 20)), // DAO
	{0x7e, 0x33, 0xf3, 0x12, 0, 0, 1, 2, 3},                                     // other
}

// put writes a message of a source, with a sequence number, into a datagram.
func put(datagram []byte, source, kind int, sequence byte) {
	const control = 1 | 1<<6 | 2<<10 | 1<<12 | 3<<14 // data, one PAN, short destination, IEEE 802.15.4-2006, EUI-64 source
	frame := binary.LittleEndian.AppendUint16(datagram[:zepHeader], control)
	frame = append(frame, sequence, 0xcd, 0xab, 0xff, 0xff)
	frame = binary.LittleEndian.AppendUint64(frame, 0x00124b0000000000|uint64(source+1))
	frame = append(frame, messages[kind]...)
	copy(datagram, []byte{'E', 'X', 2, 1, 26})
	datagram[zepHeader-1] = byte(len(frame) - zepHeader + fcsLen)
}
