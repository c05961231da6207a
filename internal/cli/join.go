// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/trace"
)

const (
	mostJoined     = 8       // files
	longestTraced  = 1 << 20 // bytes of a line
	joinedByChance = time.Second
)

// traceJoinCommand needs no agent.
func (a *app) traceJoinCommand() *cobra.Command {
	within, times := joinedByChance, false
	c := answers(&cobra.Command{
		Use:   "join FILE FILE...",
		Short: "Show packets at all nodes on their path",
		Long: "Reads the output of kerb trace -o json from several nodes, a file for each, and shows each packet with the\n" +
			"modules of all nodes on its path, also through a tunnel. A node has the name of its file, without .json. A\n" +
			"packet is recognized by addresses, ports, identification, sequence numbers or the first bytes of a datagram, as\n" +
			"they were at any module of both nodes, and by its time. Nothing is sent between nodes for this.\n\n" +
			"Times are those of the nodes' clocks. Packets that were traced on one node only are shown, too: they were lost,\n" +
			"or the other node did not trace them.",
		Example: "  ssh edge-1 kerb trace --for 10s --count 0 -o json > edge-1.json &\n" +
			"  ssh edge-2 kerb trace --for 10s --count 0 -o json > edge-2.json; wait\n" +
			"  kerb trace join edge-1.json edge-2.json --times",
		Args: cobra.RangeArgs(2, mostJoined),
		RunE: func(cmd *cobra.Command, files []string) error {
			if within <= 0 {
				return &usageError{fmt.Errorf("--within %v: must be above zero", within)}
			}
			return a.joinTraces(cmd, files, within, times)
		},
	})
	c.Flags().DurationVar(&within, "within", within, "how far the clocks of nodes and the way between them may be apart")
	c.Flags().BoolVar(&times, "times", false, "add how long each module took")
	return c
}

func (a *app) joinTraces(cmd *cobra.Command, files []string, within time.Duration, times bool) error {
	var traces []trace.NodeTrace
	for _, file := range files {
		t, err := readTrace(cmd.ErrOrStderr(), file)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(traces, func(other trace.NodeTrace) bool { return other.Node == t.Node }) {
			return &usageError{fmt.Errorf("two files are called %s: give each the name of its node", t.Node)}
		}
		traces = append(traces, t)
	}
	several := 0
	packets := trace.Join(traces, within)
	for _, p := range packets {
		if slices.ContainsFunc(p.Then, func(then v1alpha1.TracedPacket) bool { return then.Node != p.Node }) {
			several++
		}
		text, err := json.Marshal(p)
		if err != nil {
			return err
		}
		if err := a.printTraced(cmd.OutOrStdout(), string(text), p, times); err != nil {
			return err
		}
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%d packets, %d of them on several nodes\n", len(packets), several)
	return nil
}

// readTrace reads the output of a trace. It prints a note if packets are missing.
func readTrace(notes io.Writer, name string) (t trace.NodeTrace, err error) {
	t.Node = strings.TrimSuffix(filepath.Base(name), ".json")
	file, err := os.Open(name)
	if err != nil {
		return t, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, longestTraced)
	marked := false
	for n := 1; lines.Scan(); n++ {
		var line v1alpha1.TraceLine
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return t, fmt.Errorf("%s, line %d: not what kerb trace -o json writes: %w", name, n, err)
		}
		if line.TracedPacket == nil && line.Lost > 0 { // as GET /v1/trace has them
			fmt.Fprintf(notes, "%s: packets are missing: %d events were lost so far\n", name, line.Lost)
			continue
		}
		if line.TracedPacket == nil && line.Warning != "" {
			fmt.Fprintf(notes, "%s: %s\n", name, line.Warning)
			continue
		}
		if line.TracedPacket == nil || line.Time.IsZero() {
			return t, fmt.Errorf("%s, line %d: no packet, as kerb trace -o json writes them", name, n)
		}
		marked = marked || line.Fingerprint != ""
		if t.Packets = append(t.Packets, *line.TracedPacket); len(t.Packets) > mostTraced {
			return t, fmt.Errorf("%s has more than %d packets: trace with --count %[2]d at most", name, mostTraced)
		}
	}
	if err := lines.Err(); err != nil {
		return t, fmt.Errorf("%s: %w", name, err)
	}
	if !marked && len(t.Packets) > 0 {
		fmt.Fprintf(notes, "%s: no packet has a fingerprint: an older kerb has written it, or none is an IP packet\n", name)
	}
	return t, nil
}
