// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// KindVirtualService is the kind of a VirtualService.
const KindVirtualService = "VirtualService"

// VirtualService gives a group of instances virtual addresses. A module that uses virtual services (the proxy) sends
// packets for these addresses to an instance.
type VirtualService struct {
	TypeMeta
	Metadata ObjectMeta            `json:"metadata"`
	Spec     VirtualServiceSpec    `json:"spec"`
	Status   *VirtualServiceStatus `json:"status,omitempty" readOnly:"true"`
}

// Meta returns the metadata.
func (s *VirtualService) Meta() *ObjectMeta { return &s.Metadata }

// Content returns the spec.
func (s *VirtualService) Content() any { return s.Spec }

// ClearStatus removes the status.
func (s *VirtualService) ClearStatus() { s.Status = nil }

// VirtualServiceSpec maps virtual addresses to instances.
type VirtualServiceSpec struct {
	Addresses []VirtualAddress  `json:"addresses" minItems:"1" maxItems:"64" doc:"Virtual addresses; each may be used by one virtual service only"`
	Ports     []VirtualPort     `json:"ports,omitempty" maxItems:"1024" doc:"Served ports; if absent, all ports and protocols, without port translation"`
	Instances []VirtualInstance `json:"instances,omitempty" maxItems:"10000" doc:"Instances that serve the address"`
}

// VirtualAddress is one address, with either the policy that chooses among the instances or the one instance that it
// stands for.
type VirtualAddress struct {
	Address         string `json:"address" minLength:"1" doc:"IPv4 or IPv6 address"`
	Policy          Policy `json:"policy,omitempty" enum:"roundRobin,weighted,leastConnections,sourceAffinity,consistentHash,closest" doc:"Load-balancing policy for new connections; default roundRobin"`
	Instance        string `json:"instance,omitempty" doc:"Name of the instance that serves all connections to the address; excludes a policy"`
	AffinityTimeout string `json:"affinityTimeout,omitempty" pattern:"^([0-9]+[hms])+$" patternDescription:"a time such as 3h, 1h30m or 10800s" doc:"Session affinity: a new connection of a client goes to the instance of its last one to the same port, if that began less than this time ago and the instance accepts connections; 1s to 24h"`
}

// Policy chooses an instance for a new connection.
type Policy string

// Policies.
const (
	PolicyRoundRobin       Policy = "roundRobin"       // one after the other
	PolicyWeighted         Policy = "weighted"         // in proportion to the weights
	PolicyLeastConnections Policy = "leastConnections" // the one with the fewest sessions
	PolicySourceAffinity   Policy = "sourceAffinity"   // one client address, one instance
	// hashes addresses and ports; most connections keep their instance when others are added or removed
	PolicyConsistentHash Policy = "consistentHash"
	PolicyClosest        Policy = "closest" // the shortest distance; if none is stated, the shortest round-trip time
)

// VirtualPort maps a port that clients use to the port on which instances listen.
type VirtualPort struct {
	Port       uint16   `json:"port" minimum:"1" maximum:"65535" doc:"Port of the virtual address"`
	TargetPort uint16   `json:"targetPort,omitempty" minimum:"1" maximum:"65535" doc:"Port on the instances; default is the same port"`
	Protocol   Protocol `json:"protocol,omitempty" enum:"tcp,udp,sctp" doc:"Transport protocol; default tcp"`
}

// Protocol is a transport protocol with ports.
type Protocol string

// Protocols.
const (
	ProtocolTCP  Protocol = "tcp"
	ProtocolUDP  Protocol = "udp"
	ProtocolSCTP Protocol = "sctp"
)

// VirtualInstance is an instance behind a virtual service, identified by the names of virtual service and instance. A
// redeployed instance keeps its identity and gets other addresses.
type VirtualInstance struct {
	Name      string   `json:"name" minLength:"1" maxLength:"63" pattern:"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$" patternDescription:"lower-case letters, digits, dashes and dots, with a letter or digit at both ends" doc:"Unique in the virtual service"`
	Addresses []string `json:"addresses,omitempty" doc:"At most one of IPv4 and one of IPv6"`
	Service   string   `json:"service,omitempty" doc:"A Service of this node whose addresses are used; excludes addresses"`
	Node      string   `json:"node,omitempty" doc:"Address of the node where it runs, for tunnels; if absent, this node, or reachable by routing"`
	NodePort  int      `json:"nodePort,omitempty" minimum:"1" maximum:"65535" doc:"UDP port of the tunnel on that node; default: port of the tunnel module"`
	Weight    int      `json:"weight,omitempty" minimum:"1" maximum:"256" doc:"Share of new connections by policy weighted; default 1"`
	Distance  int      `json:"distance,omitempty" minimum:"1" maximum:"1000000" doc:"For policy closest: lower is closer, in any unit; if absent, the round-trip time is measured"`
	Draining  bool     `json:"draining,omitempty" doc:"Drain: existing connections continue, new ones go to other instances"`
	// TargetPorts applies to this instance only.
	TargetPorts []VirtualPort `json:"targetPorts,omitempty" maxItems:"64" doc:"Ports of the virtual service that this instance serves on a different target port"`
	// ExcludedPorts applies to this instance only.
	ExcludedPorts []ExcludedPort `json:"excludedPorts,omitempty" maxItems:"1024" doc:"Ports of the virtual service that this instance does not serve: new connections to them go to other instances"`
}

// ExcludedPort is a port of a virtual service that one of its instances does not serve.
type ExcludedPort struct {
	Port     uint16   `json:"port" minimum:"1" maximum:"65535" doc:"Port of the virtual address"`
	Protocol Protocol `json:"protocol,omitempty" enum:"tcp,udp,sctp" doc:"Transport protocol; default tcp"`
	Draining bool     `json:"draining,omitempty" doc:"Drain: all existing sessions to the port continue. Otherwise those of UDP get another instance"`
}

// VirtualServiceStatus is the observed state of a virtual service.
type VirtualServiceStatus struct {
	Conditions []Condition             `json:"conditions,omitempty"`
	Source     string                  `json:"source" doc:"Source of the mapping: static for applied resources, or the name of a resolver"`
	Instances  []VirtualInstanceStatus `json:"instances,omitempty"`
	Modules    []string                `json:"modules,omitempty" doc:"Modules that have applied its current state"`
}

// Sources of virtual services.
const (
	SourceStatic   = "static"   // applied resources
	SourceOakestra = "oakestra" // Oakestra's table query
)

// VirtualInstanceStatus is the result of resolving an instance.
type VirtualInstanceStatus struct {
	Name      string   `json:"name"`
	Addresses []string `json:"addresses,omitempty" doc:"Destination addresses of its packets"`
	Service   string   `json:"service,omitempty" doc:"The Service of this node that has one of these addresses"`
	Node      string   `json:"node,omitempty" doc:"Address of the remote node where it runs"`
	Draining  bool     `json:"draining,omitempty"`
	Ejected   string   `json:"ejected,omitempty" doc:"Why a module temporarily assigns it no new connections"`
	Reason    string   `json:"reason,omitempty" doc:"Why it has no address"`
}
