// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/resource"
)

func describeService(w io.Writer, s v1alpha1.Service) {
	status := resource.Status(s.Status)
	field(w, "Name", s.Metadata.Name)
	field(w, "Labels", resource.Labels(s.Metadata.Labels))
	field(w, "Found by", resource.DiscoveryMethod(s.Spec))
	field(w, "Addresses", strings.Join(status.Addresses, ", "))
	field(w, "Sockets", strings.Join(status.Sockets, ", "))
	printConditions(w, status.Conditions)
	for _, l := range status.Links {
		fmt.Fprintln(w)
		field(w, "Interface", fmt.Sprintf("%s (index %d, MTU %d)%s", l.Interface, l.Ifindex, l.MTU, movedNote(l)))
		field(w, "Peer", l.Peer)
		for _, h := range l.Hooks {
			field(w, "  "+h.Hook, fmt.Sprintf("%s, chain %s, program %d: %s", h.Mode, h.Chain, h.Program,
				strings.Join(h.Modules, " > ")))
			field(w, "  on the hook", strings.Join(h.Programs, " > "))
		}
	}
	if len(status.Drops) > 0 {
		fmt.Fprintln(w)
		line(w, "MODULE", "REASON", "PACKETS")
	}
	for _, d := range status.Drops {
		line(w, d.Module, d.Reason, d.Packets)
	}
}

func movedNote(l v1alpha1.ServiceLink) string {
	if l.Moved {
		return ", moved out of the service"
	}
	return ""
}

func (a *app) serviceAddCommand() *cobra.Command {
	s := v1alpha1.Service{TypeMeta: v1alpha1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindService}}
	var dryRun bool
	c := answers(&cobra.Command{
		Use:   "add NAME --netns PATH | --pid PID | --interface NAME",
		Short: "Register a service, or change how it is found and labelled",
		Example: `  kerb service add web --netns /run/netns/web --label app=web
  kerb service add db --pid 4711 --label app=db --label tier=core
  kerb service add cam --interface veth0`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s.Metadata.Name = args[0]
			if err := makeAbsolute(&s.Spec.Netns); err != nil {
				return err
			}
			return a.changeAndPrint(cmd, http.MethodPut, "/v1/services/"+url.PathEscape(args[0]), dryRun, s)
		},
	})
	flags := c.Flags()
	flags.StringVar(&s.Spec.Netns, "netns", "", "path of its network namespace")
	flags.IntVar(&s.Spec.PID, "pid", 0, "a process in its network namespace")
	flags.StringVar(&s.Spec.Interface, "interface", "", "its interface on the host's side")
	flags.StringToStringVarP(&s.Metadata.Labels, "label", "l", nil, "label as key=value; may be repeated")
	c.MarkFlagsMutuallyExclusive("netns", "pid", "interface")
	c.MarkFlagsOneRequired("netns", "pid", "interface")
	addDryRun(c, &dryRun)
	return c
}

// makeAbsolute resolves a path of the command line against the working directory, unless it is empty.
func makeAbsolute(path *string) error {
	if *path == "" {
		return nil
	}
	absolute, err := filepath.Abs(*path)
	*path = absolute
	return err
}
