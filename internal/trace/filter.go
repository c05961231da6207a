// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/dataplane"
)

// protocols that a trace knows by name.
var protocols = map[string]uint8{"": 0, "icmp": 1, "tcp": 6, "udp": 17, "icmpv6": 58}

// Filter returns the filter that a request describes.
func Filter(r v1.TraceRequest) (dataplane.TraceFilter, error) {
	f := dataplane.TraceFilter{Port: r.Port, Bytes: r.Bytes, After: r.After}
	proto, known := protocols[strings.ToLower(r.Protocol)]
	if !known {
		n, err := strconv.ParseUint(r.Protocol, 10, 8)
		if err != nil {
			return f, &apierrors.Invalid{Field: "protocol",
				Reason: fmt.Sprintf("%q is neither tcp, udp, icmp, icmpv6 nor a number up to 255", r.Protocol)}
		}
		proto = uint8(n)
	}
	f.Proto = proto
	if r.Slower != "" {
		slower, err := time.ParseDuration(r.Slower)
		if err != nil || slower <= 0 {
			return f, &apierrors.Invalid{Field: "slowerThan",
				Reason: fmt.Sprintf("%q is not a time above zero with a unit, such as 50us or 1ms", r.Slower)}
		}
		f.SlowerThan = slower
	}
	if r.Program != "" {
		program, err := dataplane.ParseExpression(r.Program)
		if err != nil {
			return f, &apierrors.Invalid{Field: "program", Reason: err.Error()}
		}
		f.Expression = program
	}
	if r.Host == "" {
		return f, nil
	}
	addr, err := netip.ParseAddr(r.Host)
	if err == nil {
		addr = addr.Unmap()
		f.Addr = netip.PrefixFrom(addr, addr.BitLen())
		return f, nil
	}
	if f.Addr, err = netip.ParsePrefix(r.Host); err != nil {
		return f, &apierrors.Invalid{Field: "host", Reason: fmt.Sprintf("%q is neither an IP address nor a prefix", r.Host)}
	}
	return f, nil
}

// Matches reports whether a module's action on the packet is the requested one, or the kernel dropped it for the
// requested reason.
func Matches(r v1.TraceRequest, p v1.TracedPacket) bool {
	if r.Module == "" && r.Verdict == "" && r.Reason == "" {
		return true
	}
	return slices.ContainsFunc(p.Steps, func(s v1.TraceStep) bool {
		return (r.Module == "" || r.Module == s.Module) && (r.Verdict == "" || r.Verdict == s.Verdict) &&
			(r.Reason == "" || r.Reason == s.Reason)
	}) || r.Module == "" && r.Verdict == "" && p.KernelDrop != nil && r.Reason == p.KernelDrop.Reason ||
		slices.ContainsFunc(p.Then, func(then v1.TracedPacket) bool { return Matches(r, then) })
}

// packetEnds are the fields of a packet that modules change.
type packetEnds struct{ protocol, source, destination string }

func endsOf(e dataplane.TraceEvent) packetEnds {
	return packetEnds{protocolName(e), endpoint(e.Addr(e.SourceAddr), e.SourcePort),
		endpoint(e.Addr(e.DestAddr), e.DestPort)}
}

// tcpFlags are the letters that tcpdump prints.
func tcpFlags(bits uint8) string {
	out := ""
	for i, letter := range []string{"F", "S", "R", "P", ".", "U", "E", "W"} {
		if bits&(1<<i) != 0 {
			out += letter
		}
	}
	return out
}

func protocolName(e dataplane.TraceEvent) string {
	if e.Family == 0 {
		return "not ip"
	}
	for name, n := range protocols {
		if n == e.Proto && name != "" {
			return name
		}
	}
	return strconv.Itoa(int(e.Proto))
}

func endpoint(addr netip.Addr, port uint16) string {
	switch {
	case !addr.IsValid():
		return ""
	case port == 0:
		return addr.String()
	}
	return netip.AddrPortFrom(addr, port).String()
}
