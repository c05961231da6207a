// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
)

// Check checks a virtual service on its own, beyond its schema. Errors are *apierrors.Invalid.
func Check(s v1.VirtualService) error {
	c := checker{resource: v1.KindVirtualService + " " + s.Metadata.Name, spec: s.Spec,
		instances: map[string]v1.VirtualInstance{}}
	return firstError(c.checkInstances, c.checkAddresses, c.checkPorts, c.checkTargetPorts, c.checkExcludedPorts)
}

// firstError runs checks until one fails.
func firstError(checks ...func() error) error {
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// checker checks one VirtualService. instances are those checked so far, by name.
type checker struct {
	resource  string
	spec      v1.VirtualServiceSpec
	instances map[string]v1.VirtualInstance
}

func (c *checker) wrong(field, format string, args ...any) error {
	return &apierrors.Invalid{Resource: c.resource, Field: "spec." + field, Reason: fmt.Sprintf(format, args...)}
}

// checkInstances checks names and addresses of instances. Instances that are Services of this node have no addresses in
// the spec: these are looked up at run time.
func (c *checker) checkInstances() error {
	for n, i := range c.spec.Instances {
		field := fmt.Sprintf("instances[%d]", n)
		if _, twice := c.instances[i.Name]; twice {
			return c.wrong(field+".name", "%s occurs twice", i.Name)
		}
		c.instances[i.Name] = i
		switch {
		case (i.Service == "") == (len(i.Addresses) == 0):
			return c.wrong(field, "set either addresses, or service to take those of a Service of this node")
		case i.Service != "" && i.Node != "":
			return c.wrong(field+".node", "a Service is on this node: remove node")
		}
		if i.NodePort != 0 && i.Node == "" {
			return c.wrong(field+".nodePort", "is a port of a node: set node too")
		}
		if !isNodePort(i.NodePort) {
			return c.wrong(field+".nodePort", "is %d; set a port from 1 to 65535", i.NodePort)
		}
		if i.Node != "" {
			if _, err := parseUnicast(i.Node); err != nil {
				return c.wrong(field+".node", "%v", err)
			}
		}
		if _, err := parseFamilies(i.Addresses); err != nil {
			return c.wrong(field+".addresses", "%v", err)
		}
	}
	return nil
}

// isNodePort: 0 is the default.
func isNodePort(n int) bool { return n >= 0 && n <= 65535 }

// checkAddresses checks virtual addresses, and that for each some instance has an address of the same family: packets
// are not translated between families.
func (c *checker) checkAddresses() error {
	seen := map[netip.Addr]bool{}
	for n, a := range c.spec.Addresses {
		field := fmt.Sprintf("addresses[%d]", n)
		addr, err := parseUnicast(a.Address)
		if err != nil {
			return c.wrong(field+".address", "%v", err)
		}
		if seen[addr] {
			return c.wrong(field+".address", "%v occurs twice", addr)
		}
		seen[addr] = true
		if a.Instance != "" {
			if a.Policy != "" {
				return c.wrong(field, "has instance and policy: an address stands for one instance, or a policy chooses")
			}
			if _, ok := c.instances[a.Instance]; !ok {
				return c.wrong(field+".instance", "no instance %s in spec.instances", a.Instance)
			}
		}
		if err := checkAffinity(a); err != nil {
			return c.wrong(field+".affinityTimeout", "%v", err)
		}
		if !c.reaches(addr, a.Instance) {
			return c.wrong(field+".address", "%v is %s, and no instance has an address of this family", addr, family(addr))
		}
	}
	for n, i := range c.spec.Instances {
		for m, text := range i.Addresses {
			if addr, _ := netip.ParseAddr(text); seen[addr] {
				return c.wrong(fmt.Sprintf("instances[%d].addresses[%d]", n, m), "%s is one of the virtual addresses itself", text)
			}
		}
	}
	return nil
}

// maxAffinity is the same limit as in Kubernetes.
const maxAffinity = 24 * time.Hour

func checkAffinity(a v1.VirtualAddress) error {
	if a.AffinityTimeout == "" {
		return nil
	}
	d, err := time.ParseDuration(a.AffinityTimeout)
	switch {
	case err != nil || d%time.Second != 0:
		return fmt.Errorf("%q is not a time in whole seconds; write for example 3h, 1h30m or 10800s", a.AffinityTimeout)
	case d < time.Second || d > maxAffinity:
		return fmt.Errorf("is %s; set 1s to 24h", a.AffinityTimeout)
	case a.Instance != "":
		return errors.New("has no effect on an address of a single instance: remove it")
	}
	return nil
}

// reaches reports whether an instance has, or may have, an address of the family. It returns true without instances,
// because they may be added later.
func (c *checker) reaches(addr netip.Addr, only string) bool {
	for name, i := range c.instances {
		same := func(text string) bool { a, err := netip.ParseAddr(text); return err == nil && a.Is4() == addr.Is4() }
		if (only == "" || only == name) && (i.Service != "" || slices.ContainsFunc(i.Addresses, same)) {
			return true
		}
	}
	return len(c.instances) == 0
}

// checkPorts rejects a port that is mapped twice, or that cannot be translated. Defaults count: two ports without a
// protocol are both TCP.
func (c *checker) checkPorts() error {
	seen := map[portKey]bool{}
	for n, p := range completed(c.spec).Ports {
		if seen[keyOf(p)] {
			return c.wrong(fmt.Sprintf("ports[%d].port", n), "%s port %d occurs twice", p.Protocol, p.Port)
		}
		if isTranslatedSCTP(p) {
			return c.wrong(fmt.Sprintf("ports[%d].targetPort", n), untranslated, p.TargetPort, p.Port)
		}
		seen[keyOf(p)] = true
	}
	return nil
}

// isTranslatedSCTP reports whether the port would have to be translated for SCTP, which is not possible: its checksum
// covers the whole packet.
func isTranslatedSCTP(p v1.VirtualPort) bool {
	return p.Protocol == v1.ProtocolSCTP && p.TargetPort != p.Port
}

const untranslated = "is %d, but SCTP ports are not translated: instances have to listen on port %d itself"

// portKey identifies a port of a virtual service.
type portKey struct {
	protocol v1.Protocol
	port     uint16
}

func keyOf(p v1.VirtualPort) portKey { return portKey{p.Protocol, p.Port} }

// checkTargetPorts rejects target ports of instances for ports that the virtual service does not have, or that cannot
// be translated.
func (c *checker) checkTargetPorts() error {
	spec := completed(c.spec)
	ports := portsOf(spec)
	for n, i := range spec.Instances {
		seen := map[portKey]bool{}
		for m, p := range i.TargetPorts {
			field := fmt.Sprintf("instances[%d].targetPorts[%d].port", n, m)
			if err := c.checkPortOf(field, keyOf(p), ports, seen); err != nil {
				return err
			}
			if isTranslatedSCTP(p) {
				field = fmt.Sprintf("instances[%d].targetPorts[%d].targetPort", n, m)
				return c.wrong(field, untranslated, p.TargetPort, p.Port)
			}
		}
	}
	return nil
}

// checkExcludedPorts rejects excluded ports of instances that the virtual service does not have.
func (c *checker) checkExcludedPorts() error {
	spec := completed(c.spec)
	ports := portsOf(spec)
	for n, i := range spec.Instances {
		seen := map[portKey]bool{}
		for m, p := range i.ExcludedPorts {
			field := fmt.Sprintf("instances[%d].excludedPorts[%d].port", n, m)
			if err := c.checkPortOf(field, portKey{p.Protocol, p.Port}, ports, seen); err != nil {
				return err
			}
		}
	}
	return nil
}

func portsOf(s v1.VirtualServiceSpec) map[portKey]bool {
	out := map[portKey]bool{}
	for _, p := range s.Ports {
		out[keyOf(p)] = true
	}
	return out
}

// checkPortOf rejects a port of an instance that the virtual service does not have, or that is listed twice.
func (c *checker) checkPortOf(field string, key portKey, ports, seen map[portKey]bool) error {
	if !ports[key] {
		return c.wrong(field, "%s port %d is not in spec.ports: add it there", key.protocol, key.port)
	}
	if seen[key] {
		return c.wrong(field, "%s port %d occurs twice", key.protocol, key.port)
	}
	seen[key] = true
	return nil
}

// CheckTogether finds addresses that two virtual services share, or that are virtual in one and an instance's in
// another. Only changed virtual services are checked, against all future ones. Errors are *apierrors.Conflict.
func CheckTogether(all map[string]v1.VirtualService, changed []v1.VirtualService) error {
	owners, users := map[netip.Addr]string{}, map[netip.Addr]string{}
	for _, s := range changed {
		for addr := range virtualAddresses(s) {
			if other, taken := owners[addr]; taken {
				return addressTwice(addr, s.Metadata.Name, other)
			}
			owners[addr] = s.Metadata.Name
		}
		for addr := range instanceAddresses(s) {
			users[addr] = s.Metadata.Name
		}
	}
	for name, s := range all {
		for addr := range virtualAddresses(s) {
			if other, taken := owners[addr]; taken && other != name {
				return addressTwice(addr, name, other)
			}
			if user, used := users[addr]; used {
				return instanceIsVirtual(addr, user, name)
			}
		}
		for addr := range instanceAddresses(s) {
			if owner, taken := owners[addr]; taken {
				return instanceIsVirtual(addr, name, owner)
			}
		}
	}
	return nil
}

func addressTwice(addr netip.Addr, a, b string) error {
	return &apierrors.Conflict{Reason: fmt.Sprintf("VirtualServices %s and %s both have the address %v: change "+
		"one of them", min(a, b), max(a, b), addr)}
}

func instanceIsVirtual(addr netip.Addr, user, owner string) error {
	return &apierrors.Conflict{Reason: fmt.Sprintf("VirtualService %s: an instance has the address %v, which is a "+
		"virtual address of %s: "+
		"an instance needs its own address", user, addr, owner)}
}

// virtualAddresses returns the valid virtual addresses: invalid ones have been rejected, or come from the store of an
// older build.
func virtualAddresses(s v1.VirtualService) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for _, a := range s.Spec.Addresses {
			if addr, err := netip.ParseAddr(a.Address); err == nil && !yield(addr) {
				return
			}
		}
	}
}

// instanceAddresses returns the addresses of instances in the spec, which do not include those of Services of this
// node.
func instanceAddresses(s v1.VirtualService) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for _, i := range s.Spec.Instances {
			for _, text := range i.Addresses {
				if addr, err := netip.ParseAddr(text); err == nil && !yield(addr) {
					return
				}
			}
		}
	}
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// parseUnicast parses an address to which packets can be sent from other hosts.
func parseUnicast(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return a, fmt.Errorf("%q is not an address; write for example 10.30.0.2 or fdff:2000::2", text)
	case a.Is4In6():
		return a, fmt.Errorf("write %v instead of %s", a.Unmap(), text)
	case a.Zone() != "":
		return a, fmt.Errorf("%s has a zone, which no packet carries", text)
	case a.IsUnspecified(), a.IsMulticast(), a.IsLoopback(), a.IsLinkLocalUnicast(),
		a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return a, fmt.Errorf("%s is not an address that a packet from elsewhere can go to", text)
	}
	return a, nil
}

var errTwoOfFamily = errors.New("has two addresses of one family; an instance has one of IPv4, one of IPv6, or both")

// parseFamilies accepts at most one address of each family, and puts IPv4 first.
func parseFamilies(texts []string) ([]netip.Addr, error) {
	var out []netip.Addr
	for _, text := range texts {
		a, err := parseUnicast(text)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(out, func(o netip.Addr) bool { return o.Is4() == a.Is4() }) {
			return nil, errTwoOfFamily
		}
		out = append(out, a)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out, nil
}

// completed returns a spec with its defaults.
func completed(s v1.VirtualServiceSpec) v1.VirtualServiceSpec {
	s.Addresses, s.Ports, s.Instances = slices.Clone(s.Addresses), slices.Clone(s.Ports), slices.Clone(s.Instances)
	for n := range s.Addresses {
		a := &s.Addresses[n]
		if a.Instance == "" && a.Policy == "" {
			a.Policy = v1.PolicyRoundRobin
		}
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			a.Address = addr.String()
		}
	}
	completePorts(s.Ports)
	for n := range s.Instances {
		i := &s.Instances[n]
		i.Weight, i.TargetPorts = max(i.Weight, 1), slices.Clone(i.TargetPorts)
		completePorts(i.TargetPorts)
		i.ExcludedPorts = slices.Clone(i.ExcludedPorts)
		for m := range i.ExcludedPorts {
			i.ExcludedPorts[m].Protocol = cmp.Or(i.ExcludedPorts[m].Protocol, v1.ProtocolTCP)
		}
	}
	return s
}

func completePorts(all []v1.VirtualPort) {
	for n := range all {
		p := &all[n]
		if p.Protocol == "" {
			p.Protocol = v1.ProtocolTCP
		}
		if p.TargetPort == 0 {
			p.TargetPort = p.Port
		}
	}
}
