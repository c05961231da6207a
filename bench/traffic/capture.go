// SPDX-License-Identifier: Apache-2.0

// Package traffic prepares traffic for models of the classifier: it extracts tables of windows, with the features that
// the data plane counts, from captures and running modules, and replays captures through a model. Its commands are
// subcommands of "kerb model"; they are in kerb-bench, since the library that reads captures would make the agent 2 MB
// larger.
package traffic

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// Link types without a name in gopacket, https://www.tcpdump.org/linktypes.html.
const (
	ieee802154      = layers.LinkType(195)
	ieee802154NoFCS = layers.LinkType(230)

	fcsLength = 2
)

// recorded is a packet of a capture.
type recorded struct {
	iface, link int // number of the interface in the file
	time        uint64
	length      int // length on the wire; data may be shorter
	data        []byte
}

type source interface {
	ReadPacketData() ([]byte, gopacket.CaptureInfo, error)
}

// readCapture calls do for each packet of a pcap or pcapng file. Times are monotonic: packets that several CPUs
// recorded out of order get the later time.
func readCapture(file string, do func(*recorded) error) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	from, linkOf, err := openCapture(bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		return fmt.Errorf("read capture %s: %w; it must be pcap or pcapng", file, err)
	}
	var last uint64
	for n := 1; ; n++ {
		data, info, err := from.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			last = max(last, uint64(max(0, info.Timestamp.UnixNano())))
			err = do(&recorded{info.InterfaceIndex, int(linkOf(info.InterfaceIndex)), last, info.Length, data})
		}
		if err != nil {
			return fmt.Errorf("read packet %d of capture %s: %w", n, file, err)
		}
	}
}

func openCapture(r *bufio.Reader) (source, func(int) layers.LinkType, error) {
	head, err := r.Peek(4)
	if err != nil {
		return nil, nil, err
	}
	if !bytes.Equal(head, []byte{0x0a, 0x0d, 0x0d, 0x0a}) {
		p, err := pcapgo.NewReader(r)
		if err != nil {
			return nil, nil, err
		}
		return p, func(int) layers.LinkType { return p.LinkType() }, nil
	}
	p, err := pcapgo.NewNgReader(r, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		return nil, nil, err
	}
	return p, func(i int) layers.LinkType {
		at, err := p.Interface(i)
		if err != nil {
			return layers.LinkTypeNull
		}
		return at.LinkType
	}, nil
}
