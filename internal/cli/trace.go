// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/capture"
)

// Maxima of v1alpha1.TraceRequest.
const (
	longestTrace = 4 * time.Minute
	mostTraced   = 100000
)

func (a *app) traceCommand() *cobra.Command {
	t := traceOptions{}
	c := answers(&cobra.Command{
		Use:   "trace [EXPRESSION]",
		Short: "Show packets, and the verdict of each module",
		Long: "Shows each matching packet as it entered the chain, and the verdict of each module on it, drops with " +
			"their reason,\n" +
			"until the count or the time is reached or it is interrupted. Filters apply to the packet as it entered the " +
			"chain.\n" +
			"Rewritten addresses and ports follow the verdict of the module; --times adds how long it took. During a " +
			"trace the\n" +
			"chains are linked again with a call after each module; packets are neither lost nor do they bypass modules, and\n" +
			"other chains have no extra cost.\n\n" +
			"--messages also shows messages on sockets of a module on sockets: redirected to the other socket, or left " +
			"to TCP\n" +
			"(next). --module with such a module shows only its messages. They have no frames, so that neither expressions\n" +
			"nor -w apply.\n\n" +
			"An expression is one of tcpdump (pcap-filter(7)), which must be installed to compile it. Packets must match the\n" +
			"expression and all flags.\n\n" +
			"-w writes a capture that Wireshark and tshark read: the first " + strconv.Itoa(capture.Bytes) + " bytes of each " +
			"frame as it arrived, with what the\n" +
			"modules did as its comment (frame.comment) and the verdict of the chain (frame.verdict).\n\n" +
			"--after adds what the kernel dropped after the last module, with its reason: no socket, a wrong sequence\n" +
			"number, netfilter, a full queue. It needs Linux 5.17 with BTF; where the kernel does not report dropped " +
			"packets,\n" +
			"the trace reports that and shows the rest.\n\n" +
			"--last starts no trace: it shows packets that chains have kept. These are the last dropped ones, those for " +
			"which\n" +
			"a module returned no verdict, and of the measured packets, one in 4,096, those that took longer than " +
			"slowPackets\n" +
			"of the agent's configuration, with the time of each module.",
		Example: "  kerb trace --service web --protocol tcp --port 80\n" +
			"  kerb trace --service web 'tcp[tcpflags] & tcp-syn != 0 and not port 22'\n" +
			"  kerb trace --host 192.0.2.0/24 --count 5 --for 10s --times\n" +
			"  kerb trace --slower-than 50us --times --count 0 --for 4m\n" +
			"  kerb trace --module fw --verdict drop -w dropped.pcapng\n" +
			"  kerb trace --service web --after\n" +
			"  kerb trace --last --slower-than 100us --times\n" +
			"  kerb trace --service web -w - | wireshark -k -i -",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, words []string) (err error) {
			if t.request.Program, err = compileExpression(cmd.Context(), strings.Join(words, " ")); err != nil {
				return err
			}
			return a.runTrace(cmd, t)
		},
	})
	t.flags(c)
	c.Flags().StringVar(&t.request.Verdict, "verdict", "",
		"only packets with this verdict of a module: next, drop, reply or redirect")
	c.Flags().StringVar(&t.request.Slower, "slower-than", "",
		"only packets whose modules took longer in one chain, all together: 50us, 1ms")
	c.Flags().BoolVar(&t.request.Messages, "messages", false, "add messages on sockets that a module has")
	c.Flags().BoolVar(&t.request.After, "after", false, "add what the kernel dropped after the last module")
	c.Flags().BoolVar(&t.request.Last, "last", false, "show the last packets that were slow, dropped or got no verdict")
	c.AddCommand(a.traceJoinCommand())
	return c
}

// traceOptions are the flags of a trace.
type traceOptions struct {
	request v1alpha1.TraceRequest
	lasting time.Duration
	file    string
	times   bool
}

func (t *traceOptions) flags(c *cobra.Command) {
	flags, r := c.Flags(), &t.request
	flags.StringVar(&r.Service, "service", "", "only packets of this service")
	flags.StringVar(&r.Host, "host", "", "source or destination: an address or a prefix")
	flags.StringVar(&r.Protocol, "protocol", "", "tcp, udp, icmp, icmpv6 or a number")
	flags.Uint16Var(&r.Port, "port", 0, "source or destination port")
	flags.StringVar(&r.Module, "module", "", "only packets that this module has seen")
	flags.StringVar(&r.Reason, "reason", "", "only packets dropped for this reason")
	flags.IntVar(&r.Count, "count", 100, "stop after this many packets (0: only by time)")
	flags.DurationVar(&t.lasting, "for", 30*time.Second, "stop after this time, at most 4m")
	flags.BoolVar(&t.times, "times", false, "add how long each module took")
	flags.StringVarP(&t.file, "write", "w", "", "write a capture (pcapng) to this file, - for standard output")
}

func (a *app) runTrace(cmd *cobra.Command, t traceOptions) error {
	r := t.request
	if t.lasting < time.Second || t.lasting > longestTrace {
		return &usageError{fmt.Errorf("--for %v: must be at least 1s, and at most %v", t.lasting, longestTrace)}
	}
	if r.Count < 0 || r.Count > mostTraced {
		return &usageError{fmt.Errorf("--count %d: must be from 0 to %d", r.Count, mostTraced)}
	}
	r.Seconds = int(t.lasting.Seconds())
	if r.Last && cmd.Flags().Changed("for") {
		return &usageError{errors.New("--last waits for nothing: leave --for out")}
	}
	if t.file == "" {
		n := 0
		err := a.trace(cmd.Context(), cmd.ErrOrStderr(), r, func(text string, p v1alpha1.TracedPacket) error {
			n++
			return a.printTraced(cmd.OutOrStdout(), text, p, t.times)
		})
		if r.Last && n == 0 && err == nil {
			fmt.Fprintln(cmd.ErrOrStderr(), "no packets were kept; kerb trace waits for some")
		}
		return err
	}
	if err := captureOnly(cmd); err != nil {
		return err
	}
	if r.Messages {
		return errNoFrames
	}
	return a.traceTo(cmd, t.file, r)
}

// errNoFrames rejects -w for messages on sockets.
var errNoFrames = &usageError{errors.New("-w writes frames, which messages on sockets do not have: use one of them")}

// captureOnly rejects -o for a command that writes a capture.
func captureOnly(cmd *cobra.Command) error {
	if cmd.Flags().Changed("output") || cmd.Flags().Changed("json") {
		return &usageError{errors.New("-w writes a capture, and -o prints packets: use one of them")}
	}
	return nil
}

// trace prints packets when they arrive.
func (a *app) trace(ctx context.Context, notes io.Writer, r v1alpha1.TraceRequest,
	show func(text string, p v1alpha1.TracedPacket) error) error {
	q := traceQuery(r)
	q.Set("seconds", strconv.Itoa(r.Seconds))
	for key, set := range map[string]bool{"last": r.Last, "after": r.After, "messages": r.Messages} {
		if set {
			q.Set(key, "true")
		}
	}
	for key, value := range map[string]string{"verdict": r.Verdict, "slowerThan": r.Slower, "program": r.Program} {
		if value != "" {
			q.Set(key, value)
		}
	}
	body, err := a.stream(ctx, "/v1/trace?"+q.Encode())
	if err != nil {
		return ignoreInterrupt(ctx, err)
	}
	defer body.Close()
	lost := uint64(0)
	defer func() {
		if lost > 0 {
			fmt.Fprintf(notes, "packets are missing: %d events came faster than they were read; a narrower filter by service, "+
				"host, protocol, port or an expression loses none\n", lost)
		}
	}()
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		var line v1alpha1.TraceLine
		if err := decodeAnswer(lines.Bytes(), &line); err != nil {
			return err
		}
		if line.Error != "" {
			return errors.New(line.Error)
		}
		if line.Warning != "" {
			fmt.Fprintln(notes, "warning:", line.Warning)
		} else if line.TracedPacket == nil {
			lost = line.Lost
		} else if err := show(lines.Text(), *line.TracedPacket); err != nil {
			return err
		}
	}
	return ignoreInterrupt(ctx, lines.Err())
}

// traceQuery returns the parameters that /v1/trace and /v1/drops share.
func traceQuery(r v1alpha1.TraceRequest) url.Values {
	q := url.Values{"count": {strconv.Itoa(r.Count)}, "port": {strconv.Itoa(int(r.Port))},
		"bytes": {strconv.Itoa(r.Bytes)}}
	for key, value := range map[string]string{"service": r.Service, "host": r.Host, "protocol": r.Protocol,
		"module": r.Module, "reason": r.Reason} {
		if value != "" {
			q.Set(key, value)
		}
	}
	return q
}

// traceTo writes packets to a capture when they arrive.
func (a *app) traceTo(cmd *cobra.Command, name string, r v1alpha1.TraceRequest) error {
	return writeCapture(cmd, name, func(w *capture.Writer) (packets int, err error) {
		r.Bytes = capture.Bytes
		err = a.trace(cmd.Context(), cmd.ErrOrStderr(), r, func(_ string, p v1alpha1.TracedPacket) error {
			if p.Hook == "sockets" {
				return errNoFrames
			}
			packets++
			return w.Add(p)
		})
		return packets, err
	})
}

// writeCapture creates a capture that fill writes; fill returns the number of packets.
func writeCapture(cmd *cobra.Command, name string, fill func(*capture.Writer) (packets int, err error)) error {
	out := cmd.OutOrStdout()
	if name == "-" {
		if isTerminal(out) {
			return &usageError{fmt.Errorf("-w -: standard output is a terminal; write to a file, or pipe to wireshark -k -i -")}
		}
	} else {
		const ownerOnly = 0o600 // captures contain payload of services
		file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, ownerOnly)
		if err != nil {
			return err
		}
		defer file.Close()
		out = file
	}
	w, err := capture.NewWriter(out)
	if err != nil {
		return err
	}
	packets, err := fill(w)
	if name != "-" {
		fmt.Fprintf(cmd.ErrOrStderr(), "%d packets written to %s\n", packets, name)
	}
	return err
}

// ignoreInterrupt returns nil for an interrupt, which is the normal end of a trace.
func ignoreInterrupt(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// printTraced prints a packet as text, or as in the agent's response: a line of JSON, or a YAML document.
func (a *app) printTraced(w io.Writer, text string, p v1alpha1.TracedPacket, times bool) error {
	switch a.output {
	case "json":
		_, err := fmt.Fprintln(w, text)
		return err
	case "yaml":
		fmt.Fprintln(w, "---")
	}
	return a.print(w, p, func(w io.Writer) { describeTraced(w, p, times) })
}

// describeTraced prints a line for each chain on the packet's path; in all but the first, the location starts with ">
// ".
func describeTraced(w io.Writer, p v1alpha1.TracedPacket, times bool) {
	describeAtChain(w, p, "", times)
	for _, then := range p.Then {
		describeAtChain(w, then, "> ", times)
	}
}

func describeAtChain(w io.Writer, p v1alpha1.TracedPacket, mark string, times bool) {
	where := mark + p.Interface
	if p.Service != "" {
		where = mark + p.Service + " " + p.Direction
	}
	if p.Hook == "sockets" {
		where = strings.TrimSpace(p.Service + " message")
	}
	if p.Node != "" {
		where = mark + p.Node + " " + strings.TrimPrefix(where, mark)
	}
	ends := capture.Ends(p.Protocol, p.Source, p.Destination)
	if p.TCPFlags != "" {
		ends += " [" + p.TCPFlags + "]"
	}
	if p.ICMPType != nil && p.ICMPCode != nil {
		ends += fmt.Sprintf(" type %d code %d", *p.ICMPType, *p.ICMPCode)
	}
	if p.Outcome != "ok" && p.Outcome != "not_ip" {
		ends += " (" + p.Outcome + ")"
	}
	fmt.Fprintf(w, "%s %-20s %s len %d  %s\n", p.Time.Local().Format("15:04:05.000000"), where, ends, p.Length,
		capture.Steps(p, times))
	if k := p.KernelDrop; k != nil {
		fmt.Fprintf(w, "%s %-20s %s\n", k.Time.Local().Format("15:04:05.000000"), "> kernel", capture.Kernel(*k))
	}
}

// answer is a streamed response of an agent.
type answer struct {
	io.ReadCloser
	stream bool // one JSON value per line
}

// stream starts a request with a streamed response.
func (a *app) stream(ctx context.Context, path string) (*answer, error) {
	response, err := a.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	if response.StatusCode < http.StatusBadRequest {
		return &answer{response.Body, response.Header.Get("Content-Type") == "application/x-ndjson"}, nil
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return nil, errors.Join(err, problem(response, text))
}
