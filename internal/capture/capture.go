// SPDX-License-Identifier: Apache-2.0

// Package capture writes the packets of a trace as a capture, with what the modules did to each of them.
package capture

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/pcapng"
	"github.com/kerb-edge/kerb/internal/version"
)

// Bytes are those of a frame to capture: the maximum of v1alpha1.TraceRequest.Bytes.
const Bytes = 256

// Writer writes packets as they come. What it has written is complete at any time.
type Writer struct {
	out    *pcapng.Writer
	places map[viewpoint]int // numbers of interfaces in the file
}

// viewpoint is where a packet was seen.
type viewpoint struct{ iface, hook, service, direction, linkType string }

// NewWriter begins a capture.
func NewWriter(w io.Writer) (*Writer, error) {
	out, err := pcapng.NewWriter(w, "kerb "+version.Version())
	return &Writer{out: out, places: map[viewpoint]int{}}, err
}

// linkTypes of interfaces; what has another one begins with an IP header.
var linkTypes = map[string]pcapng.LinkType{"ethernet": pcapng.Ethernet, "ieee802154": pcapng.IEEE802154}

// Add writes a packet, once for each chain that it met. A message has no frame, and is left out.
func (w *Writer) Add(p v1alpha1.TracedPacket) error {
	if p.Hook == string(chain.OnSockets) {
		return nil
	}
	if err := w.add(p, p.ID); err != nil {
		return err
	}
	for _, then := range p.Then {
		if err := w.add(then, p.ID); err != nil {
			return err
		}
	}
	return nil
}

func (w *Writer) add(p v1alpha1.TracedPacket, id string) error {
	at := viewpoint{p.Interface, p.Hook, p.Service, p.Direction, p.LinkType}
	number, known := w.places[at]
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
		number, err = w.out.Interface(pcapng.Interface{Name: p.Interface, Description: description, LinkType: link,
			SnapLen: Bytes})
		if err != nil {
			return err
		}
		w.places[at] = number
	}
	comment := "kerb: " + Steps(p, true)
	if p.KernelDrop != nil {
		comment += " then kernel: " + Kernel(*p.KernelDrop)
	}
	return w.out.Packet(pcapng.Packet{Interface: number, Time: p.Time, Data: p.Frame, Length: int(p.Length),
		Outbound: p.Hook == string(chain.OnTCEgress), Verdict: verdictOf(p), Comment: comment,
		ID: packetID(id)})
}

// packetID is the number of a packet in a capture, 0 for none: that of the CPU is in the upper bits.
func packetID(id string) uint64 {
	cpu, number, _ := strings.Cut(id, "-")
	c, _ := strconv.ParseUint(cpu, 10, 16)
	n, _ := strconv.ParseUint(number, 10, 48)
	return c<<48 | n
}

// verdictOf is the chain's: that of the last module that did not leave it to the next. The value is 0 if that returned
// no verdict.
func verdictOf(p v1alpha1.TracedPacket) pcapng.Verdict {
	last := kerbabi.Next.String()
	for _, s := range p.Steps {
		if s.Verdict != kerbabi.Next.String() {
			last = s.Verdict
		}
	}
	v, ok := kerbabi.VerdictNamed(last)
	out := pcapng.Verdict{Hook: pcapng.TC, Value: v.TC()}
	if p.Hook == string(chain.OnXDP) {
		out = pcapng.Verdict{Hook: pcapng.XDP, Value: v.XDP()}
	}
	if !ok {
		out.Value = 0
	}
	return out
}

// Steps is what the modules did to the packet.
func Steps(p v1alpha1.TracedPacket, times bool) string {
	var steps []string
	for _, s := range p.Steps {
		text := s.Module + ":" + s.Verdict
		if s.Reason != "" {
			text += " (" + s.Reason + ")"
		}
		if s.Note != "" {
			text += " " + s.Note + "=" + noteValue(s)
		}
		if s.Protocol != "" {
			text += " -> " + Ends(s.Protocol, s.Source, s.Destination)
		}
		if to := cmp.Or(s.Service, s.Interface); to != "" {
			text += " to " + to
		}
		if times && s.Nanoseconds > 0 { // not of packets that no trace has seen
			text += fmt.Sprintf(" in %d ns", s.Nanoseconds)
		}
		steps = append(steps, text)
	}
	if p.Nanoseconds > 0 {
		steps = append(steps, fmt.Sprintf("slow: %d ns in the chain", p.Nanoseconds))
	}
	return strings.Join(steps, " ")
}

// Kernel is what the kernel did to the packet after the last module.
func Kernel(k v1alpha1.KernelDrop) string {
	text := "dropped (" + k.Reason + ")"
	if k.Function != "" {
		text += " in " + k.Function
	}
	return text
}

// noteValue is the name of the value of a note, or its number: a word, as names may have spaces and worse.
func noteValue(s v1alpha1.TraceStep) string {
	if s.Name == "" {
		return strconv.FormatUint(s.Value, 10)
	}
	if odd := func(r rune) bool { return r <= ' ' || r == '"' || !unicode.IsPrint(r) }; strings.ContainsFunc(s.Name, odd) {
		return strconv.Quote(s.Name)
	}
	return s.Name
}

// Ends are the protocol, the source and the destination of a packet.
func Ends(protocol, source, destination string) string {
	if source == "" {
		return protocol
	}
	return protocol + " " + source + " > " + destination
}
