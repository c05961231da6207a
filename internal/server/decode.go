// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/danielgtaylor/huma/v2"
	"k8s.io/apimachinery/pkg/api/validate/content"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/decode"
	"github.com/kerb-edge/kerb/internal/fault"
	"github.com/kerb-edge/kerb/internal/models"
	"github.com/kerb-edge/kerb/internal/nearest"
	resolver "github.com/kerb-edge/kerb/internal/resolve"
	"github.com/kerb-edge/kerb/internal/yamldoc"
)

// Decode reads resources strictly: a JSON resource or list of them, or YAML with any number of documents, each a resource
// or a list. Unknown fields, wrong types, keys and names given twice are *fault.Invalid with their place, all of them joined. Status
// is dropped and defaults are set. Server and command line share it, so that both say the same about the same file.
func Decode(data []byte) (Request, error) {
	var r Request
	values, err := Documents(data)
	if err != nil {
		return r, err
	}
	var wrong []error
	for i, value := range values {
		wrong = append(wrong, add(&r, value, i+1))
	}
	if err := errors.Join(append(wrong, checkUnique(r))...); err != nil {
		return Request{}, err
	}
	return r, nil
}

// Documents returns the resources in data as JSON values, not yet looked into.
func Documents(data []byte) ([]any, error) {
	first := bytes.TrimLeft(data, " \t\r\n")
	if bytes.HasPrefix(first, []byte("{")) || bytes.HasPrefix(first, []byte("[")) {
		value, err := decode.JSON(data)
		return elements(value), err
	}
	var all []any
	for _, doc := range yamldoc.Split(data) {
		value, err := decode.YAML(doc)
		if err != nil {
			return nil, named(err, value)
		}
		all = append(all, elements(value)...)
	}
	return all, nil
}

// named is err with the resource that a document is.
func named(err error, value any) error {
	all := fault.Invalids(err)
	if object, ok := value.(map[string]any); ok {
		for _, e := range all {
			e.Resource = label(object, 1)
		}
	}
	return fault.Join(all)
}

// elements are those of a list, nothing for null, and otherwise the value itself.
func elements(value any) []any {
	switch value := value.(type) {
	case nil:
		return nil
	case []any:
		return value
	}
	return []any{value}
}

// add checks value against the schema of its kind and puts it into r.
func add(r *Request, value any, number int) error {
	object, ok := value.(map[string]any)
	if !ok {
		return &fault.Invalid{Resource: fmt.Sprintf("resource %d", number), Reason: "expected an object with apiVersion, kind, metadata and spec"}
	}
	name := label(object, number)
	if object["apiVersion"] != v1alpha1.APIVersion {
		return &fault.Invalid{Resource: name, Field: "apiVersion", Reason: "must be " + v1alpha1.APIVersion}
	}
	delete(object, "status") // answered, never asked for: what get printed can be applied again
	return errors.Join(checkLabels(object, name), addAs(r, object, name))
}

// kinds are the names that field kind may have.
var kinds = []string{v1alpha1.KindModule, v1alpha1.KindService, v1alpha1.KindVirtualService, v1alpha1.KindModel}

func addAs(r *Request, object map[string]any, name string) error {
	switch object["kind"] {
	case v1alpha1.KindModule:
		m, err := decodeAs[v1alpha1.Module](object, name)
		if err != nil {
			return err
		}
		setModuleDefaults(&m, object)
		r.expect(v1alpha1.KindModule, &m.Metadata)
		r.Modules = append(r.Modules, m)
		return nil
	case v1alpha1.KindService:
		s, err := decodeAs[v1alpha1.Service](object, name)
		if err != nil {
			return err
		}
		r.expect(v1alpha1.KindService, &s.Metadata)
		r.Services = append(r.Services, s)
		return checkService(s, name)
	case v1alpha1.KindVirtualService:
		s, err := decodeAs[v1alpha1.VirtualService](object, name)
		if err != nil {
			return err
		}
		r.expect(v1alpha1.KindVirtualService, &s.Metadata)
		r.VirtualServices = append(r.VirtualServices, s)
		return resolver.Check(s)
	case v1alpha1.KindModel:
		m, err := decodeAs[v1alpha1.Model](object, name)
		if err != nil {
			return err
		}
		r.expect(v1alpha1.KindModel, &m.Metadata)
		r.Models = append(r.Models, m)
		return models.Check(m)
	}
	kind, _ := object["kind"].(string)
	return &fault.Invalid{Resource: name, Field: "kind", Reason: "must be Module, Service, VirtualService or Model" + nearest.Hint(kind, kinds)}
}

// expect notes the version that a resource says it is, which is no part of what is stored.
func (r *Request) expect(kind string, meta *v1alpha1.ObjectMeta) {
	if meta.ResourceVersion == "" {
		return
	}
	if r.versions == nil {
		r.versions = map[Ref]string{}
	}
	r.versions[Ref{Kind: kind, Name: meta.Name}] = meta.ResourceVersion
	meta.ResourceVersion = ""
}

// checkLabels refuses labels that no selector could name. What is no label at all is left to the schema.
func checkLabels(object map[string]any, resource string) error {
	metadata, _ := object["metadata"].(map[string]any)
	labels, _ := metadata["labels"].(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		value, _ := labels[key].(string)
		if len(content.IsLabelKey(key))+len(content.IsLabelValue(value)) > 0 {
			return &fault.Invalid{Resource: resource, Field: "metadata.labels", Reason: fmt.Sprintf("no selector can name %q: %q; keys and values are up to 63 "+
				"letters, digits, - _ and ., beginning and ending with a letter or digit, and a key may have a prefix as in example.org/team", key, value)}
		}
	}
	return nil
}

// label names a resource that may be wrong in any way.
func label(object map[string]any, number int) string {
	kind, _ := object["kind"].(string)
	metadata, _ := object["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	if kind == "" || name == "" {
		return fmt.Sprintf("resource %d", number)
	}
	return kind + " " + name
}

// Labels names the resources that Documents has returned, as errors do.
func Labels(resources []any) []string {
	all := make([]string, len(resources))
	for i, r := range resources {
		object, _ := r.(map[string]any)
		all[i] = label(object, i+1)
	}
	return all
}

func decodeAs[T any](object map[string]any, name string) (v T, err error) {
	all := fault.Invalids(decode.Into(object, &v))
	for _, e := range all {
		e.Resource = name
	}
	return v, fault.Join(all)
}

// setModuleDefaults sets the defaults that the schema states.
func setModuleDefaults(m *v1alpha1.Module, object map[string]any) {
	if m.Spec.Hook == "" {
		m.Spec.Hook = v1alpha1.HookAuto
	}
	spec, _ := object["spec"].(map[string]any)
	order, _ := spec["order"].(map[string]any)
	if _, given := order["priority"]; !given {
		m.Spec.Order.Priority = v1alpha1.DefaultPriority
	}
}

func checkService(s v1alpha1.Service, name string) error {
	given := 0
	for _, set := range []bool{s.Spec.Netns != "", s.Spec.PID != 0, s.Spec.Interface != ""} {
		if set {
			given++
		}
	}
	if given != 1 {
		return &fault.Invalid{Resource: name, Field: "spec", Reason: "set exactly one of netns, pid and interface: that is how the service is found"}
	}
	if s.Spec.Netns != "" && !filepath.IsAbs(s.Spec.Netns) {
		return &fault.Invalid{Resource: name, Field: "spec.netns", Reason: fmt.Sprintf("%q is not an absolute path", s.Spec.Netns)}
	}
	return nil
}

func checkUnique(r Request) error {
	seen := map[string]bool{}
	for _, ref := range r.Refs() {
		name := ref.Kind + " " + ref.Name
		if seen[name] {
			return &fault.Invalid{Resource: name, Field: "metadata.name", Reason: "occurs twice in the request"}
		}
		seen[name] = true
	}
	return nil
}

// Expected names all resources of the request in the versions that they must have for it to be carried out.
func (r Request) Expected() []Ref {
	if !r.IfUnchanged {
		return nil
	}
	refs := r.Refs()
	for i := range refs {
		refs[i].ResourceVersion = cmp.Or(r.versions[refs[i]], absent)
	}
	return refs
}

// Refs names all resources of the request.
func (r Request) Refs() []Ref {
	refs := make([]Ref, 0, len(r.Modules)+len(r.Services)+len(r.VirtualServices)+len(r.Models))
	for _, m := range r.Modules {
		refs = append(refs, Ref{Kind: v1alpha1.KindModule, Name: m.Metadata.Name})
	}
	for _, s := range r.Services {
		refs = append(refs, Ref{Kind: v1alpha1.KindService, Name: s.Metadata.Name})
	}
	for _, s := range r.VirtualServices {
		refs = append(refs, Ref{Kind: v1alpha1.KindVirtualService, Name: s.Metadata.Name})
	}
	for _, m := range r.Models {
		refs = append(refs, Ref{Kind: v1alpha1.KindModel, Name: m.Metadata.Name})
	}
	return refs
}

// newRegistry returns the schemas of everything that a body may hold.
func newRegistry() huma.Registry {
	registry := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	for _, t := range []reflect.Type{reflect.TypeFor[v1alpha1.Module](), reflect.TypeFor[v1alpha1.Service](), reflect.TypeFor[v1alpha1.VirtualService](),
		reflect.TypeFor[v1alpha1.Model](), reflect.TypeFor[Ref]()} {
		registry.Schema(t, true, "")
	}
	return registry
}

// decodeRefs reads references as strictly as Decode reads resources.
func decodeRefs(data []byte) ([]Ref, error) {
	values, err := Documents(data)
	if err != nil {
		return nil, err
	}
	if len(values) == 0 {
		return nil, &fault.Invalid{Reason: "the request contains no reference"}
	}
	var refs []Ref
	for i, value := range values {
		name := fmt.Sprintf("reference %d", i+1)
		object, ok := value.(map[string]any)
		if !ok {
			return nil, &fault.Invalid{Resource: name, Reason: "expected an object with kind and name"}
		}
		ref, err := decodeAs[Ref](object, name)
		if err != nil {
			return nil, err
		}
		refs = append(refs, ref)
	}
	return refs, nil
}
