// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/gopacket/gopacket/layers"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk"
)

func sendCommand() *cobra.Command {
	var s sender
	var speed float64
	c := &cobra.Command{
		Use:   "send CAPTURE INTERFACE",
		Short: "Replay a capture to an interface with its original timing",
		Long: "Sends the packets of a capture to an interface with their original timing, to try a module on known " +
			"traffic. On Ethernet\ninterfaces, frames of IEEE 802.15.4 are encapsulated in Ethernet. Needs CAP_NET_RAW.",
		Example: "  kerb model send net.pcap air0",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if speed <= 0 {
				return fmt.Errorf("speed %v: must be above 0", speed)
			}
			if err := s.open(args[1]); err != nil {
				return err
			}
			defer unix.Close(s.fd)
			if err := s.send(cmd.Context(), args[0], speed); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%d packets sent\n", s.sent)
			return nil
		},
	}
	c.Flags().Float64Var(&speed, "speed", 1, "replay speed: 2 is twice as fast as captured")
	c.Flags().Uint16Var(&s.etherType, "ether-type", 0x809a, "EtherType of IEEE 802.15.4 frames inside Ethernet")
	return c
}

// sender writes packets to an interface.
type sender struct {
	fd        int
	iface     *net.Interface
	etherType uint16
	sent      int
}

func (s *sender) open(iface string) (err error) {
	if s.iface, err = net.InterfaceByName(iface); err != nil {
		return fmt.Errorf("interface %s: %w", iface, err)
	}
	if s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open a packet socket: %w", err)
	}
	return nil
}

func (s *sender) send(ctx context.Context, file string, speed float64) error {
	begin, first := time.Now(), uint64(0)
	return readCapture(file, func(p *recorded) error {
		if s.sent == 0 {
			first = p.time
		}
		due := begin.Add(time.Duration(float64(p.time-first) / speed))
		if !sdk.Pause(ctx, time.Until(due)) {
			return ctx.Err()
		}
		s.sent++
		to := &unix.SockaddrLinklayer{Ifindex: s.iface.Index}
		if err := unix.Sendto(s.fd, s.frame(p), 0, to); err != nil {
			return fmt.Errorf("send out of interface %s: %w", s.iface.Name, err)
		}
		return nil
	})
}

// frame returns a packet in the format of the interface, without the FCS of IEEE 802.15.4.
func (s *sender) frame(p *recorded) []byte {
	data := p.data
	switch layers.LinkType(p.link) {
	case ieee802154:
		data = data[:max(0, len(data)-fcsLength)]
	case ieee802154NoFCS:
	default:
		return data
	}
	if len(s.iface.HardwareAddr) != 6 {
		return data
	}
	broadcast := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	return slices.Concat(broadcast, s.iface.HardwareAddr, be.AppendUint16(nil, s.etherType), data)
}
