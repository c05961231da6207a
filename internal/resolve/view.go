// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"fmt"
	"maps"
	"slices"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// Names returns the names of the virtual services, sorted.
func (t *Table) Names() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Sorted(maps.Keys(t.services))
}

// View returns a virtual service with its status. The caller fills in Metadata.
func (t *Table) View(name string) (s v1.VirtualService, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.services[name]
	if e == nil {
		return s, false
	}
	s = v1.VirtualService{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindVirtualService},
		Metadata: v1.ObjectMeta{Name: name}, Spec: e.spec}
	s.Status = &v1.VirtualServiceStatus{Source: e.source, Instances: e.instances}
	programmed := v1.Condition{Type: "Programmed", Status: "False", Reason: "NoModule",
		Message: "no module works with virtual services; apply one that does, such as the package proxy"}
	for _, sub := range t.subscriptions {
		reason := sub.Pending(name)
		if reason == "" && !slices.Contains(s.Status.Modules, sub.Module) {
			s.Status.Modules = append(s.Status.Modules, sub.Module)
		}
		switch {
		case reason != "":
			programmed.Status, programmed.Reason, programmed.Message = "False", "Pending", "module "+sub.Module+": "+reason
		case programmed.Reason == "NoModule":
			programmed.Status, programmed.Reason, programmed.Message = "True", "Synced", ""
		}
	}
	slices.Sort(s.Status.Modules)
	s.Status.Conditions = []v1.Condition{e.ready(), e.resolved(), programmed}
	return s, true
}

// ready returns the condition Ready: True if at least one instance has an address and is not draining.
func (e *entry) ready() v1.Condition {
	c := v1.Condition{Type: "Ready", Status: "False", Reason: "NoInstance", Message: "no instance has an address and " +
		"takes connections"}
	n := 0
	for _, i := range e.instances {
		if len(i.Addresses) > 0 && !i.Draining {
			n++
		}
	}
	if n > 0 {
		c.Status, c.Reason, c.Message = "True", "HasInstances", fmt.Sprintf("%d of %d instances take connections",
			n, len(e.instances))
	}
	return c
}

// resolved returns the condition Resolved. Its message names the first instance that was not found; an address that
// belongs to another virtual service also makes it False.
func (e *entry) resolved() v1.Condition {
	c := v1.Condition{Type: "Resolved", Status: "True", Reason: "AllResolved"}
	for _, i := range e.instances {
		if i.Reason != "" {
			c.Status, c.Reason, c.Message = "False", "NotFound", fmt.Sprintf("instance %s: %s", i.Name, i.Reason)
			return c
		}
	}
	if len(e.owned) < len(e.spec.Addresses) {
		c.Status, c.Reason, c.Message = "False", "AddressTaken", "another virtual service has one of its addresses"
	}
	return c
}
