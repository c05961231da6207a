// SPDX-License-Identifier: Apache-2.0

package pkgs

import "slices"

// Capabilities that the code refers to. The manifest's schema lists all of them.
const (
	CapabilityInject      = "inject"
	CapabilityArrivals    = "arrivals"
	CapabilityClients     = "clients"
	CapabilityKernelFacts = "kernelFacts"
)

// HasCapability reports whether the control plane gets a capability.
func (m *Manifest) HasCapability(name string) bool {
	return slices.Contains(m.GrantedCapabilities(), name)
}

// GrantedCapabilities returns the capabilities that the control plane gets. A manifest without the list has older
// fields instead, from which they are derived. Those fields stay, since they are part of the package's digest, which
// nodes may deny.
func (m *Manifest) GrantedCapabilities() []string {
	if m.Capabilities != nil || m.Control == nil {
		return m.Capabilities
	}
	out := slices.Clone(m.Resources)
	if m.Inject {
		out = append(out, CapabilityInject)
	}
	if m.Socket {
		out = append(out, CapabilityClients)
	}
	if slices.Contains(m.Hooks, HookSockets) {
		out = append(out, CapabilityKernelFacts)
	}
	return out
}

// checkCapabilities checks the capabilities that a control plane requests. One that can send frames as a service must
// not have access to the network.
func (m *Manifest) checkCapabilities(wrong func(field, format string, args ...any)) {
	older := len(m.Resources) > 0 || m.Inject || m.Socket
	if m.Control == nil && (older || len(m.Capabilities) > 0) {
		wrong("control", "is absent, but capabilities are a control plane's")
	}
	if older && m.Capabilities != nil {
		wrong("capabilities", "replaces resources, inject and socket: list all of them here, socket as clients")
	}
	if m.Control != nil && m.Control.Network && m.HasCapability(CapabilityInject) {
		wrong("control.network", "cannot be combined with capability inject: "+
			"a control plane that sends frames as if services had sent them has no network access")
	}
}
