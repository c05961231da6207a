// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// KindSet is the kind of a Set.
const KindSet = "Set"

// Set is a named set of addresses, prefixes or ports that rules of modules refer to. Changing its elements changes no
// module: the agent writes them into maps while packets flow.
type Set struct {
	TypeMeta
	Metadata ObjectMeta `json:"metadata"`
	Spec     SetSpec    `json:"spec"`
	Status   *SetStatus `json:"status,omitempty" readOnly:"true"`
}

// Meta returns the metadata.
func (s *Set) Meta() *ObjectMeta { return &s.Metadata }

// Content returns the spec.
func (s *Set) Content() any { return s.Spec }

// ClearStatus removes the status.
func (s *Set) ClearStatus() { s.Status = nil }

// Parts returns what the store keeps separately: the elements.
func (s *Set) Parts() []string { return s.Spec.Elements }

// SetParts is the reverse of Parts.
func (s *Set) SetParts(parts []string) { s.Spec.Elements = parts }

// MaxSetElements is how many elements a set may have.
const MaxSetElements = 100000

// SetSpec is the content of a set.
type SetSpec struct {
	Type     string   `json:"type" enum:"addresses,prefixes,ports" doc:"Type of the elements"`
	Elements []string `json:"elements,omitempty" maxItems:"100000" doc:"IPv4 and IPv6 addresses, prefixes such as 192.0.2.0/24, or ports; empty in lists"`
}

// SetStatus is the status of a set.
type SetStatus struct {
	Conditions []Condition `json:"conditions,omitempty"`
	Elements   int         `json:"elements" doc:"How many it has"`
	Modules    []string    `json:"modules,omitempty" doc:"Modules whose rules refer to it"`
}

// SetChange adds and deletes elements of a set. Adding an element that exists, or deleting one that does not, is not an
// error.
type SetChange struct {
	Add    []string `json:"add,omitempty" maxItems:"100000" doc:"Elements to add"`
	Delete []string `json:"delete,omitempty" maxItems:"100000" doc:"Elements to delete"`
}

// SetChanged is the result of a SetChange.
type SetChanged struct {
	Added    int `json:"added" doc:"Elements that were not there before"`
	Deleted  int `json:"deleted" doc:"Elements that were there before"`
	Elements int `json:"elements" doc:"Elements of the set now"`
}
