// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/resource"
)

// describeModule prints the counters last, since their tables can be long.
func describeModule(w io.Writer, m v1alpha1.Module) {
	s := resource.Status(m.Status)
	field(w, "Name", m.Metadata.Name)
	field(w, "Labels", resource.Labels(m.Metadata.Labels))
	field(w, "Package", strings.TrimSpace(m.Spec.Package+" "+s.Package.Version))
	field(w, "Digest", s.Package.Digest)
	field(w, "Services", m.Spec.Attach.Services)
	field(w, "Cgroups", strings.Join(m.Spec.Attach.Cgroups, ", "))
	field(w, "Interfaces", strings.Join(m.Spec.Attach.Interfaces, ", "))
	field(w, "Hook", m.Spec.Hook)
	field(w, "Priority", m.Spec.Order.Priority)
	field(w, "Fails", m.Spec.FailurePolicy)
	field(w, "Memory", pkgs.FormatBytes(s.Memory))
	if s.Events != nil {
		field(w, "Events", fmt.Sprintf("%d sent, %d lost", s.Events.Sent, s.Events.Lost))
	}
	printConditions(w, s.Conditions)
	if config, err := json.Marshal(m.Spec.Config); err == nil && m.Spec.Config != nil {
		field(w, "Config", string(config))
	}
	printAttachments(w, s.Attachments)
	printCost(w, s.Cost)
	printCounts(w, s.Counts)
	if len(s.Drops) > 0 {
		fmt.Fprintln(w)
		printDrops(w, []v1alpha1.Module{m})
	}
}

func printAttachments(w io.Writer, attachments []v1alpha1.Attachment) {
	if len(attachments) == 0 {
		return
	}
	fmt.Fprintln(w)
	line(w, "SERVICE", "INTERFACE", "HOOK", "DIRECTION", "CHAIN", "POSITION")
	for _, i := range attachments {
		where := i.Interface
		if i.Cgroup != "" {
			where = "cgroup " + i.Cgroup
		}
		line(w, i.Service, where, i.Hook, i.Direction, i.Chain, i.Position)
	}
}

// printCost prints the results of the module's test runs.
func printCost(w io.Writer, c *v1alpha1.Cost) {
	if c == nil {
		return
	}
	fmt.Fprintln(w)
	if len(c.Latency) > 0 {
		line(w, "COST ON", "DIRECTION", "MEDIAN", "WORST", "AT LEAST", "WORST PACKET")
	}
	for _, l := range c.Latency {
		line(w, l.Hook, l.Direction, nanoseconds(l.Median), nanoseconds(l.Worst), nanoseconds(l.Least), l.Packet)
	}
	fmt.Fprintf(w, "measured %s, with %s of kernel memory\n", c.MeasuredAt.Local().Format(time.DateTime),
		pkgs.FormatBytes(c.Memory))
}

func nanoseconds(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) + " ns" }

func (a *app) dropsCommand() *cobra.Command {
	return a.ofModules(&cobra.Command{
		Use:     "drops [NAME]",
		Short:   "Show dropped packets by module, service and reason",
		Example: "  kerb module drops\n  kerb module drops fw -o json",
	}, func(out io.Writer, all []v1alpha1.Module) error {
		drops := map[string][]v1alpha1.Drop{}
		for _, m := range all {
			drops[m.Metadata.Name] = append([]v1alpha1.Drop{}, resource.Status(m.Status).Drops...)
		}
		return a.print(out, drops, func(w io.Writer) { printDrops(w, all) })
	})
}

// ofModules completes a command that shows all modules, or a named one.
func (a *app) ofModules(c *cobra.Command, show func(io.Writer, []v1alpha1.Module) error) *cobra.Command {
	c.Args, c.ValidArgsFunction = cobra.MaximumNArgs(1), kindOf(resource.Module).complete(a)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		all, err := a.someModules(cmd, args)
		if err != nil {
			return err
		}
		return show(cmd.OutOrStdout(), all)
	}
	return answers(c)
}

func (a *app) someModules(cmd *cobra.Command, names []string) ([]v1alpha1.Module, error) {
	if len(names) == 0 {
		return fetch[[]v1alpha1.Module](cmd.Context(), a, "/v1/modules")
	}
	m, err := fetch[v1alpha1.Module](cmd.Context(), a, "/v1/modules/"+url.PathEscape(names[0]))
	return []v1alpha1.Module{m}, err
}

func printDrops(w io.Writer, modules []v1alpha1.Module) {
	line(w, "MODULE", "SERVICE", "REASON", "PACKETS")
	for _, m := range modules {
		for _, d := range resource.Status(m.Status).Drops {
			printDrop(w, m.Metadata.Name, d)
		}
	}
}

// printDrop prints a line for each service, and one for packets without a service.
func printDrop(w io.Writer, module string, d v1alpha1.Drop) {
	rest := d.Packets
	for _, s := range d.Services {
		line(w, module, s.Service, d.Reason, s.Packets)
		rest -= min(s.Packets, rest) // counters are not read atomically
	}
	if rest > 0 {
		line(w, module, "", d.Reason, rest)
	}
}

func (a *app) queryCommand() *cobra.Command {
	return answers(&cobra.Command{
		Use:   "query NAME [PATH]",
		Short: "Query a module's own routes",
		Long: "Reads a route that the module's control plane serves below /v1/modules/NAME/. Without a path it lists the " +
			"available routes.\n" +
			"A stream of events is printed as it comes, until it is interrupted.",
		Example: "  kerb module query fw\n  kerb module query count counts\n  kerb module query fw rules -o " +
			"json\n  kerb module query guard events",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.completeQuery,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return a.printQueries(cmd, args[0])
			}
			path := "/v1/modules/" + url.PathEscape(args[0]) + "/" + strings.TrimPrefix(args[1], "/")
			body, err := a.stream(cmd.Context(), path)
			if err != nil {
				return err
			}
			defer body.Close()
			return ignoreInterrupt(cmd.Context(), a.printAnswer(cmd.OutOrStdout(), body))
		},
	})
}

// noRouteError reports that a module exists, but lacks the route.
type noRouteError struct{ module, path string }

func (e *noRouteError) Error() string {
	if first, _, _ := strings.Cut(e.path, "/"); first == "values" {
		return fmt.Sprintf("module %s has no values that can be set while it runs", e.module)
	}
	return fmt.Sprintf("module %s serves nothing at %s; kerb module query %s lists its routes", e.module,
		cmp.Or(e.path, "/"), e.module)
}

func (*noRouteError) Unwrap() error { return &apierrors.NotFound{} }

// printAnswer prints the response of a module, unchanged if it is not JSON. It prints each line of a stream, one JSON
// value per line, when it arrives.
func (a *app) printAnswer(w io.Writer, body *answer) error {
	if body.stream {
		return a.printStream(w, body)
	}
	data, err := readAnswer(body)
	if err != nil {
		return err
	}
	var v any
	if json.Unmarshal(data, &v) == nil {
		ordered, err := decodeOrdered(data)
		if err != nil {
			return err
		}
		return a.print(w, v, func(w io.Writer) { printAnswerTable(w, "", ordered) })
	}
	if a.output != "table" {
		return &usageError{fmt.Errorf("the module replies in its own format, not in %s: omit -o", a.output)}
	}
	_, err = w.Write(data)
	return err
}

// printStream prints values when they arrive: one line each, or JSON as the module wrote it, or YAML documents.
func (a *app) printStream(w io.Writer, stream io.Reader) error {
	if a.output == "json" {
		_, err := io.Copy(w, stream)
		return err
	}
	values := json.NewDecoder(stream)
	for {
		var v json.RawMessage
		if err := values.Decode(&v); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("the module's answer broke off: %w", err)
		}
		if a.output == "table" {
			if _, err := fmt.Fprintln(visible{coloured(w)}, eventLine(v)); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintln(w, "---")
		if err := a.print(w, v, nil); err != nil {
			return err
		}
	}
}

// plain converts integral numbers to integers: JSON does not distinguish them.
func plain(v any) any {
	switch v := v.(type) {
	case nil:
		return ""
	case float64:
		if v == float64(int64(v)) {
			return int64(v)
		}
	}
	return v
}
