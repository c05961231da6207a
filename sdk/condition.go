// SPDX-License-Identifier: Apache-2.0

package sdk

// Conditioner is a Running that reports more than its health: state that the operator should see among the module's
// conditions, and that is no reason to restart the module or to roll it back.
type Conditioner interface {
	Conditions() ([]Condition, error)
}

// Condition is one aspect of the module's state, as in Kubernetes.
type Condition struct {
	Type    string `json:"type"`   // for example Fuse
	Status  string `json:"status"` // True, False or Unknown
	Reason  string `json:"reason"` // one CamelCase word
	Message string `json:"message,omitempty"`
}

// InstanceReporter is a Running that detects instances of virtual services that do not answer.
type InstanceReporter interface {
	Ejected() ([]EjectedInstance, error)
}

// EjectedInstance is an instance of a virtual service that gets no new connections for a while.
type EjectedInstance struct {
	Service  string `json:"service"` // the virtual service
	Instance string `json:"instance"`
	Reason   string `json:"reason"`
}

// HealthAnswer is the body of the answer to health.
type HealthAnswer struct {
	Conditions []Condition       `json:"conditions,omitempty"`
	Ejected    []EjectedInstance `json:"ejected,omitempty"`
}
