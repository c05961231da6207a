// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/oci"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/modules"
)

// packageAuthorCommands returns the subcommands of `kerb package` that work on files, without an agent.
func (a *app) packageAuthorCommands() []*cobra.Command {
	return []*cobra.Command{a.packageNewCommand(), a.packageBuildCommand(), a.packageVerifyCommand(),
		a.packageTestCommand(), a.packageInspectCommand(),
		a.packageHeadersCommand()}
}

func (a *app) packageNewCommand() *cobra.Command {
	name, kind, control := "", "", ""
	cmd := answers(&cobra.Command{
		Use:   "new DIR",
		Short: "Write a small package that works, to start from",
		Long: "Writes a package that builds, with tests: watch counts and drops packets to a port, responder answers " +
			"requests over UDP\nin the kernel (kerb/respond.h), extractor drops packets by a model on its own features " +
			"(kerb/infer.h).",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			abs, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			if name == "" {
				name = filepath.Base(abs)
			}
			if err := pkgs.New(abs, name, kind, control); err != nil {
				return err
			}
			return a.print(cmd.OutOrStdout(), map[string]string{"name": name, "directory": abs}, func(w io.Writer) {
				fmt.Fprintf(w, "package %s written to %s\nnext: kerb package build %s\n", name, args[0], args[0])
			})
		},
	})
	cmd.Flags().StringVar(&name, "name", "", "name of the package (default: last part of DIR)")
	cmd.Flags().StringVar(&kind, "kind", pkgs.NewWatch, "kind of package: "+strings.Join(pkgs.Kinds, ", "))
	cmd.Flags().StringVar(&control, "control", "", "language of its control plane: python (default: none; of an "+
		"extractor python)")
	return cmd
}

func (a *app) packageBuildCommand() *cobra.Command {
	opts := pkgs.Options{}
	cmd := answers(&cobra.Command{
		Use:   "build DIR",
		Short: "Compile the data plane of a package for its hooks",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.Out = cmd.ErrOrStderr()
			if err := pkgs.Build(cmd.Context(), args[0], opts); err != nil {
				return packageFault(err)
			}
			p, err := pkgs.Open(args[0])
			if err != nil {
				return packageFault(err)
			}
			objects, files := map[string]string{}, []string{} // by hook; in order
			for _, hook := range p.Hooks {
				objects[hook] = filepath.Join(args[0], p.Object(hook))
				files = append(files, objects[hook])
			}
			return a.print(cmd.OutOrStdout(), objects, func(w io.Writer) { printLines(w, files) })
		},
	})
	cmd.Flags().StringVar(&opts.Clang, "clang", "", "compiler to use (default: the newest clang found)")
	return cmd
}

func (a *app) packageVerifyCommand() *cobra.Command {
	var f storeFlags
	var lines uint
	c := answers(&cobra.Command{
		Use:   "verify DIR|NAME|REFERENCE",
		Short: "Verify a package in the kernel without attaching it",
		Long: "Links each hook and direction of the package into a chain of one, loads it into the kernel and removes " +
			"it again.\n" +
			"Needs root, or CAP_BPF and CAP_NET_ADMIN. It processes no packets.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := findPackage(cmd, &f, args[0])
			if err != nil {
				return packageFault(err)
			}
			verdicts, err := verifyPackage(p, int(lines))
			if err != nil && len(verdicts) == 0 {
				return packageFault(err)
			}
			printed := a.print(cmd.OutOrStdout(), verdicts, func(w io.Writer) { printLines(w, verdicts) })
			return errors.Join(packageFault(err), printed)
		},
	})
	f.add(c)
	c.Flags().UintVar(&lines, "lines", 0, "also print this many source lines, those with most verified instructions; "+
		"not of programs on sockets")
	return c
}

func (a *app) packageInspectCommand() *cobra.Command {
	var f storeFlags
	c := answers(&cobra.Command{
		Use:   "inspect DIR|NAME|REFERENCE",
		Short: "Show a package's contents and cost",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := findPackage(cmd, &f, args[0])
			if err != nil {
				return packageFault(err)
			}
			in, err := p.Inspect()
			if err != nil {
				return packageFault(err)
			}
			return a.print(cmd.OutOrStdout(), in, func(w io.Writer) { printInspection(w, in) })
		},
	})
	f.add(c)
	return c
}

func (a *app) packageHeadersCommand() *cobra.Command {
	return answers(&cobra.Command{
		Use:   "headers DIR",
		Short: "Write the headers that modules include, for editors and for reading",
		Long: "Writes kerb/*.h of this binary below DIR. `kerb package build` does not need them; editors and clangd " +
			"do, with -IDIR.",
		Example: "  kerb package headers include",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			files, err := pkgs.WriteHeaders(args[0])
			if err != nil {
				return err
			}
			return a.print(cmd.OutOrStdout(), files, func(w io.Writer) { printLines(w, files) })
		},
	})
}

// packageFault wraps errors of packages in types that have exit codes.
func packageFault(err error) error {
	if rejected, ok := errors.AsType[*dataplane.RejectedError](err); ok {
		return &apierrors.Rejected{Summary: err.Error(), Log: rejected.Log}
	}
	return err
}

// findPackage returns the package for a directory, the name of a built-in or the reference of a pulled package. A
// directory with the name of a built-in must be given with a slash.
func findPackage(cmd *cobra.Command, f *storeFlags, ref string) (*pkgs.Package, error) {
	catalog := pkgs.NewCatalog(modules.Packages(), modules.Controls())
	if oci.IsReference(ref) && !isPackageFile(ref) {
		store, err := f.store(cmd)
		if err != nil {
			return nil, err
		}
		catalog.SetPulled(store)
		return catalog.Get(ref)
	}
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

// printInspection lists functions with their instructions, and maps with their memory.
func printInspection(w io.Writer, in *pkgs.Inspection) {
	m := in.Manifest
	field(w, "Name", m.Name)
	field(w, "Version", m.Version)
	field(w, "Description", m.Description)
	field(w, "License", m.License)
	field(w, "Source", in.Source)
	field(w, "Digest", in.Digest)
	field(w, "Hooks", strings.Join(m.Hooks, ", "))
	field(w, "Fails", m.FailurePolicy)
	field(w, "Memory", pkgs.FormatBytes(in.Memory))
	if c := m.Control; c != nil && !c.Builtin {
		field(w, "Control", fmt.Sprintf("at most %s of memory, %s on disk", pkgs.FormatBytes(c.MemoryLimit()),
			pkgs.FormatBytes(c.DiskLimit())))
	}
	fmt.Fprintln(w)
	line(w, "HOOK", "FUNCTION", "INSTRUCTIONS")
	for _, h := range in.Hooks {
		for _, f := range h.Functions {
			line(w, h.Hook, f.Name, f.Instructions)
		}
	}
	fmt.Fprintln(w)
	line(w, "MAP", "TYPE", "ROLE", "KEY", "VALUE", "ENTRIES", "MEMORY")
	for _, p := range in.Maps {
		line(w, p.Name, p.Type, p.Role, p.KeySize, p.ValueSize, p.MaxEntries, pkgs.FormatBytes(p.Memory))
	}
}
