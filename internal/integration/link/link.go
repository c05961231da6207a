// SPDX-License-Identifier: Apache-2.0

// Package link is what an integration's process and the agent exchange besides the API: what the process reports, and
// lookups of virtual addresses, for which it is a resolver. Both directions are JSON in pipes.
package link

import (
	"encoding/json"
	"io"
	"net/netip"
	"sync"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// LookupLimit is the time after which an address is unknown.
const LookupLimit = 5 * time.Second

// Record is a virtual service that a resolver found. Its name contains a dot, unlike names of resources.
type Record struct {
	Name string                `json:"name"`
	Spec v1.VirtualServiceSpec `json:"spec"`
	Keep bool                  `json:"keep,omitempty"` // also if no control plane uses it
}

// Request is what a resolver is to do.
type Request struct {
	Use     []string     `json:"use,omitempty"` // virtual services that were found before, and are in use
	Lookup  []netip.Addr `json:"lookup,omitempty"`
	Release []string     `json:"release,omitempty"` // virtual services that are not in use any more
}

// Result is what a resolver has found out: one of the fields.
type Result struct {
	Put      *Record    `json:"put,omitempty"`
	Delete   string     `json:"delete,omitempty"`
	NotFound netip.Addr `json:"notFound,omitzero"`
}

// Report is one message to the agent. The first one without a result means that the process serves.
type Report struct {
	Reason  string  `json:"reason,omitempty"` // empty: all is well
	Message string  `json:"message,omitempty"`
	Result  *Result `json:"result,omitempty"`
}

// Agent is the agent as a process of an integration has it. It is safe for concurrent use.
type Agent struct {
	requests *json.Decoder

	mu  sync.Mutex
	out *json.Encoder
}

// NewAgent returns an agent that is reached by these pipes.
func NewAgent(requests io.Reader, reports io.Writer) *Agent {
	return &Agent{requests: json.NewDecoder(requests), out: json.NewEncoder(reports)}
}

// Report is called once the integration has reached the agent and listens, and whenever what it reports has changed: a
// reason, as a condition has, if something is wrong, and a message.
func (a *Agent) Report(reason, message string) { a.write(Report{Reason: reason, Message: message}) }

// Resolved passes on a result of the integration as a resolver.
func (a *Agent) Resolved(r Result) { a.write(Report{Result: &r}) }

// write fails if the agent is gone, which ends this process.
func (a *Agent) write(r Report) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_ = a.out.Encode(r)
}

// Request waits for the next request to the integration as a resolver. An error is that the agent is gone.
func (a *Agent) Request() (q Request, err error) { return q, a.requests.Decode(&q) }
