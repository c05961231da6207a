// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Resolvers are asked for virtual addresses that no VirtualService resource has.
type Resolvers struct {
	Oakestra *OakestraResolver `json:"oakestra,omitempty"` // nil: off
}

// OakestraResolver is Oakestra's table query over MQTT.
type OakestraResolver struct {
	Broker  string   `json:"broker,omitempty"`  // tcp://host:port, or ssl://host:port
	Node    string   `json:"node,omitempty"`    // id that the cluster gave to this node
	Address string   `json:"address,omitempty"` // of this node as the cluster knows it; those of its interfaces are known
	Ranges  []string `json:"ranges,omitempty"`  // of virtual addresses; default Oakestra's

	Username     string `json:"username,omitempty"`
	PasswordFile string `json:"passwordFile,omitempty"`
	CA           string `json:"ca,omitempty"`          // PEM file, for ssl; default the system's
	Certificate  string `json:"certificate,omitempty"` // PEM file, for brokers that want one
	Key          string `json:"key,omitempty"`         // PEM file
}

// OakestraRanges are Oakestra's: service and instance addresses of IPv4, service and instance addresses of IPv6.
var OakestraRanges = []string{"10.30.0.0/16", "fdff:2000::/21", "fdff::/21"}

// WithDefaults returns o with defaults.
func (o OakestraResolver) WithDefaults() OakestraResolver {
	if len(o.Ranges) == 0 {
		o.Ranges = slices.Clone(OakestraRanges)
	}
	return o
}

// An id is a level of MQTT topics, which + # and / would make something else.
var nodeID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

const maxNodeID = 128

func (o OakestraResolver) check() error {
	var wrong []error
	refuse := func(field, format string, args ...any) {
		wrong = append(wrong, invalid("resolvers.oakestra."+field, fmt.Sprintf(format, args...)))
	}
	u, err := url.Parse(o.Broker)
	if err != nil || u.Port() == "" || u.Scheme != "tcp" && u.Scheme != "ssl" {
		refuse("broker", "%q is not the address of a broker; write tcp://host:10003 or ssl://host:port", o.Broker)
	} else if u.Scheme == "tcp" && (o.CA != "" || o.Certificate != "") {
		refuse("broker", "ca and certificate are for encrypted connections: write ssl:// instead of tcp://")
	}
	if len(o.Node) > maxNodeID || !nodeID.MatchString(o.Node) {
		refuse("node", "%q is not the id of a node: letters, digits, . _ and -", o.Node)
	}
	if _, err := netip.ParseAddr(o.Address); o.Address != "" && err != nil {
		refuse("address", "%q is not an address", o.Address)
	}
	for i, text := range o.Ranges {
		if p, err := netip.ParsePrefix(text); err != nil || p != p.Masked() {
			known := strings.Join(OakestraRanges, " or ")
			refuse(fmt.Sprintf("ranges[%d]", i), "%q is not a network; write for example %s", text, known)
		}
	}
	if (o.Certificate == "") != (o.Key == "") {
		refuse("certificate", "certificate and key go together")
	}
	return errors.Join(wrong...)
}
