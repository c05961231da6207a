// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/resource"
)

// interceptClass has the fields of query `classes` of the module intercept that tables show.
type interceptClass struct {
	Name, Direction, Action                 string
	Stopped, Opens                          bool
	Packets, Bytes, Delivered, Lost, Unread uint64
	Fallbacks, Forwarded                    uint64
	Unforwarded                             map[string]uint64
	Gap                                     quantiles
	Program                                 *interceptProgram
}

type interceptProgram struct {
	PID                    int
	Since                  time.Time
	Received, Missed, Late uint64
	Deadline               uint64 `json:"deadlineNanoseconds"`
	Delay                  quantiles
}

type quantiles struct {
	P50  uint64 `json:"p50Nanoseconds"`
	P99  uint64 `json:"p99Nanoseconds"`
	P999 uint64 `json:"p999Nanoseconds"`
	Max  uint64 `json:"maxNanoseconds"`
}

type latePacket struct {
	Class                                                          string
	Seq                                                            uint64
	Delay                                                          uint64 `json:"delayNanoseconds"`
	Waited                                                         uint64 `json:"waitedNanoseconds"`
	KernelCPU, ProgramCPU, Running, Queued, Voluntary, Involuntary uint32
	Command                                                        string
}

func (a *app) interceptCommand() *cobra.Command {
	return noun("intercept", "Packets delivered to programs: classes, delays, late packets",
		interceptQuery(a, "classes", "Show classes, their packet counters, and the programs that have them open", "classes",
			printClasses),
		interceptQuery(a, "stats", "Show how long delivery takes, from the kernel part to the program", "classes",
			printDelays),
		interceptQuery(a, "late", "Show the last packets that missed their deadline, and what the CPUs were doing",
			"late", printLate))
}

// interceptQuery returns a command that reads a route of a module. The name may be omitted if only one module has the
// route.
func interceptQuery[T any](a *app, verb, short, route string, table func(io.Writer, T)) *cobra.Command {
	return answers(&cobra.Command{
		Use:               verb + " [MODULE]",
		Short:             short,
		Example:           "  kerb intercept " + verb + "\n  kerb intercept " + verb + " controller -o json",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: kindOf(resource.Module).complete(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := a.interceptModule(cmd.Context(), args, route)
			if err != nil {
				return err
			}
			data, err := a.call(cmd.Context(), http.MethodGet, "/v1/modules/"+url.PathEscape(name)+"/"+route, nil)
			if err != nil {
				return err
			}
			var all any
			var rows T
			if err := cmp.Or(json.Unmarshal(data, &all), json.Unmarshal(data, &rows)); err != nil {
				return fmt.Errorf("module %s does not answer as intercept does: %w", name, err)
			}
			return a.print(cmd.OutOrStdout(), all, func(w io.Writer) { table(w, rows) })
		},
	})
}

// interceptModule returns the named module, or the only one whose package supports a query.
func (a *app) interceptModule(ctx context.Context, args []string, route string) (string, error) {
	if len(args) > 0 {
		return args[0], nil
	}
	names, err := a.modulesWithQuery(ctx, route)
	if err != nil {
		return "", err
	}
	switch len(names) {
	case 0:
		return "", errors.New("no module that delivers packets to programs is deployed: docs/intercept.md has an example")
	case 1:
		return names[0], nil
	}
	return "", fmt.Errorf("name one of the modules %s", strings.Join(names, ", "))
}

// modulesWithQuery returns the modules whose package supports a query and serves programs, like intercept.
func (a *app) modulesWithQuery(ctx context.Context, query string) (names []string, err error) {
	packages, err := fetch[[]v1alpha1.Package](ctx, a, "/v1/packages")
	if err != nil {
		return nil, err
	}
	has := map[string]bool{} // by digest
	for _, p := range packages {
		if _, ok := p.Queries[query]; ok && slices.Contains(p.Capabilities, pkgs.CapabilityClients) {
			has[p.Digest] = true
		}
	}
	modules, err := fetch[[]v1alpha1.Module](ctx, a, "/v1/modules")
	for _, m := range modules {
		if m.Status != nil && has[m.Status.Package.Digest] {
			names = append(names, m.Metadata.Name)
		}
	}
	return names, err
}

func printClasses(w io.Writer, all []interceptClass) {
	line(w, "CLASS", "DIRECTION", "ACTION", "PACKETS", "BYTES", "DELIVERED", "LOST", "UNREAD", "FALLBACKS", "FORWARDED",
		"GAP P50", "PROGRAM")
	for _, c := range all {
		line(w, c.Name, c.Direction, c.action(), c.Packets, c.Bytes, c.Delivered, c.Lost, c.Unread,
			c.Fallbacks, c.forwarded(), since(c.Gap.P50), c.openBy())
	}
}

// forwarded returns the number of forwarded packets, and of those that were not, by reason: 12 (noRoute 3).
func (c interceptClass) forwarded() string {
	var not []string
	for _, reason := range slices.Sorted(maps.Keys(c.Unforwarded)) {
		not = append(not, fmt.Sprintf("%s %d", reason, c.Unforwarded[reason]))
	}
	if len(not) == 0 {
		return fmt.Sprint(c.Forwarded)
	}
	return fmt.Sprintf("%d (%s)", c.Forwarded, strings.Join(not, ", "))
}

func (c interceptClass) action() string {
	if c.Stopped {
		return c.Action + " (stopped)"
	}
	return c.Action
}

func (c interceptClass) openBy() string {
	switch {
	case !c.Opens:
		return ""
	case c.Program == nil:
		return "none"
	}
	return fmt.Sprintf("pid %d", c.Program.PID)
}

func printDelays(w io.Writer, all []interceptClass) {
	line(w, "CLASS", "RECEIVED", "MISSED", "P50", "P99", "P999", "MAX", "DEADLINE", "LATE")
	for _, c := range all {
		if p := c.Program; p != nil {
			d := p.Delay
			line(w, c.Name, p.Received, p.Missed, since(d.P50), since(d.P99), since(d.P999), since(d.Max), since(p.Deadline),
				p.Late)
		}
	}
}

func printLate(w io.Writer, all []latePacket) {
	line(w, "CLASS", "SEQ", "DELAY", "WAITED TO RUN", "QUEUED", "CPUS", "SWITCHES", "RAN THERE")
	for _, l := range all {
		ran := "idle, or not known"
		if l.Running != 0 {
			ran = strings.TrimSpace(fmt.Sprintf("%d %s", l.Running, l.Command))
		}
		line(w, l.Class, l.Seq, since(l.Delay), since(l.Waited), l.Queued, fmt.Sprintf("%d to %d", l.KernelCPU, l.ProgramCPU),
			fmt.Sprintf("%d, %d forced", l.Voluntary+l.Involuntary, l.Involuntary), ran)
	}
}

// since formats ns as a duration, and 0 as an empty text.
func since(ns uint64) string {
	if ns == 0 {
		return ""
	}
	return time.Duration(ns).String()
}
