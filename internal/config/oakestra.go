// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/kerb-edge/kerb/internal/paths"
)

// Oakestra is the listener that stands in for Oakestra's network manager. Its zero value listens on the default socket.
type Oakestra struct {
	Socket string `json:"socket,omitempty"` // absolute path
	TCP    string `json:"tcp,omitempty"`    // host:port; open to everybody who reaches it, unless there is tls
	TLS    *TCP   `json:"tls,omitempty"`    // as for the agent's own TCP listener, without address
	Bridge string `json:"bridge,omitempty"` // interface that services are connected to; made when needed
	// Alongside is the bridge of a NetManager on this node: its ports become services, and nothing else is done.
	Alongside string `json:"alongside,omitempty"`

	Subnet  string `json:"subnet,omitempty"`  // IPv4 addresses of the node's services, instead of the cluster's
	Subnet6 string `json:"subnet6,omitempty"` // the same for IPv6
	Address string `json:"address,omitempty"` // of this node as other nodes reach it; default: towards the cluster
	Port    int    `json:"port,omitempty"`    // of this node's tunnel, as other nodes reach it

	Ranges []string `json:"ranges,omitempty"` // of virtual addresses

	Broker OakestraBroker `json:"broker,omitzero"`

	Packages       []string `json:"packages,omitempty"`       // directories; their last parts are names of modules
	RequireModules bool     `json:"requireModules,omitempty"` // no service starts whose modules are unknown
	NetManager     string   `json:"netManager,omitempty"`     // directory of its configuration and socket
	AbstractorPort int      `json:"abstractorPort,omitempty"` // of the cluster's resource abstractor
}

// OakestraRanges are Oakestra's: service and instance addresses of IPv4, service and instance addresses of IPv6.
var OakestraRanges = []string{"10.30.0.0/16", "fdff:2000::/21", "fdff::/21"}

// OakestraBroker is how to connect to the MQTT broker of the cluster. NodeEngine knows its address.
type OakestraBroker struct {
	Port         int    `json:"port,omitempty"`
	TLS          bool   `json:"tls,omitempty"`         // implied by ca and certificate
	CA           string `json:"ca,omitempty"`          // PEM file; default the system's
	Certificate  string `json:"certificate,omitempty"` // PEM file, for brokers that want one
	Key          string `json:"key,omitempty"`         // PEM file
	Username     string `json:"username,omitempty"`
	PasswordFile string `json:"passwordFile,omitempty"`
}

// OakestraNode is what kerb-oakestra receives about its node, as JSON.
type OakestraNode struct {
	Paths       paths.Paths
	SocketGroup string
	Oakestra    Oakestra // with defaults
	// Of a check alone: the address of the cluster, unless the registration has it, and services to look up.
	Cluster  string   `json:",omitempty"`
	Services []string `json:",omitempty"`
}

// OakestraNode returns what kerb-oakestra receives. The section oakestra may be missing.
func (c Config) OakestraNode() OakestraNode {
	var o Oakestra
	if c.Oakestra != nil {
		o = *c.Oakestra
	}
	return OakestraNode{Paths: c.Paths, SocketGroup: c.SocketGroup, Oakestra: o.WithDefaults(c.Paths)}
}

// WithDefaults returns o with defaults: the socket unless TCP is configured, and Oakestra's first subnet of IPv6 if
// there is one of IPv4. Without them the cluster assigns both.
func (o Oakestra) WithDefaults(p paths.Paths) Oakestra {
	if o.Socket == "" && o.TCP == "" {
		o.Socket = p.OakestraSocket()
	}
	o.Bridge = cmp.Or(o.Bridge, "kerb-oakestra")
	o.NetManager = cmp.Or(o.NetManager, "/etc/netmanager")
	o.AbstractorPort = cmp.Or(o.AbstractorPort, 11012)
	if len(o.Ranges) == 0 {
		o.Ranges = slices.Clone(OakestraRanges)
	}
	if o.Subnet != "" {
		o.Subnet6 = cmp.Or(o.Subnet6, "fc00::/120")
	}
	return o
}

// The kernel takes nearly anything as name of an interface; this is what goes through files and shells unharmed.
var interfaceName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,14}$`)

func (o Oakestra) check() error {
	var wrong []error
	if o.Socket != "" && !filepath.IsAbs(o.Socket) {
		wrong = append(wrong, invalid("oakestra.socket", fmt.Sprintf("%q is not an absolute path", o.Socket)))
	}
	if !filepath.IsAbs(o.NetManager) {
		wrong = append(wrong, invalid("oakestra.netManager", fmt.Sprintf("%q is not an absolute path", o.NetManager)))
	}
	if !interfaceName.MatchString(o.Bridge) {
		wrong = append(wrong, invalid("oakestra.bridge", fmt.Sprintf(
			"%q is no name for an interface: a letter, then up to 14 of a-z, A-Z, 0-9, - and _", o.Bridge)))
	}
	if o.Alongside != "" && (!interfaceName.MatchString(o.Alongside) || o.Alongside == o.Bridge) {
		wrong = append(wrong, invalid("oakestra.alongside", fmt.Sprintf(
			"%q is not the name of NetManager's bridge, which is goProxyBridge unless changed", o.Alongside)))
	}
	for i, text := range o.Ranges {
		if p, err := netip.ParsePrefix(text); err != nil || p != p.Masked() {
			wrong = append(wrong, invalid(fmt.Sprintf("oakestra.ranges[%d]", i),
				fmt.Sprintf("%q is not a network; write for example 10.30.0.0/16", text)))
		}
	}
	return errors.Join(append(wrong, o.checkSubnets(), o.checkCluster(), o.checkPackages(), o.checkTCP())...)
}

func (o Oakestra) checkSubnets() error {
	switch {
	case o.Subnet == "" && o.Subnet6 != "":
		return invalid("oakestra.subnet6", "has no effect without oakestra.subnet")
	case o.Subnet == "":
		return nil
	}
	return errors.Join(checkSubnet("oakestra.subnet", o.Subnet, true),
		checkSubnet("oakestra.subnet6", o.Subnet6, false))
}

func (o Oakestra) checkCluster() error {
	var wrong []error
	if a, err := netip.ParseAddr(o.Address); o.Address != "" && (err != nil || a.IsUnspecified() || a.IsMulticast()) {
		wrong = append(wrong, invalid("oakestra.address", fmt.Sprintf("%q is not the address of a node", o.Address)))
	}
	for field, port := range map[string]int{"oakestra.port": o.Port, "oakestra.broker.port": o.Broker.Port,
		"oakestra.abstractorPort": o.AbstractorPort} {
		if port < 0 || port > 65535 {
			wrong = append(wrong, invalid(field, fmt.Sprintf("%d is not a port", port)))
		}
	}
	if (o.Broker.Certificate == "") != (o.Broker.Key == "") {
		wrong = append(wrong, invalid("oakestra.broker.certificate", "certificate and key go together"))
	}
	return errors.Join(wrong...)
}

// checkPackages demands names that are different.
func (o Oakestra) checkPackages() error {
	var wrong []error
	seen := map[string]bool{}
	for i, dir := range o.Packages {
		field := fmt.Sprintf("oakestra.packages[%d]", i)
		switch name := filepath.Base(dir); {
		case !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || dir == "/":
			wrong = append(wrong, invalid(field, fmt.Sprintf("%q is not the clean absolute path of a package", dir)))
		case seen[name]:
			wrong = append(wrong, invalid(field, fmt.Sprintf("another directory is called %s, too", name)))
		default:
			seen[name] = true
		}
	}
	return errors.Join(wrong...)
}

// checkSubnet demands room for the bridge, a service and what cannot be given to either.
func checkSubnet(field, text string, four bool) error {
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4() != four || p != p.Masked() {
		version := map[bool]string{true: "IPv4, as 10.18.0.0/26", false: "IPv6, as fc00::/120"}[four]
		return invalid(field, fmt.Sprintf("%q is not a network of %s", text, version))
	}
	if p.Addr().BitLen()-p.Bits() < 2 {
		return invalid(field, text+" has no room for services: at least four addresses are needed")
	}
	return nil
}

func (o Oakestra) checkTCP() error {
	if o.TCP == "" {
		if o.TLS != nil {
			return invalid("oakestra.tls", "has no effect without oakestra.tcp")
		}
		return nil
	}
	host, _, err := net.SplitHostPort(o.TCP)
	if err != nil {
		return invalid("oakestra.tcp", fmt.Sprintf("%q is not host:port", o.TCP))
	}
	if ip := net.ParseIP(host); o.TLS == nil {
		if host != "localhost" && !ip.IsLoopback() {
			return invalid("oakestra.tcp", fmt.Sprintf("%q is not a loopback address, and there is no authentication: "+
				"listen on 127.0.0.1, or set oakestra.tls", o.TCP))
		}
		return nil
	}
	if o.TLS.Address != "" {
		return invalid("oakestra.tls.address", "the address is that of oakestra.tcp")
	}
	if o.TLS.MetricsTokenFile != "" {
		return invalid("oakestra.tls.metricsTokenFile", "there are no metrics here: set tcp.metricsTokenFile")
	}
	t := *o.TLS
	t.Address = o.TCP
	return t.Check("oakestra.tls")
}
