// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/resource"
)

func (a *app) flowsCommand() *cobra.Command {
	var r v1alpha1.FlowsRequest
	var since time.Duration
	file := flowsFile{maxSize: "10Mi", keep: 5}
	c := answers(&cobra.Command{
		Use:   "flows",
		Short: "Show who talks to whom: bytes, packets, verdict, handshake round trip, retransmits",
		Long: `Shows the flows in the tables of modules of package flows, those with the most bytes first, and how many packets these
tables had no room for. The source is the initiator. PACKETS and BYTES are from it, REPLY-PACKETS and REPLY-BYTES are to
it. RTT is the round trip of the TCP handshake: to the destination + to the source, as seen from this node. RETRANSMITS
are segments that were retransmitted or reordered, in both directions.

--since shows sums of the last minutes, by service, peer, protocol and destination port.
--follow prints flows that have packets, once a second. -o json prints one object per line.

--file writes these objects to a file instead. When it is full, it becomes FILE.1, FILE.1 becomes FILE.2, and so on.
Lines that cannot be written, as on a full disk, are lost, counted and reported; writing continues when there is space.`,
		Example: "  kerb flows --service web\n  kerb flows --since 1h --protocol tcp --port 443\n" +
			"  kerb flows --peer 198.51.100.0/24 --follow\n  kerb flows --follow --file /var/log/flows.json --keep 5",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if since < 0 || since > time.Hour {
				return &usageError{fmt.Errorf("--since %v: must be at most 1h", since)}
			}
			out, err := file.open(r.Follow, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			defer out.close()
			r.Since = int((since + time.Second - 1) / time.Second)
			body, err := a.stream(cmd.Context(), "/v1/flows?"+flowsQuery(r).Encode())
			if err != nil {
				return ignoreInterrupt(cmd.Context(), err)
			}
			defer body.Close()
			if out != nil {
				return ignoreInterrupt(cmd.Context(), out.copy(body))
			}
			return ignoreInterrupt(cmd.Context(), a.printFlows(cmd.OutOrStdout(), body, r.Follow))
		},
	})
	flags := c.Flags()
	flags.StringVar(&r.Service, "service", "", "only flows of this service")
	flags.StringVar(&r.Peer, "peer", "", "the other end: an address or a prefix")
	flags.StringVar(&r.Protocol, "protocol", "", "tcp, udp, icmp, icmpv6 or a number")
	flags.Uint16Var(&r.Port, "port", 0, "source or destination port; with --since destination port")
	flags.IntVar(&r.Count, "count", 100, "at most this many, up to 5000")
	flags.DurationVar(&since, "since", 0, "sums of this time until now, in whole minutes: 5m, 1h")
	flags.BoolVarP(&r.Follow, "follow", "f", false, "also flows that have packets later, until interrupted")
	flags.StringVar(&file.path, "file", "", "with --follow: write to this file, as -o json")
	flags.StringVar(&file.maxSize, "max-size", file.maxSize, "of the file, after which another one begins: 512Ki, 10Mi")
	flags.IntVar(&file.keep, "keep", file.keep, "older files that are kept, 1 to 1000")
	c.MarkFlagsMutuallyExclusive("since", "follow")
	_ = c.MarkFlagFilename("file")                                                    // the flag is there
	_ = c.RegisterFlagCompletionFunc("service", kindOf(resource.Service).complete(a)) // the flag is there
	return c
}

func flowsQuery(r v1alpha1.FlowsRequest) url.Values {
	q := url.Values{"count": {strconv.Itoa(r.Count)}, "port": {strconv.Itoa(int(r.Port))},
		"since": {strconv.Itoa(r.Since)}}
	for key, value := range map[string]string{"service": r.Service, "peer": r.Peer, "protocol": r.Protocol} {
		if value != "" {
			q.Set(key, value)
		}
	}
	if r.Follow {
		q.Set("follow", "true")
	}
	return q
}

// printFlows prints a table, or with follow each flow when it arrives.
func (a *app) printFlows(w io.Writer, body io.Reader, follow bool) error {
	all := []v1alpha1.FlowLine{}
	err := eachLine(body, func(l v1alpha1.FlowLine) (err error) {
		switch {
		case l.Error != "":
			return errors.New(l.Error)
		case a.output != "table":
			err = json.NewEncoder(w).Encode(l)
		case follow && l.Flow != nil:
			_, err = fmt.Fprintln(visible{w}, localTime(l.Last)+"  "+strings.Join(flowCells(l.Flow), "  "))
		case follow:
			_, err = fmt.Fprintln(visible{w}, missingFlows(l.Missing))
		default:
			all = append(all, l)
		}
		return err
	})
	if err != nil || follow || a.output != "table" {
		return err
	}
	return a.print(w, all, func(w io.Writer) { flowTable(w, all) })
}

func flowTable(w io.Writer, all []v1alpha1.FlowLine) {
	line(w, "SOURCE", "DESTINATION", "PROTOCOL", "PACKETS", "BYTES", "REPLY-PACKETS", "REPLY-BYTES", "RTT", "RETRANSMITS",
		"VERDICT", "STATE")
	for _, l := range all {
		if l.Flow != nil {
			cells := []any{}
			for _, c := range flowCells(l.Flow) {
				cells = append(cells, c)
			}
			line(w, cells...)
		}
	}
	for _, l := range all {
		if l.Missing != nil {
			fmt.Fprintln(w, missingFlows(l.Missing))
		}
	}
}

func flowCells(f *v1alpha1.Flow) []string {
	count := func(n uint64) string { return strconv.FormatUint(n, 10) }
	state := f.State
	if f.Flows > 0 {
		state = fmt.Sprintf("%d flows", f.Flows)
	}
	rtt := "-"
	if to, from := f.ToResponderNanoseconds, f.ToInitiatorNanoseconds; to+from > 0 {
		rtt = roundTrip(to) + "+" + roundTrip(from)
	}
	verdict := f.Verdict
	if n := f.Dropped + f.ReplyDropped; n > 0 {
		verdict = fmt.Sprintf("drop %d (%s %s)", n, cmp.Or(f.DropModule, "removed module"), f.DropReason)
	}
	return []string{flowEnd(f.SourceService, f.Source, f.SourcePort),
		flowEnd(f.DestinationService, f.Destination, f.DestinationPort), f.Protocol,
		count(f.Packets), bytesText(f.Bytes), count(f.ReplyPackets), bytesText(f.ReplyBytes),
		rtt, count(f.Retransmits + f.ReplyRetransmits), verdict, cmp.Or(state, "-")}
}

// roundTrip formats a time with three digits.
func roundTrip(ns int64) string {
	d := time.Duration(ns)
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= unit {
			return d.Round(unit / 100).String()
		}
	}
	return d.String()
}

// flowEnd returns the name and the address of an end.
func flowEnd(name, address string, port uint16) string {
	end := address
	if port > 0 && address != "" {
		end = net.JoinHostPort(address, strconv.Itoa(int(port)))
	} else if port > 0 {
		end = ":" + strconv.Itoa(int(port))
	}
	switch {
	case name == "":
		return end
	case end == "" || end[0] == ':':
		return name + end
	}
	return name + "(" + end + ")"
}

func missingFlows(m *v1alpha1.MissingFlows) string {
	var parts []string
	add := func(n uint64, text string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf(text, n))
		}
	}
	add(m.Omitted, "%d more flows match: --count shows more")
	add(m.Others, "%d flows with "+fmt.Sprint(m.OtherPackets)+" packets are too small to be kept one by one")
	add(m.UnrecordedPackets, "%d packets are of flows that there was no room for")
	add(m.UnreadablePackets, "%d packets could not be read")
	return fmt.Sprintf("of %s: %s", cmp.Or(m.Service, m.Interface, "other interfaces"), strings.Join(parts, "; "))
}

// bytesText formats a number of bytes with up to three digits: 1.2M.
func bytesText(n uint64) string {
	const units = "kMGTPE"
	if n < 1000 {
		return strconv.FormatUint(n, 10) + "B"
	}
	v, unit := float64(n)/1000, 0
	for ; v >= 999.5; unit++ {
		v /= 1000
	}
	return strconv.FormatFloat(v, 'g', 3, 64) + units[unit:unit+1] + "B"
}
