// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/resource"
)

func (a *app) countsCommand() *cobra.Command {
	return a.ofModules(&cobra.Command{
		Use:   "counts [NAME]",
		Short: "Show how many packets reached which module, its verdicts, and how long it took",
		Long: "Shows the packets and bytes that reached each module, by hook and direction, and how many of them it passed " +
			"on (next),\ndropped, answered (reply) and redirected. P50 and P99 are of its latency: how long it took, of one " +
			"packet in 4,096.\nModules on sockets see no packets.",
		Example: "  kerb module counts\n  kerb module counts fw -o json",
	}, func(out io.Writer, all []v1alpha1.Module) error {
		counts := []v1alpha1.ModuleCount{}
		for _, m := range all {
			counts = append(counts, resource.Status(m.Status).Counts...)
		}
		return a.print(out, counts, func(w io.Writer) { countTable(w, counts) })
	})
}

func printCounts(w io.Writer, counts []v1alpha1.ModuleCount) {
	if len(counts) > 0 {
		fmt.Fprintln(w)
		countTable(w, counts)
	}
}

func countTable(w io.Writer, counts []v1alpha1.ModuleCount) {
	header := []any{"MODULE", "HOOK", "DIRECTION", "PACKETS", "BYTES"}
	for _, verdict := range kerbabi.Verdicts {
		header = append(header, strings.ToUpper(verdict))
	}
	line(w, append(header, "P50", "P99")...)
	for _, c := range counts {
		cells := []any{c.Module, c.Hook, c.Direction, c.Packets, pkgs.FormatBytes(int64(c.Bytes))}
		for _, verdict := range kerbabi.Verdicts {
			cells = append(cells, packetsOf(c, verdict))
		}
		line(w, append(cells, latency(c.Latency)...)...)
	}
}

// latency returns the median and the 99th percentile.
func latency(s *v1alpha1.Sampled) []any {
	if s == nil {
		return []any{"-", "-"}
	}
	return []any{time.Duration(s.P50), time.Duration(s.P99)}
}

func packetsOf(c v1alpha1.ModuleCount, verdict string) uint64 {
	for _, v := range c.Verdicts {
		if v.Verdict == verdict {
			return v.Packets
		}
	}
	return 0
}
