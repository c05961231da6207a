// SPDX-License-Identifier: Apache-2.0

package pkttest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
)

const ethernet = 1 // of the link types of captures

var errCut = errors.New("truncated in the middle of a packet")

func readCapture(path string) ([][]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	frames, err := parseCapture(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return frames, nil
}

// parseCapture reads pcap or pcapng. The number at the start of the file gives the format and the order of bytes.
func parseCapture(data []byte) ([][]byte, error) {
	if len(data) < 24 {
		return nil, errors.New("neither pcap nor pcapng: it is too short")
	}
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		switch order.Uint32(data) {
		case 0xa1b2c3d4, 0xa1b23c4d: // time in microseconds, and in nanoseconds
			return parsePcap(data, order)
		case 0x0a0d0d0a:
			return parsePcapng(data)
		}
	}
	return nil, fmt.Errorf("neither pcap nor pcapng: first bytes are %x", data[:4])
}

func checkLink(link uint32) error {
	if link != ethernet {
		return fmt.Errorf("its packets are of link type %d, not Ethernet (%d)", link, ethernet)
	}
	return nil
}

// parsePcap reads a header of 24 bytes, and packets after headers of 16 bytes.
func parsePcap(data []byte, order binary.ByteOrder) (frames [][]byte, err error) {
	if err := checkLink(order.Uint32(data[20:]) & 0xffff); err != nil {
		return nil, err
	}
	for data = data[24:]; len(data) > 0; {
		if len(data) < 16 {
			return nil, errCut
		}
		length := uint64(order.Uint32(data[8:]))
		if uint64(len(data)) < 16+length {
			return nil, errCut
		}
		frames = append(frames, data[16:16+length])
		data = data[16+length:]
	}
	return frames, nil
}

// Types of blocks of pcapng that matter here.
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockSimple    = 3
	blockEnhanced  = 6
)

// parsePcapng reads blocks: type, length, content, length again. Each section has its own order of bytes.
func parsePcapng(data []byte) (frames [][]byte, err error) {
	var order binary.ByteOrder = binary.LittleEndian
	for len(data) > 0 {
		if len(data) < 12 {
			return nil, errCut
		}
		kind := order.Uint32(data)
		if kind == blockSection {
			if order, err = orderOf(data[8:]); err != nil {
				return nil, err
			}
		}
		length := uint64(order.Uint32(data[4:]))
		if length < 12 || uint64(len(data)) < length {
			return nil, errCut
		}
		frame, err := parseBlock(kind, data[8:length-4], order)
		if err != nil {
			return nil, err
		}
		if frame != nil {
			frames = append(frames, frame)
		}
		data = data[length:]
	}
	return frames, nil
}

func orderOf(section []byte) (binary.ByteOrder, error) {
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		if order.Uint32(section) == 0x1a2b3c4d {
			return order, nil
		}
	}
	return nil, fmt.Errorf("section starts with %x, which is not a valid byte order mark", section[:4])
}

// parseBlock returns the packet in a block, nil if there is none.
func parseBlock(kind uint32, content []byte, order binary.ByteOrder) ([]byte, error) {
	switch kind {
	case blockInterface:
		if len(content) < 8 {
			return nil, errCut
		}
		return nil, checkLink(uint32(order.Uint16(content)))
	case blockSimple:
		if len(content) < 4 {
			return nil, errCut
		}
		length := min(uint64(order.Uint32(content)), uint64(len(content)-4))
		return content[4 : 4+length], nil
	case blockEnhanced:
		if len(content) < 20 || uint64(len(content)-20) < uint64(order.Uint32(content[12:])) {
			return nil, errCut
		}
		return content[20 : 20+order.Uint32(content[12:])], nil
	}
	return nil, nil
}
