// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"strings"
)

// agentConfig separates the demo's agent from the machine's.
var agentConfig = fmt.Sprintf("paths: {state: %s, run: %s, bpf: %s}\n", stateIn, runDir, pinsIn)

// counterYAML returns a counter on every service. order is empty or a line of the spec.
func counterYAML(order string) string {
	if order != "" {
		order = "\n  " + order
	}
	return fmt.Sprintf(`apiVersion: kerb.dev/v1alpha1
kind: Module
metadata: {name: count}
spec:
  package: counter
  attach: {services: "*"}%s
`, order)
}

const (
	allowWeb   = `{name: web, action: allow, direction: ingress, protocol: tcp, dstPort: 8080}`
	allowAdmin = `{name: admin, action: allow, direction: ingress, protocol: tcp, dstPort: 9090}`
	allowIperf = `{name: iperf, action: allow, direction: ingress, protocol: tcp, dstPort: 5201}`
	wrongPort  = `{name: typo, action: allow, direction: ingress, protocol: tcp, dstPort: 80800}`
)

// firewallYAML returns a firewall for the servers, which drops ingress packets that no rule allows.
func firewallYAML(rules ...string) string {
	return `apiVersion: kerb.dev/v1alpha1
kind: Module
metadata: {name: fw}
spec:
  package: firewall
  attach: {services: tier=server}
  config:
    defaultPolicy: {ingress: deny, egress: allow}
    rules:
    - ` + strings.Join(rules, "\n    - ") + "\n"
}
