// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// The maxima of v1alpha1.TraceRequest, as the command line has them.
const (
	longestTrace = 4 * time.Minute
	mostTraced   = 100000
)

func (a *app) traceCommand() *cobra.Command {
	var r v1alpha1.TraceRequest
	var lasting time.Duration
	c := answers(&cobra.Command{
		Use:   "trace",
		Short: "Show which module does what to packets",
		Long: "Shows each matching packet as it came to the chain, and the verdict of each module on it, drops with " +
			"their reason,\n" +
			"until the count or the time is reached or it is interrupted. Filters match the packet as it came. What a module\n" +
			"has changed of addresses and ports follows its verdict. For that time the chains are linked again with a call " +
			"after each module; packets\n" +
			"are neither lost nor let through by the change, and chains that are not traced cost nothing extra.",
		Example: "  kerb trace --service web --protocol tcp --port 80\n  kerb trace --host 192.0.2.7 --count 5 --for 10s",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if lasting < time.Second || lasting > longestTrace {
				return &usageError{fmt.Errorf("--for %v: must be at least 1s, and at most %v", lasting, longestTrace)}
			}
			if r.Count < 0 || r.Count > mostTraced {
				return &usageError{fmt.Errorf("--count %d: must be from 0 to %d", r.Count, mostTraced)}
			}
			r.Seconds = int(lasting.Seconds())
			return a.trace(cmd.Context(), cmd.OutOrStdout(), r)
		},
	})
	flags := c.Flags()
	flags.StringVar(&r.Service, "service", "", "only packets of this service")
	flags.StringVar(&r.Host, "host", "", "source or destination address")
	flags.StringVar(&r.Protocol, "protocol", "", "tcp, udp, icmp, icmpv6 or a number")
	flags.Uint16Var(&r.Port, "port", 0, "source or destination port")
	flags.IntVar(&r.Count, "count", 100, "stop after this many packets (0: only by time)")
	flags.DurationVar(&lasting, "for", 30*time.Second, "stop after this time, at most 4m")
	return c
}

// trace prints packets as they come: lines for people, or one JSON object a line.
func (a *app) trace(ctx context.Context, w io.Writer, r v1alpha1.TraceRequest) error {
	q := url.Values{"count": {strconv.Itoa(r.Count)}, "seconds": {strconv.Itoa(r.Seconds)},
		"port": {strconv.Itoa(int(r.Port))}}
	for key, value := range map[string]string{"service": r.Service, "host": r.Host, "protocol": r.Protocol} {
		if value != "" {
			q.Set(key, value)
		}
	}
	body, err := a.stream(ctx, "/v1/trace?"+q.Encode())
	if err != nil {
		return ignoreInterrupt(ctx, err)
	}
	defer body.Close()
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		var p struct {
			v1alpha1.TracedPacket
			Error string `json:"error"`
		}
		if err := understand(lines.Bytes(), &p); err != nil {
			return err
		}
		if p.Error != "" {
			return errors.New(p.Error)
		}
		if err := a.printTraced(w, lines.Text(), p.TracedPacket); err != nil {
			return err
		}
	}
	return ignoreInterrupt(ctx, lines.Err())
}

// ignoreInterrupt: an interrupt is the way to end a trace.
func ignoreInterrupt(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// printTraced prints a packet for people, or as what the agent has answered: a line, or a document of YAML.
func (a *app) printTraced(w io.Writer, text string, p v1alpha1.TracedPacket) error {
	switch a.output {
	case "json":
		_, err := fmt.Fprintln(w, text)
		return err
	case "yaml":
		fmt.Fprintln(w, "---")
	}
	return a.print(w, p, func(w io.Writer) { describeTraced(w, p) })
}

func describeTraced(w io.Writer, p v1alpha1.TracedPacket) {
	where := p.Interface
	if p.Service != "" {
		where = p.Service + " " + p.Direction
	}
	ends := packetEnds(p.Protocol, p.Source, p.Destination)
	if p.TCPFlags != "" {
		ends += " [" + p.TCPFlags + "]"
	}
	if p.ICMPType != nil && p.ICMPCode != nil {
		ends += fmt.Sprintf(" type %d code %d", *p.ICMPType, *p.ICMPCode)
	}
	if p.Outcome != "ok" && p.Outcome != "not_ip" {
		ends += " (" + p.Outcome + ")"
	}
	var steps []string
	for _, s := range p.Steps {
		text := s.Module + ":" + s.Verdict
		if s.Reason != "" {
			text += " (" + s.Reason + ")"
		}
		if s.Protocol != "" {
			text += " -> " + packetEnds(s.Protocol, s.Source, s.Destination)
		}
		if to := cmp.Or(s.Service, s.Interface); to != "" {
			text += " to " + to
		}
		steps = append(steps, text)
	}
	fmt.Fprintf(w, "%s %-20s %s len %d  %s\n", p.Time.Local().Format("15:04:05.000000"), where, ends, p.Length,
		strings.Join(steps, " "))
}

func packetEnds(protocol, source, destination string) string {
	if source == "" {
		return protocol
	}
	return protocol + " " + source + " > " + destination
}

// answer of an agent, as it comes.
type answer struct {
	io.ReadCloser
	stream bool // of JSON values, one a line
}

// stream starts a request whose answer comes bit by bit.
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
