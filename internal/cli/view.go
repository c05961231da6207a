// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/doctor"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/resource"
)

func chainKind() kind {
	k := viewOf("chain", []any{"ID", "HOOK", "DIRECTION", "MODULES", "PROGRAM", "PARTS", "COST", "POINTS"},
		func(c v1alpha1.Chain) []any {
			modules := strings.Join(c.Modules, " > ")
			return []any{c.ID, c.Hook, c.Direction, modules, c.Program, c.Parts, resource.FormatCost(c.Cost), len(c.Points)}
		}, describeChain)
	k.all = true
	return k
}

func (a *app) chainCommand() *cobra.Command {
	k := chainKind()
	return noun("chain", "Modules in packet order, linked into one program", k.list(a), k.get(a))
}

func describeChain(w io.Writer, c v1alpha1.Chain) {
	field(w, "ID", c.ID)
	field(w, "Hook", c.Hook)
	field(w, "Direction", c.Direction)
	field(w, "Modules", strings.Join(c.Modules, " > "))
	field(w, "Program", c.Program)
	field(w, "Parts", c.Parts)
	field(w, "Cost", resource.FormatCost(c.Cost))
	if c.Latency != nil {
		field(w, "Latency", fmt.Sprintf("p50 %s, p99 %s, of %d packets measured", time.Duration(c.Latency.P50),
			time.Duration(c.Latency.P99), c.Latency.Packets))
	}
	printAttachments(w, c.Points)
	printCounts(w, c.Counts)
}

func packageKind() kind {
	return viewOf("package", []any{"NAME", "VERSION", "HOOKS", "MEMORY", "SOURCE", "DESCRIPTION"},
		func(p v1alpha1.Package) []any {
			return []any{p.Name, p.Version, strings.Join(p.Hooks, ","), pkgs.FormatBytes(p.Memory), p.Source, p.Description}
		}, describePackage)
}

// newPackageCommand returns `kerb package`: the packages of the agent, and commands for authors.
func (a *app) newPackageCommand() *cobra.Command {
	k := packageKind()
	c := noun("package", "Packages that modules use", k.list(a), k.get(a))
	c.AddCommand(a.packageAuthorCommands()...)
	c.AddCommand(a.registryCommands()...)
	return c
}

func describePackage(w io.Writer, p v1alpha1.Package) {
	field(w, "Name", p.Name)
	field(w, "Version", p.Version)
	field(w, "Description", p.Description)
	field(w, "Digest", p.Digest)
	field(w, "Source", p.Source)
	field(w, "Hooks", strings.Join(p.Hooks, ", "))
	field(w, "Memory", pkgs.FormatBytes(p.Memory))
	field(w, "Capabilities", strings.Join(p.Capabilities, ", "))
	field(w, "Pinned", p.Pinned)
	field(w, "Signed by", strings.Join(p.SignedBy, ", "))
	if p.Waived {
		field(w, "Signed by", "no key: an operator has waived its signature")
	}
	field(w, "Pulled for", p.Owner)
	field(w, "Problem", p.Problem)
	properties, _ := p.Config["properties"].(map[string]any)
	if len(properties) == 0 {
		return
	}
	fmt.Fprintln(w)
	line(w, "CONFIG", "TYPE", "DEFAULT", "DESCRIPTION")
	for _, name := range sortedKeys(properties) {
		schema, _ := properties[name].(map[string]any)
		line(w, name, inCell(schema["type"]), inCell(schema["default"]), inCell(schema["description"]))
	}
}

func (a *app) statusCommand() *cobra.Command {
	var exit bool
	c := answers(&cobra.Command{
		Use:   "status",
		Short: "Show the agent's state at a glance",
		Long: "Shows a summary of the node, and all problems: modules that do not run, exceed their budget or " +
			"select nothing,\n" +
			"services that are missing or whose interfaces have moved, instances that do not respond, and conditions\n" +
			"that are not met.",
		Example: "  kerb status\n  kerb status --exit-code\n  kerb status -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := fetch[v1alpha1.NodeStatus](cmd.Context(), a, "/v1/status")
			if err != nil {
				return err
			}
			err = a.print(cmd.OutOrStdout(), s, func(w io.Writer) { describeNode(w, s) })
			if err == nil && exit && len(s.Problems) > 0 {
				err = fmt.Errorf("%d problems", len(s.Problems))
			}
			return err
		},
	})
	c.Flags().BoolVar(&exit, "exit-code", false, "exit with 1 if there are problems")
	return c
}

func (a *app) doctorCommand() *cobra.Command {
	var f agentFlags
	var bundle string
	c := answers(&cobra.Command{
		Use:   "doctor",
		Short: "Check whether this node can run Kerb, and how well",
		Long: "Tests the kernel features that Kerb needs, and examines mounts, interfaces and foreign programs. Changes " +
			"nothing and needs no\n" +
			"agent. Exits with 1 if Kerb cannot work on this node.\n\n" +
			"--bundle writes an archive for support: these findings, the agent's status, resources, chains, changes and " +
			"metrics, and " +
			"the\njournal. It contains names, addresses and configurations, but no keys and no packets.",
		Example: "  kerb doctor\n  kerb doctor -o json\n  kerb doctor --bundle kerb.tar.gz",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.resolve(cmd.Flags().Changed("config"))
			if err != nil {
				return err
			}
			checks := doctor.Run(cmd.Context(), doctor.Options{Paths: c.Paths})
			if bundle != "" {
				return a.writeBundle(cmd.Context(), bundle, cmd.ErrOrStderr(), f.config, checks)
			}
			return a.printChecks(cmd.OutOrStdout(), checks, "that prevent Kerb from running",
				"this node cannot run Kerb in its present state")
		},
	})
	f.addPaths(c)
	c.Flags().StringVar(&bundle, "bundle", "", "write an archive for support to this file, *.tar or *.tar.gz")
	return c
}

// printChecks prints checks, and returns an error with text if one fails.
func (a *app) printChecks(w io.Writer, checks []doctor.Check, failures, text string) (err error) {
	if a.output == "table" {
		err = doctor.Print(w, checks, failures)
	} else {
		err = a.print(w, checks, nil)
	}
	if err == nil && doctor.Worst(checks) == doctor.Fail {
		err = errors.New(text)
	}
	return err
}

func describeNode(w io.Writer, s v1alpha1.NodeStatus) {
	field(w, "Version", s.Version)
	field(w, "Kernel", s.Kernel)
	field(w, "PID", s.PID)
	field(w, "Uptime", s.Uptime)
	field(w, "Modules", s.Modules)
	field(w, "Services", s.Services)
	field(w, "Virtual services", s.VirtualServices)
	field(w, "Models", s.Models)
	field(w, "Chains", s.Chains)
	field(w, "Attach points", s.Points)
	field(w, "Memory", pkgs.FormatBytes(s.Memory))
	printConditions(w, s.Conditions)
	if len(s.Problems) == 0 {
		return
	}
	fmt.Fprintln(w, "\nProblems:")
	for _, p := range s.Problems {
		fmt.Fprintf(w, "  %s\t%s (%s)\t%s\n", strings.TrimSuffix(strings.ToLower(p.Kind)+"/"+p.Name, "/"), p.Type,
			p.Reason, p.Message)
	}
}
