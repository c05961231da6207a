// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/service"
)

// Frames of a link type that a module does not know look to it like Ethernet with odd addresses: a firewall would find no IP in
// them and let them pass. So a module meets only packets of interfaces that its package reads.

// linkTypes are those that the module reads with its config.
func (d *deployment) linkTypes() []string {
	if only := d.module.Settings.LinkTypes; len(only) > 0 {
		return only
	}
	return d.pkg.Reads()
}

// reads tells whether the module can read an interface's frames. One that cannot run is there to drop packets, if at all.
func (d *deployment) reads(l service.Link) bool {
	return d.err != nil || slices.Contains(d.linkTypes(), l.LinkType())
}

// unread tells of the interfaces that a module names and cannot read; empty if there are none.
func (w world) unread(d *deployment) string {
	if d == nil || d.err != nil {
		return ""
	}
	var names []string
	for _, name := range d.resource.Spec.Attach.Interfaces {
		if l, ok := w.interfaces[name]; ok && !d.reads(l) {
			names = append(names, fmt.Sprintf("%s (%s)", name, l.LinkType()))
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("cannot read the frames of %s, and does not meet them: with this config it reads the link types %v", strings.Join(names, ", "), d.linkTypes())
}

// checkLinkTypes refuses modules for interfaces that they cannot read. Later an interface may come back as one of another type,
// which is a condition.
func (w world) checkLinkTypes(prepared map[string]*deployment) error {
	var refused []error
	for _, name := range slices.Sorted(maps.Keys(prepared)) {
		if text := w.unread(prepared[name]); text != "" {
			refused = append(refused, prepared[name].invalid("spec.attach.interfaces", errors.New(text)))
		}
	}
	return errors.Join(refused...)
}

// linkConditions are there only for modules that name an interface which they cannot read.
func (a *Agent) linkConditions(name string) []v1.Condition {
	text := world{interfaces: a.watcher.HostInterfaces()}.unread(a.modules[name])
	if text == "" {
		return nil
	}
	return []v1.Condition{{Type: "LinkTypeSupported", Status: "False", Reason: "LinkTypeMismatch", Message: text}}
}
