// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 defines Kerb's resources, the single source for the YAML files, the REST API and the OpenAPI
// document. A resource consists of the desired state (spec), written by the operator, and the status, reported by the
// agent.
package v1alpha1

import (
	"slices"
	"time"
)

// APIVersion is the only value of apiVersion that this build accepts.
const APIVersion = "kerb.dev/v1alpha1"

// Kinds of resources.
const (
	KindModule  = "Module"
	KindService = "Service"
)

// TypeMeta names the schema of a resource.
type TypeMeta struct {
	APIVersion string `json:"apiVersion" enum:"kerb.dev/v1alpha1" doc:"Schema version"`
	Kind       string `json:"kind" doc:"Kind of resource"`
}

// ObjectMeta identifies a resource on its node.
type ObjectMeta struct {
	Name       string            `json:"name" minLength:"1" maxLength:"63" pattern:"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$" patternDescription:"lower-case letters, digits and dashes, with no dash at either end" doc:"Unique per kind on the node"`
	Labels     map[string]string `json:"labels,omitempty" doc:"Labels that selectors match"`
	Generation int64             `json:"generation,omitempty" readOnly:"true" doc:"Incremented with every change of the spec, starting at 1"`

	ResourceVersion string `json:"resourceVersion,omitempty" readOnly:"true" doc:"Changes with every change of the resource; the entity tag of the resource, compared by apply with ifUnchanged"`

	Owner string `json:"owner,omitempty" readOnly:"true" doc:"Owner of the resource, if not the user: only the owner can change it, others need force"`
}

// OwnerUser is the owner of resources that users apply.
const OwnerUser = "user"

// Module deploys a package on attach points of the node.
type Module struct {
	TypeMeta
	Metadata ObjectMeta    `json:"metadata"`
	Spec     ModuleSpec    `json:"spec"`
	Status   *ModuleStatus `json:"status,omitempty" readOnly:"true"`
}

// Meta returns the metadata.
func (m *Module) Meta() *ObjectMeta { return &m.Metadata }

// Content returns the spec.
func (m *Module) Content() any { return m.Spec }

// ClearStatus removes the status.
func (m *Module) ClearStatus() { m.Status = nil }

// ModuleSpec is the desired state of a module.
type ModuleSpec struct {
	Package string `json:"package" minLength:"1" doc:"Name of a built-in package, the absolute path of a package directory, or the reference of a pulled package"`
	CommonModuleSpec
	Attach Attach `json:"attach" doc:"Where the module is attached"`
	Hook   Hook   `json:"hook,omitempty" enum:"auto,xdp,tc" default:"auto" doc:"Kernel hook; auto selects TC for services, and for interfaces the first hook of the package"`
}

// CommonModuleSpec is the part of a module's spec that has the same meaning in files, in the agent's REST API, and in
// the custom resources of a Kubernetes cluster.
type CommonModuleSpec struct {
	Config        map[string]any `json:"config,omitempty" doc:"Configuration, checked against the schema in the package's manifest"`
	Order         Order          `json:"order,omitempty" doc:"Place in the chain"`
	FailurePolicy FailurePolicy  `json:"failurePolicy,omitempty" enum:"open,closed" doc:"What happens to packets while the module cannot run or returns no valid verdict; default is the package's"`
	Budget        Budget         `json:"budget,omitempty" doc:"Limits for the module; default is the package's"`
}

// Hook is where in the kernel a module runs.
type Hook string

// Hooks.
const (
	HookAuto Hook = "auto"
	HookXDP  Hook = "xdp"
	HookTC   Hook = "tc"
)

// FailurePolicy decides what happens to packets when a module returns no valid verdict or cannot be loaded.
type FailurePolicy string

// Failure policies.
const (
	FailOpen   FailurePolicy = "open"   // the packet continues as if the module were not there
	FailClosed FailurePolicy = "closed" // the packet is dropped
)

// Attach selects attach points. Its fields are combined: a point that any of them selects is selected.
type Attach struct {
	Services   string   `json:"services,omitempty" doc:"Label selector, for example app=web,tier in (edge,core); * selects every service"`
	Interfaces []string `json:"interfaces,omitempty" doc:"Interfaces of the node, by name"`
	Cgroups    []string `json:"cgroups,omitempty" doc:"Paths of cgroups (v2), for packages on sockets: applies to all sockets created in them from then on"`
}

// DefaultPriority is the priority of a module that does not set one.
const DefaultPriority = 100

// Order is the position of a module on its hook, as a distance from the service: packets from the service meet the
// nearest module first, packets to the service the farthest. Equal distances are ordered by name.
type Order struct {
	Priority  int            `json:"priority" required:"false" default:"100" doc:"Distance from the service: lower is nearer"`
	Before    []string       `json:"before,omitempty" doc:"Modules that are farther from the service than this one"`
	After     []string       `json:"after,omitempty" doc:"Modules that are nearer to the service than this one"`
	Direction OrderDirection `json:"direction,omitempty" enum:"mirrored,same" default:"mirrored" doc:"same: packets to the service traverse the chain in the order of packets from it, if set for any module of the chain"`
}

// OrderDirection relates the order of packets to a service to that of packets from it.
type OrderDirection string

// Order directions.
const (
	OrderMirrored OrderDirection = "mirrored"
	OrderSame     OrderDirection = "same"
)

// Budget limits what a module may use.
type Budget struct {
	Memory  string `json:"memory,omitempty" doc:"Kernel memory of its maps, for example 16Mi"`
	Latency string `json:"latency,omitempty" doc:"Time per packet, for example 200ns"`
}

// ModuleStatus is the status of a module.
type ModuleStatus struct {
	Conditions  []Condition   `json:"conditions,omitempty"`
	Package     PackageRef    `json:"package" doc:"The deployed package"`
	Attachments []Attachment  `json:"attachments,omitempty" doc:"One per attach point"`
	Memory      int64         `json:"memoryBytes" doc:"Kernel memory of the module's maps, in bytes"`
	Cost        *Cost         `json:"cost,omitempty" doc:"Measured cost of the module before it went live; absent until measured"`
	Counts      []ModuleCount `json:"counts,omitempty" doc:"Packets that reached the module, by hook and direction; absent on sockets"`
	Drops       []Drop        `json:"drops,omitempty" doc:"Packets dropped, by reason"`
	Events      *Events       `json:"events,omitempty" doc:"Events sent to the control plane; absent if the module sends none"`
	Views       []View        `json:"views,omitempty" doc:"How the page shows answers of its control plane"`
}

// View describes how the page shows a control plane's answer to a query.
type View struct {
	Title  string      `json:"title"`
	Query  string      `json:"query" doc:"Of the package"`
	Kind   string      `json:"kind" enum:"table,values,series" doc:"table: a row for each object of a list. values: the fields of an object. series: a graph of its numbers"`
	Rows   string      `json:"rows,omitempty" doc:"Field of the answer that holds the list or the object, such as stats.ports; the answer itself unless set"`
	Fields []ViewField `json:"fields,omitempty" doc:"All fields unless set"`
}

// ViewField is a column of a table, a value, or a line of a graph.
type ViewField struct {
	Field string `json:"field" doc:"Such as packets, or latency.p99Nanoseconds"`
	Name  string `json:"name,omitempty" doc:"The same as field unless set"`
	Unit  string `json:"unit,omitempty" enum:"bytes,nanoseconds," doc:"Of a number"`
	Rate  bool   `json:"rate,omitempty" doc:"A counter of which a series shows the change per second"`
}

// Events counts the events that a module sends to its control plane through ring buffers.
type Events struct {
	Sent uint64 `json:"sent"`
	Lost uint64 `json:"lost" doc:"Events lost because the ring buffer was full: the control plane was too slow or not running"`
}

// Cost is the result of test runs of a module with several kinds of packets.
type Cost struct {
	Latency    []Latency `json:"latency,omitempty" doc:"By hook and direction"`
	Memory     int64     `json:"memoryBytes" doc:"Kernel memory of its maps when it was measured, in bytes"`
	MeasuredAt time.Time `json:"measuredAt"`
}

// Latency is the time that a module adds to a packet.
type Latency struct {
	Hook      string  `json:"hook" enum:"xdp,tc"`
	Direction string  `json:"direction" enum:"egress,ingress" doc:"egress: from the service; ingress: to the service"`
	Worst     float64 `json:"worstNanoseconds" doc:"Average of the slowest kind of packet"`
	Packet    string  `json:"worstPacket" doc:"The slowest kind of packet"`
	Median    float64 `json:"medianNanoseconds" doc:"Average over all kinds of packets"`
	Least     float64 `json:"leastNanoseconds" doc:"Time of the slowest kind of packet in its best run; compared with the budget"`
}

// PackageRef identifies a package exactly.
type PackageRef struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Digest  string `json:"digest" doc:"sha256 of the manifest and the data plane objects"`
}

// Attachment is a module on one attach point.
type Attachment struct {
	Service   string `json:"service,omitempty"`
	Interface string `json:"interface"`
	Ifindex   int    `json:"ifindex"`
	Cgroup    string `json:"cgroup,omitempty" doc:"On sockets: the cgroup that the programs run on"`
	Hook      string `json:"hook" doc:"xdp, tc-ingress or tc-egress, as the kernel names it on this interface; or sockets"`
	Direction string `json:"direction" doc:"egress: from the service; ingress: to the service; both on sockets"`
	Chain     string `json:"chain" doc:"Identity of the chain on this attach point"`
	Position  int    `json:"position" doc:"Place in the chain, from 0"`
}

// ModuleCount counts the packets that reached a module, by verdict.
type ModuleCount struct {
	Module    string         `json:"module"`
	Hook      string         `json:"hook" enum:"xdp,tc-ingress,tc-egress"`
	Direction string         `json:"direction" enum:"egress,ingress" doc:"egress: from the service; ingress: to the service"`
	Packets   uint64         `json:"packets" doc:"Packets that reached the module"`
	Bytes     uint64         `json:"bytes" doc:"Their bytes, as they reached the first module of the chain"`
	Verdicts  []VerdictCount `json:"verdicts,omitempty" doc:"By verdict, without those that are zero"`
	Latency   *Sampled       `json:"latency,omitempty" doc:"How long the module took for packets that were measured; absent until there are some"`
}

// Sampled is the distribution of packet times; one packet in 4,096 is measured.
type Sampled struct {
	Packets uint64 `json:"packets" doc:"Packets that were measured"`
	P50     uint64 `json:"p50Nanoseconds" doc:"The median; at most a fourth too high, as p99"`
	P99     uint64 `json:"p99Nanoseconds" doc:"99 of 100 packets took at most this long"`
}

// VerdictCount counts the packets for which a module returned one verdict.
type VerdictCount struct {
	Verdict string `json:"verdict" enum:"next,drop,reply,redirect" doc:"next includes packets with an invalid verdict that failurePolicy open passes on, drop those that failurePolicy closed drops"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Drop counts the packets that a module dropped for one reason.
type Drop struct {
	Reason   string        `json:"reason"`
	Packets  uint64        `json:"packets" doc:"All drops, including those of services"`
	Services []ServiceDrop `json:"services,omitempty" doc:"By service. Drops on other interfaces of the node, drops of deleted services, and drops for which the per-service table was full are counted in packets only"`
}

// ServiceDrop counts the packets of one service that a module dropped for one reason.
type ServiceDrop struct {
	Service string `json:"service"`
	Packets uint64 `json:"packets"`
}

// Service is a workload of the node with its own network namespace.
type Service struct {
	TypeMeta
	Metadata ObjectMeta     `json:"metadata"`
	Spec     ServiceSpec    `json:"spec"`
	Status   *ServiceStatus `json:"status,omitempty" readOnly:"true"`
}

// Meta returns the metadata.
func (s *Service) Meta() *ObjectMeta { return &s.Metadata }

// Content returns the spec.
func (s *Service) Content() any { return s.Spec }

// ClearStatus removes the status.
func (s *Service) ClearStatus() { s.Status = nil }

// ServiceSpec says how to find the service. Exactly one of netns, pid and interface is set.
type ServiceSpec struct {
	Netns     string `json:"netns,omitempty" doc:"Path of the network namespace, for example /run/netns/web"`
	PID       int    `json:"pid,omitempty" minimum:"0" doc:"Id of a process in the network namespace"`
	Interface string `json:"interface,omitempty" doc:"Host-side interface, if the network namespace is unknown"`
}

// ServiceStatus is the observed state of a service.
type ServiceStatus struct {
	Conditions []Condition   `json:"conditions,omitempty"`
	Links      []ServiceLink `json:"links,omitempty" doc:"Host-side interfaces; empty while the service does not exist"`
	Addresses  []string      `json:"addresses,omitempty" doc:"Addresses inside the service, with prefix length"`
	Sockets    []string      `json:"sockets,omitempty" doc:"Modules attached to its sockets"`
	Drops      []ModuleDrop  `json:"drops,omitempty" doc:"Dropped packets of the service, by module and reason"`
}

// ModuleDrop counts the packets of a service that one module dropped for one reason.
type ModuleDrop struct {
	Module  string `json:"module"`
	Reason  string `json:"reason"`
	Packets uint64 `json:"packets"`
}

// ServiceLink is one host-side interface of a service and what runs on it.
type ServiceLink struct {
	Interface string      `json:"interface"`
	Ifindex   int         `json:"ifindex"`
	Peer      string      `json:"peer,omitempty" doc:"Name of the interface inside the service"`
	Moved     bool        `json:"moved,omitempty" doc:"The veth peer is no longer in the registered network namespace; the chain stays attached"`
	MTU       int         `json:"mtu"`
	Hooks     []HookState `json:"hooks,omitempty"`
}

// HookState is Kerb's chain on one hook, with the other programs on the hook.
type HookState struct {
	Hook     string   `json:"hook" doc:"xdp, tc-ingress or tc-egress"`
	Mode     string   `json:"mode" doc:"native, native-frags, generic, tcx or clsact"`
	Chain    string   `json:"chain"`
	Program  uint32   `json:"program" doc:"Kernel id of the linked program"`
	Modules  []string `json:"modules" doc:"In packet order"`
	Programs []string `json:"programs,omitempty" doc:"All programs on the hook in order, including foreign ones; lists leave them out"`
}

// Condition is one aspect of a resource's state, as in Kubernetes.
type Condition struct {
	Type    string    `json:"type" doc:"For example Ready"`
	Status  string    `json:"status" enum:"True,False,Unknown"`
	Reason  string    `json:"reason" doc:"Machine-readable reason, one CamelCase word"`
	Message string    `json:"message,omitempty" doc:"Human-readable explanation"`
	Since   time.Time `json:"lastTransitionTime" doc:"When the status last changed, since the agent started"`

	ObservedGeneration int64 `json:"observedGeneration,omitempty" doc:"The metadata.generation that the condition refers to"`
}

// Transition returns now with the transition times set, given the conditions before: the transition time of a condition
// changes only with its status, not with its reason or message.
func Transition(before, now []Condition) []Condition {
	out := slices.Clone(now)
	for i := range out {
		at := slices.IndexFunc(before, func(c Condition) bool { return c.Type == out[i].Type })
		if at >= 0 && before[at].Status == out[i].Status {
			out[i].Since = before[at].Since
		} else {
			out[i].Since = time.Now()
		}
	}
	return out
}
