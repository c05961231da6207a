// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "time"

// Chain is the ordered modules on one hook, linked into one program that runs on one or more attach points.
type Chain struct {
	ID        string        `json:"id" doc:"Hash over all inputs of the program: equal chains have equal identities"`
	Hook      string        `json:"hook" doc:"xdp, tc-ingress or tc-egress; or sockets"`
	Direction string        `json:"direction" doc:"egress: from the service; ingress: to the service; both on sockets"`
	Modules   []string      `json:"modules" doc:"In packet order"`
	Program   uint32        `json:"program" doc:"Kernel id of the entry program"`
	Cost      *float64      `json:"costNanoseconds,omitempty" doc:"Time that its modules add to the slowest kind of packet, as measured before they went live; absent until all are measured"`
	Parts     int           `json:"parts" doc:"Number of programs that the chain is split into; more than 1 only if it exceeds the verifier's limits, such as 64 maps for a program"`
	Points    []Attachment  `json:"points,omitempty" doc:"Where it runs"`
	Ready     bool          `json:"ready,omitempty" doc:"It runs nowhere, and was linked for a service that may come"`
	Latency   *Sampled      `json:"latency,omitempty" doc:"How long packets that were measured took in all of it: its parser, its modules and the verdict"`
	Counts    []ModuleCount `json:"counts,omitempty" doc:"Packets that reached its modules, in their order, since the chain was linked. The counts of a module continue those of chains that were replaced"`
}

// NodeCounts holds the counters, which change all the time, and a number that changes when anything else has changed.
type NodeCounts struct {
	Change  int64         `json:"change" doc:"Number of the newest change, 0 if there was none"`
	State   int64         `json:"state" doc:"Another number than before if something else than counters may have changed: resources, chains, where they are attached, conditions as far as the agent has evaluated them, or the agent has started"`
	Chains  []ChainCounts `json:"chains" doc:"By ID"`
	Modules []ModuleDrops `json:"modules" doc:"By name"`
}

// ChainCounts are the counters of a chain.
type ChainCounts struct {
	ID      string        `json:"id"`
	Latency *Sampled      `json:"latency,omitempty" doc:"As of the chain"`
	Counts  []ModuleCount `json:"counts,omitempty" doc:"As of the chain"`
}

// ModuleDrops are the packets that a module dropped.
type ModuleDrops struct {
	Module string `json:"module"`
	Drops  []Drop `json:"drops,omitempty" doc:"As in the status of the module"`
}

// Package is a package known to the node.
type Package struct {
	Name         string            `json:"name"`
	Version      string            `json:"version"`
	Digest       string            `json:"digest"`
	Source       string            `json:"source" doc:"builtin, the directory, or the reference of a pulled package"`
	Description  string            `json:"description,omitempty"`
	Hooks        []string          `json:"hooks"`
	Memory       int64             `json:"memoryBytes" doc:"Kernel memory of its maps at their compiled sizes, in bytes"`
	Capabilities []string          `json:"capabilities,omitempty" doc:"Capabilities that the agent provides to its control plane"`
	Queries      map[string]string `json:"queries,omitempty" doc:"Paths below /v1/modules/NAME/ that its control plane serves, with descriptions"`
	Config       map[string]any    `json:"configSchema,omitempty" doc:"JSON Schema of its configuration"`
	Pinned       string            `json:"pinned,omitempty" doc:"Of a pulled package, the reference that always means this content"`
	Owner        string            `json:"owner,omitempty" doc:"Program that has had it pulled; an operator if absent"`
	SignedBy     []string          `json:"signedBy,omitempty" doc:"Fingerprints of the node's keys that have signed it under its name"`
	Waived       bool              `json:"waived,omitempty" doc:"An operator has waived its signature"`
	Problem      string            `json:"problem,omitempty" doc:"Why it cannot be used"`
}

// PackageRequest names a package in a registry to pull into the node's store, or to remove from it.
type PackageRequest struct {
	Source string `query:"source" required:"true" maxLength:"512" doc:"Reference with a digest: REGISTRY/REPOSITORY@sha256:DIGEST"`
	Owner  string `query:"owner" required:"true" maxLength:"63" pattern:"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$" doc:"Program that requests the pull. It can remove only packages that were pulled for it"`
}

// PackageRemoved is the answer to the removal of a package.
type PackageRemoved struct {
	Source string `json:"source" doc:"Its reference"`
}

// NodeStatus is a summary of the agent's state.
type NodeStatus struct {
	Version         string        `json:"version"`
	Kernel          string        `json:"kernel"`
	PID             int           `json:"pid"`
	Uptime          string        `json:"uptime"`
	Modules         int           `json:"modules"`
	Services        int           `json:"services"`
	VirtualServices int           `json:"virtualServices"`
	Models          int           `json:"models"`
	Chains          int           `json:"chains"`
	Points          int           `json:"attachPoints"`
	Memory          int64         `json:"memoryBytes" doc:"Kernel memory of all maps, in bytes"`
	Conditions      []Condition   `json:"conditions"`
	Problems        []NodeProblem `json:"problems,omitempty" doc:"Everything that is wrong: of the agent, modules, services and virtual services"`
}

// NodeProblem is a problem that requires the operator's attention.
type NodeProblem struct {
	Kind    string    `json:"kind" doc:"Agent, Module, Service or VirtualService"`
	Name    string    `json:"name,omitempty"`
	Type    string    `json:"type" doc:"The condition that is in its problem state"`
	Reason  string    `json:"reason"`
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"since"`
}

// Change is one difference between the current and the requested state.
type Change struct {
	Action string `json:"action" enum:"create,update,delete,unchanged"`
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	Before any    `json:"before,omitempty" doc:"Spec and labels before, for update and delete with dryRun"`
	After  any    `json:"after,omitempty" doc:"Spec and labels after, for create and update with dryRun"`
}

// ApplyResult is the result of an apply or delete, which is executed completely or not at all.
type ApplyResult struct {
	DryRun  bool     `json:"dryRun"`
	Changes []Change `json:"changes"`
	Steps   []string `json:"steps" doc:"Steps performed in the kernel (or planned, with dryRun), in order"`

	Warnings []string `json:"warnings,omitempty" doc:"Accepted, but probably not what you intended"`

	Costs []CostChange `json:"costs,omitempty" doc:"With measure: current and new cost of the modules that the request changes"`
}

// CostChange is the cost of a module before and after a change, measured in immediate succession.
type CostChange struct {
	Module string `json:"module"`
	Before *Cost  `json:"before,omitempty" doc:"Absent if the node does not run the module, or it cannot be measured"`
	After  *Cost  `json:"after,omitempty" doc:"Absent if it cannot be measured"`
}

// TraceRequest selects the packets to trace, where, and for how long. Zero values match any packet.
type TraceRequest struct {
	Service  string `query:"service" doc:"Only this service; all attach points unless set"`
	Host     string `query:"host" doc:"Source or destination: an address, or a prefix such as 192.0.2.0/24"`
	Protocol string `query:"protocol" doc:"tcp, udp, icmp, icmpv6 or a number"`
	Port     uint16 `query:"port" maximum:"65535" doc:"Source or destination port"`
	Program  string `query:"program" maxLength:"16384" doc:"Classic BPF for the frame as it arrived, in the format of tcpdump -y EN10MB -ddd, with commas between lines"`
	Module   string `query:"module" doc:"Only packets that reached this module"`
	Verdict  string `query:"verdict" enum:"next,drop,reply,redirect," doc:"Of that module, or of any"`
	Reason   string `query:"reason" doc:"Of a drop, by that module or any; with after, also of the kernel"`
	Slower   string `query:"slowerThan" doc:"Only packets for which the modules of one chain together took longer: 50us, 1ms"`
	Bytes    int    `query:"bytes" minimum:"0" maximum:"256" doc:"Of each frame that are returned"`
	Count    int    `query:"count" minimum:"0" maximum:"100000" default:"100" doc:"Stop after this many packets"`
	Seconds  int    `query:"seconds" minimum:"1" maximum:"240" default:"30" doc:"Stop after this many seconds"`
	After    bool   `query:"after" doc:"Also report packets that the kernel dropped after their last chain; a warning where the kernel does not show that"`
	Messages bool   `query:"messages" doc:"Also messages, which programs send through sockets that modules on sockets have; without program. So it is if module is one of these"`
	Last     bool   `query:"last" doc:"Not packets that come: the last ones that chains have kept because they were slow, dropped, or got no verdict, oldest first. Without program"`
}

// DropsRequest selects dropped packets. Zero values match any packet.
type DropsRequest struct {
	Service  string `query:"service" doc:"Only this service"`
	Host     string `query:"host" doc:"Source or destination: an address, or a prefix such as 192.0.2.0/24"`
	Protocol string `query:"protocol" doc:"tcp, udp, icmp, icmpv6 or a number"`
	Port     uint16 `query:"port" maximum:"65535" doc:"Source or destination port"`
	Module   string `query:"module" doc:"That dropped the packet"`
	Reason   string `query:"reason"`
	Bytes    int    `query:"bytes" minimum:"0" maximum:"128" doc:"Of each frame that are returned"`
	Count    int    `query:"count" minimum:"1" maximum:"10000" default:"100" doc:"At most the last so many"`
}

// TraceLine is one line of a trace: a packet, the number of events lost so far, what the trace cannot show, or the
// reason why it ended.
type TraceLine struct {
	*TracedPacket
	Lost    uint64 `json:"lost,omitempty" doc:"Events lost since the start of the trace because the buffer was full; their packets are missing"`
	Warning string `json:"warning,omitempty" doc:"Requested parts that the trace cannot show, with the reason"`
	Error   string `json:"error,omitempty"`
}

// TracedPacket is a packet as it arrived at a chain, and the verdict of each module. In a trace it includes the other
// chains of this node that it traversed.
type TracedPacket struct {
	ID          string      `json:"id,omitempty" doc:"Of the packet, while the trace runs"`
	Time        time.Time   `json:"time" doc:"When it came"`
	Monotonic   int64       `json:"monotonic,omitempty" doc:"The same by the kernel's CLOCK_MONOTONIC, ns, as in bpftrace and pwru; this clock is never set, and so distinguishes packets"`
	Service     string      `json:"service,omitempty"`
	Interface   string      `json:"interface" doc:"Empty for a message"`
	Hook        string      `json:"hook" doc:"sockets: it is a message, which a program sends through a socket; without frame, by a module on sockets"`
	Direction   string      `json:"direction"`
	Length      uint32      `json:"length" doc:"Bytes of the frame, or of the message"`
	Protocol    string      `json:"protocol"`
	Source      string      `json:"source,omitempty"`
	Destination string      `json:"destination,omitempty"`
	TCPFlags    string      `json:"tcpFlags,omitempty" doc:"Letters as tcpdump prints them: S SYN, . ACK, F FIN, R RST, P PSH, U URG"`
	ICMPType    *uint8      `json:"icmpType,omitempty" doc:"Of ICMP and ICMPv6"`
	ICMPCode    *uint8      `json:"icmpCode,omitempty"`
	Outcome     string      `json:"outcome" doc:"How parsing ended; ok for plain packets"`
	Steps       []TraceStep `json:"steps"`
	Fingerprint string      `json:"fingerprint,omitempty" doc:"Hash of the fields that distinguish the packet and that neither forwarding nor offloads change, as it arrived. The same on every node"`
	Node        string      `json:"node,omitempty" doc:"In a trace that is joined from those of several nodes"`
	Nanoseconds uint64      `json:"nanoseconds,omitempty" doc:"Time of the chain with its parser, for a packet that was kept because it was slow"`
	LinkType    string      `json:"linkType,omitempty" doc:"Link type of the frame: ethernet, ieee802154, or none if it starts with the IP header"`
	Frame       []byte      `json:"frame,omitempty" doc:"Its first bytes, if they were requested"`

	KernelDrop *KernelDrop `json:"kernelDrop,omitempty" doc:"That the kernel dropped it after this chain, its last one, if that was requested"`

	Then []TracedPacket `json:"then,omitempty" doc:"The packet at the following chains, in order"`
}

// KernelDrop describes how the kernel dropped a packet that all modules passed.
type KernelDrop struct {
	Time     time.Time `json:"time"`
	Reason   string    `json:"reason" doc:"As the kernel names it (enum skb_drop_reason): NO_SOCKET, TCP_INVALID_SEQUENCE; the number of one without a name"`
	Function string    `json:"function,omitempty" doc:"Of the kernel, in which it was dropped"`
}

// ExplainRequest asks for the verdicts that the modules of a service would return for a packet.
type ExplainRequest struct {
	Packet    string `query:"packet" required:"true" doc:"Protocol, source > destination, options: tcp 198.51.100.7:40000 > 10.0.0.2:80 syn"`
	Service   string `query:"service" required:"true"`
	Direction string `query:"direction" enum:"ingress,egress," doc:"As seen by the service; by default the one in which it has an address of the packet"`
}

// ExplainedPacket holds the verdicts for a packet that would arrive now.
type ExplainedPacket struct {
	Packets []TracedPacket `json:"packets" doc:"The packet at each chain that it reaches"`
	Verdict string         `json:"verdict" enum:"pass,drop,reply,redirect" doc:"At the end"`
	Module  string         `json:"module,omitempty" doc:"That decided, unless it passes"`
	Reason  string         `json:"reason,omitempty" doc:"Of a drop"`
}

// TraceStep is one module's verdict.
type TraceStep struct {
	Module  string `json:"module"`
	Verdict string `json:"verdict"`
	Reason  string `json:"reason,omitempty" doc:"Of a drop"`

	Note  string `json:"note,omitempty" doc:"Note of the module about the packet: a name from its package, such as rule"`
	Value uint64 `json:"value,omitempty" doc:"Of the note"`
	Name  string `json:"name,omitempty" doc:"Of that value, from the module's control plane: of a rule, of an instance"`

	Nanoseconds uint64 `json:"nanoseconds,omitempty" doc:"That the module took, with about 20 for the clock"`

	Protocol    string `json:"protocol,omitempty" doc:"After the module, if it has changed it"`
	Source      string `json:"source,omitempty" doc:"After the module, if it has changed source or destination"`
	Destination string `json:"destination,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty" doc:"After the module, if it has changed it"`
	Interface   string `json:"interface,omitempty" doc:"That a redirect leads to"`
	Service     string `json:"service,omitempty" doc:"That the interface belongs to"`
}
