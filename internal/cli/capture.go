// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/pcapng"
	"github.com/kerb-edge/kerb/internal/version"
)

// captured is the maximum of v1alpha1.TraceRequest.Bytes.
const captured = 256

// capture is a file that gets the packets of a trace.
type capture struct {
	out     *pcapng.Writer
	places  map[viewpoint]int // numbers of interfaces in the file
	packets int
}

// viewpoint is where a packet was seen.
type viewpoint struct{ iface, hook, service, direction, linkType string }

// traceTo writes packets to a capture as they come. What was written is complete whenever it ends.
func (a *app) traceTo(cmd *cobra.Command, name string, r v1alpha1.TraceRequest) error {
	out := cmd.OutOrStdout()
	if name == "-" {
		if isTerminal(out) {
			return &usageError{fmt.Errorf("-w -: standard output is a terminal; write to a file, or pipe to wireshark -k -i -")}
		}
	} else {
		const ownerOnly = 0o600 // it holds what the services send
		file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, ownerOnly)
		if err != nil {
			return err
		}
		defer file.Close()
		out = file
	}
	w, err := pcapng.NewWriter(out, "kerb "+version.Version())
	if err != nil {
		return err
	}
	c := &capture{out: w, places: map[viewpoint]int{}}
	r.Bytes = captured
	err = a.trace(cmd.Context(), cmd.ErrOrStderr(), r, func(_ string, p v1alpha1.TracedPacket) error { return c.add(p) })
	if name != "-" {
		fmt.Fprintf(cmd.ErrOrStderr(), "%d packets written to %s\n", c.packets, name)
	}
	return err
}

// linkTypes of interfaces; what has another one begins with an IP header.
var linkTypes = map[string]pcapng.LinkType{"ethernet": pcapng.Ethernet, "ieee802154": pcapng.IEEE802154}

func (c *capture) add(p v1alpha1.TracedPacket) error {
	at := viewpoint{p.Interface, p.Hook, p.Service, p.Direction, p.LinkType}
	number, known := c.places[at]
	if !known {
		link, ok := linkTypes[p.LinkType]
		if !ok {
			link = pcapng.Raw
		}
		description := p.Direction + " at " + p.Hook
		if p.Service != "" {
			description = "service " + p.Service + " " + description
		}
		var err error
		number, err = c.out.Interface(pcapng.Interface{Name: p.Interface, Description: description, LinkType: link,
			SnapLen: captured})
		if err != nil {
			return err
		}
		c.places[at] = number
	}
	c.packets++
	return c.out.Packet(pcapng.Packet{Interface: number, Time: p.Time, Data: p.Frame, Length: int(p.Length),
		Outbound: p.Hook == string(chain.OnTCEgress), Verdict: verdictOf(p), Comment: "kerb: " + stepsOf(p, true)})
}

// What programs return to the kernel (linux/pkt_cls.h, linux/bpf.h) for the verdicts of modules.
var (
	// TC_ACT_UNSPEC, _SHOT, _REDIRECT, _REDIRECT
	tcActions = map[string]uint64{"next": 1<<64 - 1, "drop": 2, "reply": 7, "redirect": 7}
	// XDP_PASS, _DROP, _TX, _REDIRECT
	xdpActions = map[string]uint64{"next": 2, "drop": 1, "reply": 3, "redirect": 4}
)

// verdictOf is the chain's: that of the last module that did not leave it to the next.
func verdictOf(p v1alpha1.TracedPacket) pcapng.Verdict {
	last := "next"
	for _, s := range p.Steps {
		if s.Verdict != "next" {
			last = s.Verdict
		}
	}
	if p.Hook == string(chain.OnXDP) {
		return pcapng.Verdict{Hook: pcapng.XDP, Value: xdpActions[last]}
	}
	return pcapng.Verdict{Hook: pcapng.TC, Value: tcActions[last]}
}
