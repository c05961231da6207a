// SPDX-License-Identifier: Apache-2.0

// Package resource is the registry of kinds of resources. Each kind has one file that declares its specifics, from
// which routes, decoding, storage, differences and the commands of every kind are derived.
package resource

import (
	"reflect"
	"strings"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/suggest"
)

// kinds are all kinds, in the order in which documents and `kerb get all` list them. To add a kind, write its file and
// add it here.
var kinds = []Kind{
	Module,
	Service,
	VirtualService,
	Model,
	Set,
}

// VersionsKept is the number of earlier versions of a resource that are kept, for kinds that archive them.
const VersionsKept = 5

// Object is one resource: a pointer to a struct with the fields of v1alpha1.Module.
type Object interface {
	Meta() *v1alpha1.ObjectMeta
	Content() any // the spec
	ClearStatus()
}

// Kind is a kind of resources, independent of its Go type.
type Kind interface {
	Names() Names
	Type() reflect.Type // of the struct
	New() Object
	IsKind(Object) bool   // reports whether it is of this kind
	Copy(o Object) Object // for setting the status
	// InKernel reports whether changes are planned and executed in the kernel. Resources of other kinds are only stored
	// and announced.
	InKernel() bool
	// Applied reports whether a client applied the resource; the agent discovers others.
	Applied(Object) bool
	// Summary returns what differences show: the labels, and the spec or a summary of it.
	Summary(Object) map[string]any
	// Trim removes the fields that lists omit, and reports whether lists omit any.
	Trim(Object) bool
	// Archives reports whether earlier versions are kept.
	Archives() bool
	// Archive returns what to keep of old when next replaces it; ok is false if nothing is kept.
	Archive(old, next Object) (v v1alpha1.ModelVersion, document string, ok bool)
	// Restore restores a copy of a resource to an earlier generation.
	Restore(o Object, generation int64, document string)
	// Header and Row are the table that commands print; Wide are further columns of -o wide.
	Header() (narrow, wide []any)
	Row(Object) (narrow, wide []any)

	complete(o Object, given map[string]any) error
	checkAll(next State, asked, changed []Object) ([]string, error)
}

// Definition defines the kind of T, whose pointer is an Object. Only Name and Short are required.
type Definition[T any] struct {
	Name     string   // of the field kind, for example VirtualService
	Words    string   // for display: virtual service; the name in lower case by default
	Short    string   // description for the command's help
	Aliases  []string // for the command line
	ListNote string   // what lists contain or omit, for the API's description

	Kernel bool // see Kind.InKernel

	// Complete sets defaults and checks what the schema cannot. given is the resource as the client sent it.
	Complete func(r *T, given map[string]any) error
	// CheckAll checks the requested resources, of which those in changed are different, against all future ones.
	CheckAll func(next State, asked, changed []T) (warnings []string, err error)
	// Summarize returns the summary of the spec in differences; the spec itself by default.
	Summarize func(*T) any
	// Shorten removes the fields that lists omit.
	Shorten func(*T)
	// IsApplied is Kind.Applied; true by default.
	IsApplied func(*T) bool
	// Keep is Kind.Archive; nothing is kept by default.
	Keep func(old, next *T) (v1alpha1.ModelVersion, string, bool)
	// SetDocument is Kind.Restore of the spec.
	SetDocument func(r *T, document string)

	Columns []Column[T] // after the name
}

// Column is a column of the table that commands print.
type Column[T any] struct {
	Header string
	Cell   func(*T) any
	Wide   bool // with -o wide only
}

// Names are the names of a kind.
type Names struct {
	Kind     string   // VirtualService
	Noun     string   // virtualservice
	Plural   string   // virtualservices, in paths and for the store's bucket
	Words    string   // virtual service
	Short    string   // see Definition
	Aliases  []string // vs
	ListNote string
}

// Names implements Kind.
func (d *Definition[T]) Names() Names {
	noun := strings.ToLower(d.Name)
	words := d.Words
	if words == "" {
		words = noun
	}
	return Names{Kind: d.Name, Noun: noun, Plural: noun + "s", Words: words,
		Short: d.Short, Aliases: d.Aliases, ListNote: d.ListNote}
}

// Type implements Kind.
func (d *Definition[T]) Type() reflect.Type { return reflect.TypeFor[T]() }

// New implements Kind.
func (d *Definition[T]) New() Object { return any(new(T)).(Object) }

// IsKind implements Kind.
func (d *Definition[T]) IsKind(o Object) bool {
	_, ok := any(o).(*T)
	return ok
}

// Copy implements Kind.
func (d *Definition[T]) Copy(o Object) Object { return ObjectOf(*typed[T](o)) }

// InKernel implements Kind.
func (d *Definition[T]) InKernel() bool { return d.Kernel }

// Applied implements Kind.
func (d *Definition[T]) Applied(o Object) bool { return d.IsApplied == nil || d.IsApplied(typed[T](o)) }

// Summary implements Kind.
func (d *Definition[T]) Summary(o Object) map[string]any {
	content := o.Content()
	if d.Summarize != nil {
		content = d.Summarize(typed[T](o))
	}
	return map[string]any{"labels": o.Meta().Labels, "spec": content}
}

// Trim implements Kind.
func (d *Definition[T]) Trim(o Object) bool {
	if d.Shorten == nil {
		return false
	}
	d.Shorten(typed[T](o))
	return true
}

// Archives implements Kind.
func (d *Definition[T]) Archives() bool { return d.Keep != nil }

// Archive implements Kind.
func (d *Definition[T]) Archive(old, next Object) (v v1alpha1.ModelVersion, document string, ok bool) {
	return d.Keep(typed[T](old), typed[T](next))
}

// Restore implements Kind.
func (d *Definition[T]) Restore(o Object, generation int64, document string) {
	o.Meta().Generation = generation
	d.SetDocument(typed[T](o), document)
}

// Header implements Kind.
func (d *Definition[T]) Header() (narrow, wide []any) {
	narrow, wide = d.cells("NAME", func(c Column[T]) any { return c.Header })
	return narrow, append(wide, "OWNER")
}

// Row implements Kind.
func (d *Definition[T]) Row(o Object) (narrow, wide []any) {
	narrow, wide = d.cells(o.Meta().Name, func(c Column[T]) any { return c.Cell(typed[T](o)) })
	return narrow, append(wide, OwnerOf(o))
}

func (d *Definition[T]) cells(first any, cell func(Column[T]) any) (narrow, wide []any) {
	narrow = []any{first}
	for _, c := range d.Columns {
		if c.Wide {
			wide = append(wide, cell(c))
		} else {
			narrow = append(narrow, cell(c))
		}
	}
	return narrow, wide
}

func (d *Definition[T]) complete(o Object, given map[string]any) error {
	if d.Complete == nil {
		return nil
	}
	return d.Complete(typed[T](o), given)
}

func (d *Definition[T]) checkAll(next State, asked, changed []Object) ([]string, error) {
	if d.CheckAll == nil {
		return nil, nil
	}
	return d.CheckAll(next, d.Of(asked), d.Of(changed))
}

func typed[T any](o Object) *T { return any(o).(*T) }

// ObjectOf returns a resource as an Object.
func ObjectOf[T any](r T) Object { return any(&r).(Object) }

// Objects returns resources as Objects.
func Objects[T any](all ...T) []Object {
	out := make([]Object, len(all))
	for i, r := range all {
		out[i] = ObjectOf(r)
	}
	return out
}

// Kinds returns all kinds.
func Kinds() []Kind { return kinds }

// KindOf returns the kind of a resource.
func KindOf(o Object) Kind {
	for _, k := range kinds {
		if k.IsKind(o) {
			return k
		}
	}
	panic("resource of a kind that is not registered")
}

// Find returns the kind of a name. The error is *apierrors.Invalid.
func Find(name string) (Kind, error) {
	all := KindNames()
	for i, k := range kinds {
		if all[i] == name {
			return k, nil
		}
	}
	last := len(all) - 1
	reason := "must be " + strings.Join(all[:last], ", ") + " or " + all[last] + suggest.DidYouMean(name, all)
	return nil, &apierrors.Invalid{Field: "kind", Reason: reason}
}

// KindNames lists the values of the field kind.
func KindNames() []string {
	out := make([]string, len(kinds))
	for i, k := range kinds {
		out[i] = k.Names().Kind
	}
	return out
}
