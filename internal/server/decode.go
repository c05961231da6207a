// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"sigs.k8s.io/yaml"

	"github.com/kerb-edge/kerb/api/v1alpha1"
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
		return jsonDocuments(data)
	}
	var all []any
	for _, doc := range yamldoc.Split(data) {
		data, err := yaml.YAMLToJSONStrict(doc)
		if err != nil {
			return nil, syntaxErrors(err)
		}
		values, err := jsonDocuments(data)
		if err != nil {
			return nil, err
		}
		if err := refuseOctals(values, doc); err != nil {
			return nil, err
		}
		all = append(all, values...)
	}
	return all, nil
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?line (\d+): (.*)$`)

// syntaxErrors are what the YAML parser has to say, with their lines.
func syntaxErrors(err error) error {
	var all []error
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimSpace(strings.TrimPrefix(line, "error converting YAML to JSON: "))
		match := yamlLine.FindStringSubmatch(line)
		switch {
		case match != nil:
			number, _ := strconv.Atoi(match[1])
			all = append(all, &fault.Invalid{Reason: match[2], Line: number})
		case line != "yaml: unmarshal errors:":
			all = append(all, &fault.Invalid{Reason: strings.TrimPrefix(line, "yaml: ")})
		}
	}
	return errors.Join(all...)
}

// refuseOctals refuses numbers that YAML 1.1 reads otherwise than people do.
func refuseOctals(values []any, doc []byte) error {
	var all []error
	for _, o := range yamldoc.Octals(doc) {
		invalid := &fault.Invalid{Field: o.Field, Reason: o.Error(), Line: o.Line, Column: o.Column}
		if object, ok := values[0].(map[string]any); ok && len(values) == 1 {
			invalid.Resource = label(object, 1)
		}
		all = append(all, invalid)
	}
	return errors.Join(all...)
}

// jsonDocuments reads one JSON value; a list is its elements and null is nothing.
func jsonDocuments(data []byte) ([]any, error) {
	value, err := decodeJSON(data)
	if err != nil {
		return nil, err
	}
	switch value := value.(type) {
	case nil:
		return nil, nil
	case []any:
		return value, nil
	}
	return []any{value}, nil
}

// decodeJSON reads one JSON value and refuses keys given twice, which encoding/json lets pass.
func decodeJSON(data []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	value, err := decodeValue(d, "", 0)
	if err != nil {
		return nil, explain(err, d.InputOffset())
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, &fault.Invalid{Reason: "there is something after the JSON value"}
	}
	return value, nil
}

func explain(err error, offset int64) error {
	var invalid *fault.Invalid
	switch {
	case errors.As(err, &invalid):
		return err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &fault.Invalid{Reason: "the JSON ends too early"}
	}
	return &fault.Invalid{Reason: fmt.Sprintf("not JSON: %v (at byte %d)", err, offset)}
}

// maxDepth is far more than any resource needs: decoding recurses, and a stack that overflows ends the agent.
const maxDepth = 64

func decodeValue(d *json.Decoder, path string, depth int) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	if depth > maxDepth {
		return nil, &fault.Invalid{Reason: fmt.Sprintf("nested more than %d deep", maxDepth)}
	}
	switch token {
	case json.Delim('{'):
		return decodeObject(d, path, depth+1)
	case json.Delim('['):
		return decodeList(d, path, depth+1)
	}
	if number, ok := token.(json.Number); ok {
		return decodeNumber(number, path)
	}
	return token, nil
}

// decodeNumber refuses integers that another would silently take the place of: numbers are kept as float64, which is exact up
// to 2^53.
func decodeNumber(number json.Number, path string) (any, error) {
	value, err := number.Float64()
	if err != nil {
		return nil, &fault.Invalid{Field: path, Reason: number.String() + " is beyond all numbers that there can be"}
	}
	if text := number.String(); !strings.ContainsAny(text, ".eE") && strconv.FormatFloat(value, 'f', 0, 64) != text {
		return nil, &fault.Invalid{Field: path, Reason: fmt.Sprintf("%s cannot be kept exactly, as all integers up to %d can", text, 1<<53)}
	}
	return value, nil
}

func decodeObject(d *json.Decoder, path string, depth int) (any, error) {
	object := map[string]any{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		key := token.(string) // a key is a string, or Token has failed
		field := strings.TrimPrefix(path+"."+key, ".")
		if _, ok := object[key]; ok {
			return nil, &fault.Invalid{Field: field, Reason: "given twice"}
		}
		if object[key], err = decodeValue(d, field, depth); err != nil {
			return nil, err
		}
	}
	_, err := d.Token()
	return object, err
}

func decodeList(d *json.Decoder, path string, depth int) (any, error) {
	list := []any{}
	for d.More() {
		value, err := decodeValue(d, fmt.Sprintf("%s[%d]", path, len(list)), depth)
		if err != nil {
			return nil, err
		}
		list = append(list, value)
	}
	_, err := d.Token()
	return list, err
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

func decodeAs[T any](object map[string]any, name string) (T, error) {
	var v T
	if wrong := validate(reflect.TypeFor[T](), object); len(wrong) > 0 {
		var all []error
		for _, err := range wrong {
			err.Resource = name
			all = append(all, err)
		}
		return v, errors.Join(all...)
	}
	data, err := json.Marshal(object)
	if err == nil {
		err = json.Unmarshal(data, &v)
	}
	var mismatch *json.UnmarshalTypeError // what the schema lets pass: integers beyond those of Go
	if errors.As(err, &mismatch) {
		return v, &fault.Invalid{Resource: name, Field: mismatch.Field, Reason: "cannot be a " + mismatch.Value}
	}
	if err != nil {
		return v, &fault.Invalid{Resource: name, Reason: err.Error()}
	}
	return v, nil
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
			return &fault.Invalid{Resource: name, Field: "metadata.name", Reason: "given twice in one request"}
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

// schemas of the resources, made once. Looking one up does not change them.
var schemas = sync.OnceValue(newRegistry)

// newRegistry returns the schemas of everything that a body may hold.
func newRegistry() huma.Registry {
	huma.ValidateStrictCasing = true // huma's own default takes SPEC for spec
	registry := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	for _, t := range []reflect.Type{reflect.TypeFor[v1alpha1.Module](), reflect.TypeFor[v1alpha1.Service](), reflect.TypeFor[v1alpha1.VirtualService](),
		reflect.TypeFor[v1alpha1.Model](), reflect.TypeFor[Ref]()} {
		registry.Schema(t, true, "")
	}
	return registry
}

// validate checks value, as decoded from JSON, against the schema of t and returns the mistakes by place.
func validate(t reflect.Type, value any) []*fault.Invalid {
	registry, schema := schemas(), schemas().Schema(t, true, "")
	result := &huma.ValidateResult{}
	huma.Validate(registry, schema, huma.NewPathBuffer(nil, 0), huma.ModeWriteToServer, value, result)
	var all []*fault.Invalid
	meant := map[string]bool{} // fields whose names are misspelt: that they are missing is the same mistake
	for _, err := range result.Errors {
		var detail *huma.ErrorDetail
		if !errors.As(err, &detail) {
			continue
		}
		reason := detail.Message
		if reason == validation.MsgUnexpectedProperty {
			known := knownFields(registry, schema, detail.Location)
			parent, name := splitField(detail.Location)
			hint := nearest.To(name, known)
			meant[parent+fmt.Sprintf(validation.MsgExpectedRequiredProperty, hint)] = true
			reason = "unknown field; known are " + strings.Join(known, ", ") + nearest.Hint(name, known)
		}
		all = append(all, &fault.Invalid{Field: detail.Location, Reason: reason})
	}
	all = slices.DeleteFunc(all, func(e *fault.Invalid) bool { return meant[e.Field+e.Reason] })
	slices.SortStableFunc(all, func(a, b *fault.Invalid) int { return cmp.Compare(a.Field, b.Field) })
	return all
}

// splitField separates the last name of a path from what is above it.
func splitField(field string) (parent, name string) {
	if i := strings.LastIndex(field, "."); i >= 0 {
		return field[:i], field[i+1:]
	}
	return "", field
}

// knownFields lists the fields beside the one at location.
func knownFields(registry huma.Registry, schema *huma.Schema, location string) []string {
	steps := strings.Split(location, ".")
	for _, step := range steps[:len(steps)-1] {
		name, _, _ := strings.Cut(step, "[")
		schema = resolve(registry, schema)
		if next := schema.Properties[name]; next != nil {
			schema = resolve(registry, next)
		}
		if schema.Items != nil {
			schema = schema.Items
		}
	}
	var names []string
	for name, property := range resolve(registry, schema).Properties {
		if !property.ReadOnly {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func resolve(registry huma.Registry, schema *huma.Schema) *huma.Schema {
	for schema.Ref != "" {
		schema = registry.SchemaFromRef(schema.Ref)
	}
	return schema
}

// decodeRefs reads references as strictly as Decode reads resources.
func decodeRefs(data []byte) ([]Ref, error) {
	values, err := Documents(data)
	if err != nil {
		return nil, err
	}
	if len(values) == 0 {
		return nil, &fault.Invalid{Reason: "there is no reference in the request"}
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
