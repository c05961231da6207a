// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/modules"
)

// packageAuthorCommands are the parts of `kerb package` that work on files, without an agent.
func packageAuthorCommands() []*cobra.Command {
	return []*cobra.Command{newPackageNewCommand(), newPackageBuildCommand(), newPackageVerifyCommand(), newPackageInspectCommand()}
}

func newPackageNewCommand() *cobra.Command {
	name := ""
	cmd := &cobra.Command{
		Use:   "new DIR",
		Short: "Write a small package that works, to start from",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			abs, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			if name == "" {
				name = filepath.Base(abs)
			}
			if err := pkgs.New(abs, name); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "package %s written to %s\nnext: kerb package build %s\n", name, args[0], args[0])
			return nil
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name of the package (default: last part of DIR)")
	return cmd
}

func newPackageBuildCommand() *cobra.Command {
	opts := pkgs.Options{}
	cmd := &cobra.Command{
		Use:   "build DIR",
		Short: "Compile the data plane of a package for its hooks",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.Out = cmd.ErrOrStderr()
			if err := pkgs.Build(cmd.Context(), args[0], opts); err != nil {
				return err
			}
			p, err := pkgs.Open(args[0])
			if err != nil {
				return err
			}
			for _, hook := range p.Hooks {
				fmt.Fprintln(cmd.OutOrStdout(), filepath.Join(args[0], p.Object(hook)))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&opts.Clang, "clang", "", "compiler to use (default: the newest clang found)")
	return cmd
}

func newPackageVerifyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "verify DIR|NAME",
		Short: "Have the kernel check a package without attaching it",
		Long: "Links each hook and direction of the package into a chain of one, loads it into the kernel and removes it again.\n" +
			"Needs root, or CAP_BPF and CAP_NET_ADMIN. No packet meets the program.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := findPackage(args[0])
			if err != nil {
				return err
			}
			verdicts, err := verifyPackage(p)
			for _, v := range verdicts {
				fmt.Fprintln(cmd.OutOrStdout(), v)
			}
			return err
		},
	}
}

func newPackageInspectCommand() *cobra.Command {
	format := "table"
	cmd := &cobra.Command{
		Use:   "inspect DIR|NAME",
		Short: "Show what a package consists of and costs",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := findPackage(args[0])
			if err != nil {
				return err
			}
			in, err := p.Inspect()
			if err != nil {
				return err
			}
			return printInspection(cmd.OutOrStdout(), in, format)
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", format, "table, json or yaml")
	return cmd
}

// findPackage takes a directory or the name of a built-in. A directory in sight needs a slash to win over a built-in.
func findPackage(ref string) (*pkgs.Package, error) {
	catalog := pkgs.NewCatalog(modules.Packages(), modules.Controls())
	if !strings.Contains(ref, "/") && ref != "." {
		p, err := catalog.Get(ref)
		if !errors.Is(err, pkgs.ErrUnknown) || !isDir(ref) {
			return p, err
		}
	}
	abs, err := filepath.Abs(ref)
	if err != nil {
		return nil, err
	}
	return catalog.Get(abs)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func printInspection(out io.Writer, in *pkgs.Inspection, format string) error {
	switch format {
	case "json":
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(in)
	case "yaml":
		text, err := yaml.Marshal(in)
		if err != nil {
			return err
		}
		_, err = out.Write(text)
		return err
	case "table":
		return printInspectionTable(out, in)
	}
	return fmt.Errorf("output %q: use table, json or yaml", format)
}

func printInspectionTable(out io.Writer, in *pkgs.Inspection) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(cells ...any) { fmt.Fprintf(w, strings.Repeat("%v\t", len(cells))+"\n", cells...) }
	printSummary(row, in)
	row()
	row("HOOK", "FUNCTION", "INSTRUCTIONS")
	for _, h := range in.Hooks {
		for _, f := range h.Functions {
			row(h.Hook, f.Name, f.Instructions)
		}
	}
	row()
	row("MAP", "TYPE", "ROLE", "KEY", "VALUE", "ENTRIES", "MEMORY")
	for _, p := range in.Maps {
		row(p.Name, p.Type, p.Role, p.KeySize, p.ValueSize, p.MaxEntries, pkgs.FormatBytes(p.Memory))
	}
	return w.Flush()
}

func printSummary(row func(...any), in *pkgs.Inspection) {
	m := in.Manifest
	row("Name:", m.Name)
	row("Version:", m.Version)
	row("Description:", m.Description)
	row("License:", m.License)
	row("Source:", in.Source)
	row("Digest:", in.Digest)
	row("Hooks:", strings.Join(m.Hooks, ", "))
	row("Fails:", m.FailurePolicy)
	row("Memory:", pkgs.FormatBytes(in.Memory))
}
