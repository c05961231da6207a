// SPDX-License-Identifier: Apache-2.0

package bpftest

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// An ICMP error is right or is not sent: on XDP with frames in several buffers, what it quotes may lie beyond the first
// one, where its sum is out of reach.
func TestAnswerQuotesOtherBuffers(t *testing.T) {
	needXDPFragments(t)
	coll := Load(t, compileFrags(t, "testdata/answer.bpf.c"))
	frame := udp4(t, 0, 1000)
	for i := range 900 {
		frame[len(frame)-1-i] = byte(i * 7) // sums of zeros are right by chance
	}
	for _, linear := range []int{100, 300, len(frame)} {
		md := xdpMD{DataEnd: uint32(linear)}
		opts := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+64), Context: md, Repeat: 1}
		action, err := coll.Programs["answer"].Run(&opts)
		if errors.Is(err, unix.EINVAL) {
			t.Skip("before Linux 6.18 test runs do not take the size of the first buffer")
		}
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case action == xdpDrop && linear < len(frame):
		case action != xdpTX:
			t.Errorf("%d of %d bytes linear: action %d", linear, len(frame), action)
		case sum16(opts.DataOut[14+20:]) != 0xffff:
			t.Errorf("%d of %d bytes linear: the answer's checksum is wrong", linear, len(frame))
		}
	}
}

const xdpDrop, xdpTX = 1, 3

// xdpMD mirrors struct xdp_md.
type xdpMD struct{ Data, DataEnd, DataMeta, IngressIfindex, RxQueueIndex, EgressIfindex uint32 }

// sum16 is the Internet checksum's sum: of what has a right one, 0xffff.
func sum16(b []byte) uint16 {
	sum := uint32(0)
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}
