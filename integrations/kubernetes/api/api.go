// SPDX-License-Identifier: Apache-2.0

// Package api defines Kerb's custom resources in a Kubernetes cluster. deploy/kubernetes/crds is generated from these
// types: tags contain descriptions, bounds and patterns; the generator, crd_test.go, has the rules over several fields.
package api

import (
	"encoding/json"
	"strings"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// Group, version and plural names, as in paths of the API server.
const (
	Group          = "kerb.dev"
	Version        = "v1alpha1"
	ClusterModules = "clustermodules"
	Modules        = "modules"
	KerbNodes      = "kerbnodes"
)

// What a Module of a namespace is limited to: those who write it do not administer nodes.
const (
	MaxModules  = 8        // in a namespace
	MaxSize     = 64 << 10 // bytes of the object, as JSON with its metadata but managedFields, and without its status
	MaxPriority = 1000     // and at least 0. All are nearer to the pod than ClusterModules of usual priorities
)

// MaxReports is the maximum number of modules in the status of a KerbNode.
const MaxReports = 10

// ModulePackages are the built-in packages that a namespaced Module may use: they affect only the pod's interface.
var ModulePackages = []string{"counter", "firewall", "responder"}

// ObjectMeta has the fields of an object's metadata that Kerb uses.
type ObjectMeta struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace,omitempty"`
	UID             string            `json:"uid,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     *Annotations      `json:"annotations,omitempty"`
	Generation      int64             `json:"generation,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Created         string            `json:"creationTimestamp,omitempty"` // RFC 3339, in UTC with seconds
	Deleted         string            `json:"deletionTimestamp,omitempty"`
}

// Annotations has the annotations that Kerb uses.
type Annotations struct {
	// Static is the UID of a static pod on its node. Its mirror pod in the API has a different UID.
	Static string `json:"kubernetes.io/config.mirror,omitempty"`
	// Proxy is "off" for a Service that kube-proxy keeps serving.
	Proxy string `json:"kerb.dev/proxy,omitempty"`
}

// Object is an object whose metadata alone is used.
type Object struct {
	Metadata ObjectMeta `json:"metadata"`
}

// Meta returns the metadata.
func (o *Object) Meta() *ObjectMeta { return &o.Metadata }

// Meta returns the metadata.
func (m *Module) Meta() *ObjectMeta { return &m.Metadata }

// Meta returns the metadata.
func (n *KerbNode) Meta() *ObjectMeta { return &n.Metadata }

// Module is a ClusterModule, which deploys a package on pods of all nodes, or with a namespace a Module, which deploys
// it on pods of that namespace. The CRD of Module rejects fields that are reserved for ClusterModules, and so does
// kerb-kube-node.
type Module struct {
	v1.TypeMeta
	Metadata ObjectMeta `json:"metadata"`
	Spec     ModuleSpec `json:"spec" doc:"Package and config of the module, and the pods that it is attached to"`
	// Status has the fields of a ClusterModule's status that nodes read.
	Status *ModuleStatus `json:"status,omitempty"`

	// Undecodable is the error if this program cannot decode the object, for example one of a later version. The fields
	// that could be decoded are set.
	Undecodable string `json:"undecodable,omitempty"`
	// TooLarge is set for a namespaced Module over MaxSize. Only its metadata is kept.
	TooLarge bool `json:"tooLarge,omitempty"`
	// Omitted is the memory, in bytes, that a namespaced Module would take if it exceeds the limits; 0 if it is kept.
	Omitted int `json:"omitted,omitempty"`
}

// Stored is a Module as stored by this program, with the fields that are not part of the API.
type Stored struct{ Module }

// UnmarshalJSON decodes a stored Module.
func (s *Stored) UnmarshalJSON(text []byte) error {
	type fields Module
	err := json.Unmarshal(text, (*fields)(&s.Module))
	if s.Metadata.Namespace != "" {
		s.pack()
	}
	return err
}

// UnmarshalJSON drops unused fields, so that authors of Modules cannot exhaust the memory of all nodes. It ignores
// fields that are not part of the API.
func (m *Module) UnmarshalJSON(text []byte) error {
	if len(text) > MaxSize {
		var o Object
		if json.Unmarshal(text, &o) == nil && o.Metadata.Namespace != "" && written(text) > MaxSize {
			*m = Module{Metadata: o.Metadata, TooLarge: true}
			m.Metadata.Labels, m.Metadata.Annotations = nil, nil
			return nil
		}
	}
	type fields Module
	err := json.Unmarshal(text, (*fields)(m))
	m.Metadata.Labels, m.Metadata.Annotations = nil, nil
	m.Undecodable, m.TooLarge, m.Omitted = "", false, 0
	if m.Metadata.Namespace != "" {
		m.pack()
	}
	return err
}

// pack replaces the fields of spec.config by their text: decoded, lists and objects take up to 20 times as much memory.
func (m *Module) pack() {
	for key, value := range m.Spec.Config {
		text, _ := json.Marshal(value) // decoded from JSON
		m.Spec.Config[key] = json.RawMessage(text)
	}
}

// Omit keeps only the metadata of a Module that would exceed the limits with this number of bytes.
func (m *Module) Omit(bytes int) { *m = Module{Metadata: m.Metadata, Omitted: bytes} }

// written returns the size of an object without the fields that the API server and kerb-kube-controller add: a status
// must not make it too large.
func written(text []byte) int {
	var o struct {
		Metadata struct {
			Managed json.RawMessage `json:"managedFields"`
		} `json:"metadata"`
		Status json.RawMessage `json:"status"`
	}
	_ = json.Unmarshal(text, &o) // it has been decoded before
	return len(text) - len(o.Metadata.Managed) - len(o.Status)
}

// Keep implements watch.Keeper: a protection must not be removed because its object cannot be decoded.
func (m *Module) Keep(err error) {
	// encoding/json names embedded structs, for which JSON has no level
	m.Undecodable = strings.ReplaceAll(err.Error(), "CommonModuleSpec.", "")
}

// ModuleStatus has the fields of ClusterModuleStatus that nodes watch.
type ModuleStatus struct {
	Rollout *RolloutStatus `json:"rollout,omitempty"`
}

// ModuleSpec is the spec of ClusterModules and Modules. Package and attach points differ from those of the agent's
// v1alpha1.ModuleSpec: they mean the same on every node. It has no hook: on pods, packages run on TC if they can. The
// chain that denies until the labels of a pod are known is there, too, so that one step replaces it.
type ModuleSpec struct {
	Package Package `json:"package" doc:"The package to deploy"`
	v1.CommonModuleSpec
	Attach  Attach   `json:"attach" doc:"Where the module is attached"`
	Rollout *Rollout `json:"rollout,omitempty" doc:"Nodes that run this package and config, while the others run the previous ones; absent: all nodes"`
}

// Package names a package: by name if it is built into the agent, otherwise by the digest of its content.
type Package struct {
	Name  string `json:"name,omitempty" maxLength:"63" doc:"Name of a package that is built into the agent, for example counter"`
	Image string `json:"image,omitempty" maxLength:"512" doc:"Package in a registry, with the digest of its content: registry/repository@sha256:..."`
}

// Attach selects attach points.
type Attach struct {
	Pods PodSelector `json:"pods" doc:"Pods with their own network namespace: those on the host network are not selected"`
}

// PodSelector selects pods that both selectors match. A selector that is absent or empty matches everything, as in
// NetworkPolicy.
type PodSelector struct {
	Namespaces *LabelSelector `json:"namespaceSelector,omitempty" doc:"By labels of the namespace; all namespaces if absent"`
	Pods       *LabelSelector `json:"podSelector,omitempty" doc:"By labels of the pod; all pods if absent"`
}

// LabelSelector is Kubernetes' label selector.
type LabelSelector struct {
	MatchLabels map[string]string `json:"matchLabels,omitempty" doc:"Labels that must have these values"`
	Expressions []Requirement     `json:"matchExpressions,omitempty" maxItems:"16" doc:"Conditions that must all hold"`
}

// Requirement is one condition of a selector.
type Requirement struct {
	Key      string   `json:"key" minLength:"1" maxLength:"317" doc:"Label key"`
	Operator string   `json:"operator" enum:"In,NotIn,Exists,DoesNotExist" doc:"Relation of the label to the values"`
	Values   []string `json:"values,omitempty" maxItems:"64" doc:"For In and NotIn"`
}

// KerbNode is the report of one node. It has the name of the Node. Its status does not grow with the number of pods.
type KerbNode struct {
	v1.TypeMeta
	Metadata ObjectMeta      `json:"metadata"`
	Status   *KerbNodeStatus `json:"status,omitempty" doc:"Written by the node when something has changed"`
}

// KerbNodeStatus is the state of a node.
type KerbNodeStatus struct {
	Conditions   []Condition    `json:"conditions,omitempty" maxItems:"8" doc:"Ready: the agent is in sync with the API server"`
	Kernel       string         `json:"kernel,omitempty" doc:"Release of the kernel"`
	Architecture string         `json:"architecture,omitempty" doc:"As Go names it: amd64, arm64"`
	Agent        string         `json:"agent,omitempty" doc:"Version of the agent"`
	Modules      []ModuleReport `json:"modules,omitempty" maxItems:"10" doc:"Modules that do not run as specified; at most ten"`
	Updated      []NodeVersion  `json:"updated,omitempty" maxItems:"100" doc:"New versions of rollouts that the node has begun with; at most 100. It runs one that is not among modules"`
	Checked      []NodeVersion  `json:"checked,omitempty" maxItems:"100" doc:"New versions of rollouts that the node could run, as its kernel has verified; at most 100"`
}

// NodeVersion is a new version that a node runs in a rollout.
type NodeVersion struct {
	Name    string `json:"name" doc:"Name of the ClusterModule"`
	Version string `json:"version" doc:"Hash of its package and config"`
}

// ModuleReport is a module that a node does not run as specified.
type ModuleReport struct {
	Name       string `json:"name" doc:"Name of the ClusterModule, or NAMESPACE/NAME of the Module"`
	Generation int64  `json:"generation" doc:"metadata.generation that the report is about"`
	Reason     string `json:"reason" doc:"Machine-readable reason, one CamelCase word"`
	Message    string `json:"message,omitempty" doc:"The problem, and what to do"`
}

// Condition is metav1.Condition.
type Condition struct {
	Type       string    `json:"type" doc:"For example Ready"`
	Status     string    `json:"status" enum:"True,False,Unknown" doc:"Whether it holds"`
	Generation int64     `json:"observedGeneration,omitempty" doc:"metadata.generation that it is about"`
	Reason     string    `json:"reason" doc:"Machine-readable reason, one CamelCase word"`
	Message    string    `json:"message" doc:"Human-readable explanation"`
	Transition time.Time `json:"lastTransitionTime" doc:"When the status last changed"`
}
