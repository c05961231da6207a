// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// port maps a port of the node to one of a service.
type port struct {
	Protocol string `json:"protocol"` // tcp or udp
	Node     uint16 `json:"node"`
	Service  uint16 `json:"service"`
}

func (p port) String() string { return fmt.Sprintf("%d/%s", p.Node, p.Protocol) }

// maxPorts is far above what services request, and prevents that one of them takes all ports.
const maxPorts = 256

// parsePorts parses "80:8080/tcp;53/udp". Of each port, the service's defaults to the node's, and the protocol to tcp.
func parsePorts(text string) ([]port, error) {
	var all []port
	for part := range strings.SplitSeq(text, ";") {
		if part = strings.TrimSpace(part); part == "" {
			continue // as after a trailing semicolon
		}
		p, err := parsePort(part)
		if err != nil {
			return nil, &invalid{"portMappings", fmt.Sprintf("%q: %v; write NODE:SERVICE/PROTOCOL, for example 80:8080/tcp",
				part, err)}
		}
		if i := slices.IndexFunc(all, func(q port) bool { return q.String() == p.String() }); i < 0 {
			all = append(all, p)
		} else if all[i] != p {
			return nil, &invalid{"portMappings", fmt.Sprintf("port %s of the node has two destinations", p)}
		}
	}
	if len(all) > maxPorts {
		return nil, &invalid{"portMappings", fmt.Sprintf("%d ports; a service may have %d", len(all), maxPorts)}
	}
	return all, nil
}

// parsePort parses NODE[:SERVICE][/PROTOCOL]. The service's port defaults to the node's, the protocol to tcp.
func parsePort(text string) (p port, err error) {
	ports, protocol, given := strings.Cut(text, "/")
	if p.Protocol = protocol; !given {
		p.Protocol = "tcp"
	}
	if p.Protocol != "tcp" && p.Protocol != "udp" {
		return p, fmt.Errorf("%q is neither tcp nor udp", protocol)
	}
	node, service, both := strings.Cut(ports, ":")
	if !both {
		service = node
	}
	if p.Node, err = portNumber(node); err != nil {
		return p, err
	}
	p.Service, err = portNumber(service)
	return p, err
}

func portNumber(text string) (uint16, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is not a port from 1 to 65535", text)
	}
	return uint16(n), nil
}

// checkPorts rejects ports of other services. Instances of one service share ports: the first one has the port, and
// after its removal the next.
func (s *state) checkPorts(name string, ports []port) error {
	for _, other := range s.Services {
		for _, p := range other.Ports {
			taken := func(q port) bool { return q.String() == p.String() }
			if other.Name != name && slices.ContainsFunc(ports, taken) {
				return fmt.Errorf("portMappings: port %s of the node belongs to %s, instance %d", p, other.Name, other.Instance)
			}
		}
	}
	return nil
}
