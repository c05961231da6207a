// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/capture"
)

func (a *app) lastDropsCommand() *cobra.Command {
	t := traceOptions{request: v1alpha1.TraceRequest{Verdict: "drop"}}
	c := answers(&cobra.Command{
		Use:   "drops",
		Short: "Show the last packets that modules dropped, or packets as they are dropped",
		Long: "Shows the last packets that modules dropped, with module, reason and the frame as the module left it, " +
			"oldest\n" +
			"first. Chains keep them without a trace: the last one of each service, module and reason, and the 32 before\n" +
			"those; of a burst the first 10, and then 10 per second. kerb module drops has the counts of all drops.\n\n" +
			"With --follow, --for or --times it is kerb trace --verdict drop: all packets that are dropped from now on,\n" +
			"with the verdicts of the preceding modules.",
		Example: "  kerb drops --service web\n  kerb drops --module fw --reason policy -w dropped.pcapng\n" +
			"  kerb drops --follow --module fw --for 1m",
		Args: cobra.NoArgs,
	})
	follow := c.Flags().BoolP("follow", "f", false, "show packets that are dropped from now on")
	t.flags(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if *follow || cmd.Flags().Changed("for") || t.times {
			return a.runTrace(cmd, t)
		}
		return a.runDrops(cmd, t)
	}
	return c
}

// Maxima of v1alpha1.DropsRequest: bytes per frame, and packets.
const droppedBytes, mostDropped = 128, 10000

// runDrops shows the last dropped packets that chains have recorded.
func (a *app) runDrops(cmd *cobra.Command, t traceOptions) error {
	r := t.request
	if r.Count < 0 || r.Count > mostDropped {
		return &usageError{fmt.Errorf("--count %d: must be from 0 to %d", r.Count, mostDropped)}
	}
	if r.Count == 0 {
		r.Count = mostDropped
	}
	if t.file == "" {
		if a.output == "json" || a.output == "yaml" {
			r.Bytes = droppedBytes
		}
		return show(cmd, a, "/v1/drops?"+traceQuery(r).Encode(), printLastDrops)
	}
	if err := captureOnly(cmd); err != nil {
		return err
	}
	r.Bytes = droppedBytes
	all, err := fetch[[]v1alpha1.TracedPacket](cmd.Context(), a, "/v1/drops?"+traceQuery(r).Encode())
	if err != nil {
		return err
	}
	return writeCapture(cmd, t.file, func(w *capture.Writer) (int, error) {
		for i, p := range all {
			if err := w.Add(p); err != nil {
				return i, err
			}
		}
		return len(all), nil
	})
}

func printLastDrops(w io.Writer, all []v1alpha1.TracedPacket) {
	if len(all) == 0 {
		fmt.Fprintln(w, "no dropped packets; kerb drops --follow waits for some")
		return
	}
	for _, p := range all {
		describeTraced(w, p, false)
	}
}
