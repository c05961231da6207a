// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/oci"
	"github.com/kerb-edge/kerb/internal/paths"
)

const referenceHelp = `
A reference is REGISTRY/REPOSITORY:TAG, REGISTRY/REPOSITORY@sha256:DIGEST, or the same with oci:/DIRECTORY, an OCI image
layout on disk, instead of registry and repository. Registries are accessed with TLS, except those on this machine.
Credentials are those of "docker login" or "podman login".`

// registryCommands returns the subcommands of `kerb package` that transfer packages. They need no agent.
func (a *app) registryCommands() []*cobra.Command {
	return []*cobra.Command{a.packageKeygenCommand(), a.packagePushCommand(), a.packageSignCommand(),
		a.packagePullCommand(), a.packageRemoveCommand()}
}

func (a *app) packageKeygenCommand() *cobra.Command {
	return answers(&cobra.Command{
		Use:   "keygen NAME",
		Short: "Make a key for signing packages",
		Long: "Writes an ed25519 key to NAME.key, which stays with the author, and its public half to NAME.pub, which " +
			"goes into\n" +
			"/etc/kerb/keys on the nodes. Files that exist are not overwritten.",
		Example:           "  kerb package keygen acme\n  install -m 644 acme.pub /etc/kerb/keys/acme.pub",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			private, public, err := oci.GenerateKey(args[0])
			if err != nil {
				return err
			}
			fingerprint, err := oci.Fingerprint(public)
			if err != nil {
				return err
			}
			keys := map[string]string{"private": private, "public": public, "fingerprint": fingerprint}
			return a.print(cmd.OutOrStdout(), keys, func(w io.Writer) {
				fmt.Fprintf(w, "private key %s: keep it secret, sign with it\npublic key %s: for /etc/kerb/keys on nodes\n"+
					"fingerprint %s\n", private, public, fingerprint)
			})
		},
	})
}

// signFlags are the flags for signing.
type signFlags struct {
	key, identity string
	transport     oci.Transport
}

func (f *signFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.key, "key", "", "private key to sign with: PEM, ed25519 or ECDSA P-256")
	c.Flags().StringVar(&f.identity, "identity", "", "name that the signature is for (default: registry and repository "+
		"of the reference)")
	addPlainHTTP(c, &f.transport)
}

func addPlainHTTP(c *cobra.Command, t *oci.Transport) {
	c.Flags().BoolVar(&t.PlainHTTP, "plain-http", false, "connect to the registry without TLS")
}

func (a *app) packagePushCommand() *cobra.Command {
	var f signFlags
	var platforms []string
	c := answers(&cobra.Command{
		Use:   "push [DIR] REFERENCE",
		Short: "Put a built package into a registry or an image layout",
		Long: "Pushes the package in DIR, which must be built, as an OCI artifact, and signs it if --key is given. A " +
			"package whose\n" +
			"control plane is compiled per architecture needs one --platform for each instead of DIR; a node pulls the " +
			"one for\n" +
			"its architecture.\n" + referenceHelp,
		Example: `  kerb package push ./limiter registry.example.org/acme/limiter:1.2.0 --key acme.key
  kerb package push ./limiter oci:/srv/packages/limiter:1.2.0
  kerb package push registry.example.org/acme/ids:2.0.0 --platform linux/amd64=ids-amd64 --platform linux/arm64=ids-arm64`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			source, err := pushSource(args, platforms)
			if err != nil {
				return err
			}
			ref, err := oci.ParseReference(args[len(args)-1])
			if err != nil {
				return err
			}
			signer, err := f.signer()
			if err != nil {
				return err
			}
			pushed, err := oci.Push(cmd.Context(), ref, source, signer, f.identity, f.transport)
			if err != nil {
				return packageFault(err)
			}
			return a.print(cmd.OutOrStdout(), pushed, func(w io.Writer) {
				fmt.Fprintf(w, "%s %s pushed to %s\ndigest %s, %s\n", pushed.Name, pushed.Version, ref, pushed.Digest,
					signedWord(pushed.Signed))
			})
		},
	})
	f.add(c)
	c.Flags().StringArrayVar(&platforms, "platform", nil, "OS/ARCH=DIR, once for each platform")
	return c
}

func signedWord(signed bool) string {
	if signed {
		return "signed"
	}
	return "not signed: nodes refuse it unless it is pulled with --allow-unsigned"
}

// signer returns nil if no key is given.
func (f *signFlags) signer() (*oci.Signer, error) {
	if f.key == "" {
		return nil, nil
	}
	return oci.LoadSigner(f.key)
}

// pushSource returns what to push: one directory, or one for each platform, which become an image index.
func pushSource(args, platforms []string) (oci.Source, error) {
	if (len(args) == 2) == (len(platforms) > 0) {
		return oci.Source{}, &usageError{errors.New("name what to push once: DIR, or --platform OS/ARCH=DIR")}
	}
	if len(args) == 2 {
		return oci.Source{Dir: args[0]}, nil
	}
	source := oci.Source{Platforms: map[string]string{}}
	for _, p := range platforms {
		name, dir, ok := strings.Cut(p, "=")
		if !ok || dir == "" || source.Platforms[name] != "" {
			return source, &usageError{fmt.Errorf("--platform %s: want OS/ARCH=DIR, each platform once", p)}
		}
		source.Platforms[name] = dir
	}
	return source, nil
}

func (a *app) packageSignCommand() *cobra.Command {
	var f signFlags
	c := answers(&cobra.Command{
		Use:   "sign REFERENCE --key FILE",
		Short: "Sign a package that was pushed",
		Long: "Adds a signature to the digest that REFERENCE resolves to, in both formats of cosign: as a Sigstore bundle " +
			"(cosign 3)\n" +
			"and with the tag sha256-DIGEST.sig (before).\n" + referenceHelp,
		Example: `  kerb package sign registry.example.org/acme/limiter:1.2.0 --key acme.key
  kerb package sign oci:/srv/packages/limiter:1.2.0 --key acme.key --identity registry.example.org/acme/limiter`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, err := oci.ParseReference(args[0])
			if err != nil {
				return err
			}
			signer, err := f.signer()
			if err != nil {
				return err
			}
			if signer == nil {
				return &usageError{errors.New("--key is missing")}
			}
			d, err := oci.Sign(cmd.Context(), ref, signer, f.identity, f.transport)
			if err != nil {
				return err
			}
			answer := map[string]string{"reference": ref.String(), "digest": d.String()}
			return a.print(cmd.OutOrStdout(), answer, func(w io.Writer) { fmt.Fprintf(w, "%s signed, digest %s\n", ref, d) })
		},
	})
	f.add(c)
	return c
}

// storeFlags select the store of an agent.
type storeFlags struct{ agentFlags }

func (f *storeFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.config, "config", paths.Default().Config, "configuration file of the agent; the keys are in "+
		"keys/ next to it")
	c.Flags().StringVar(&f.state, "state", "", "directory of durable state, which has the store")
}

func (f *storeFlags) store(cmd *cobra.Command) (*oci.Store, error) {
	c, err := f.resolve(cmd.Flags().Changed("config"))
	if err != nil {
		return nil, err
	}
	return oci.NewStore(c.Paths.Packages(), c.Paths.Keys()), nil
}

// find returns the store, and the parsed reference.
func (f *storeFlags) find(cmd *cobra.Command, reference string) (ref oci.Reference, store *oci.Store, err error) {
	if ref, err = oci.ParseReference(reference); err == nil {
		store, err = f.store(cmd)
	}
	return ref, store, err
}

func (a *app) packagePullCommand() *cobra.Command {
	var (
		f         storeFlags
		trust     oci.Trust
		transport oci.Transport
	)
	c := answers(&cobra.Command{
		Use:   "pull REFERENCE",
		Short: "Fetch a package into this node's store",
		Long: "Fetches a package, or an image of eBPF programs with bpfman's labels, checks its digests and its signature " +
			"with the keys\n" +
			"in /etc/kerb/keys, and stores it, as root. Modules then name REFERENCE as their package; the agent repeats the\n" +
			"checks offline before it loads the package. " +
			"A tag can be moved and pulled again; a digest cannot.\n" + referenceHelp,
		Example: `  kerb package pull registry.example.org/acme/limiter:1.2.0
  kerb package pull oci:/media/usb/limiter:1.2.0
  kerb package pull --identity registry.example.org/acme/limiter mirror.example.net/acme/limiter:1.2.0`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, store, err := f.find(cmd, args[0])
			if err != nil {
				return err
			}
			pulled, err := store.Pull(cmd.Context(), ref, trust, transport)
			if err != nil {
				return packageFault(err)
			}
			return a.print(cmd.OutOrStdout(), pulled, func(w io.Writer) { printPulled(w, pulled) })
		},
	})
	f.add(c)
	addPlainHTTP(c, &transport)
	c.Flags().BoolVar(&trust.AllowUnsigned, "allow-unsigned", false, "accept it without a signature by a key of this node")
	c.Flags().BoolVar(&trust.AllowDowngrade, "allow-downgrade", false, "accept an older version than the tag had before")
	c.Flags().StringVar(&trust.Identity, "identity", "", "name that the signature must be for (default: registry and "+
		"repository)")
	return c
}

func printPulled(w io.Writer, p *oci.Pulled) {
	fmt.Fprintf(w, "%s %s pulled\n", p.Name, p.Version)
	field(w, "Reference", p.Reference)
	field(w, "Pinned", p.Pinned)
	by := p.SignedBy + ", " + p.Signature
	if p.SignedBy == "" {
		by = "not signed by a key that this node trusts: unsigned packages were allowed"
	}
	field(w, "Signed by", by)
	if p.Moved != "" {
		field(w, "Before", p.Moved+"; modules made of the tag take the new one when they are applied again or the "+
			"agent starts")
	}
}

func (a *app) packageRemoveCommand() *cobra.Command {
	var f storeFlags
	c := answers(&cobra.Command{
		Use:     "rm REFERENCE",
		Aliases: []string{"delete"},
		Short:   "Remove a pulled package from this node's store",
		Long:    "Removes a pulled package, unless a deployed module uses it.",
		Example: "  kerb package rm registry.example.org/acme/limiter:1.2.0",
		Args:    cobra.ExactArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			store, err := f.store(cmd)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			refs, _ := store.References()
			return refs, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, store, err := f.find(cmd, args[0])
			if err != nil {
				return err
			}
			inUse, err := a.packagesInUse(cmd)
			if err != nil {
				return err
			}
			if err := store.Remove(ref, inUse); err != nil {
				return err
			}
			return a.print(cmd.OutOrStdout(), map[string]string{"removed": ref.String()}, func(w io.Writer) {
				fmt.Fprintln(w, ref, "removed")
			})
		},
	})
	f.add(c)
	return c
}

// packagesInUse returns the packages that modules use. Without an agent these are unknown, and it prints a warning.
func (a *app) packagesInUse(cmd *cobra.Command) (map[string]string, error) {
	modules, err := fetch[[]v1alpha1.Module](cmd.Context(), a, "/v1/modules")
	if errors.As(err, new(*unreachableError)) {
		fmt.Fprintln(cmd.ErrOrStderr(), "kerb: no agent answers, so that modules which use the package are not known")
		return nil, nil
	}
	out := map[string]string{}
	for _, m := range modules {
		out[m.Metadata.Name] = m.Spec.Package
	}
	return out, err
}

// isPackageFile reports whether an argument is a directory and not a reference.
func isPackageFile(ref string) bool {
	return filepath.IsAbs(ref) || strings.HasPrefix(ref, ".") || isDir(ref)
}
