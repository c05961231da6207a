// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/validate/content"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/decode"
	"github.com/kerb-edge/kerb/internal/yamldoc"
)

// Decode reads resources strictly: a JSON resource or list, or YAML with any number of documents, each a resource or a
// list. Unknown fields, wrong types, and duplicate keys and names are *apierrors.Invalid with their location, all of
// them joined. Status is dropped and defaults are set. Server and command line share it, so that both report the same
// errors for the same file.
func Decode(data []byte) ([]Object, error) {
	values, err := Documents(data)
	if err != nil {
		return nil, err
	}
	var all []Object
	var wrong []error
	for i, value := range values {
		o, err := decodeOne(value, i+1)
		if o != nil {
			all = append(all, o)
		}
		wrong = append(wrong, err)
	}
	if err := errors.Join(append(wrong, checkUnique(all))...); err != nil {
		return nil, err
	}
	return all, nil
}

// Documents returns the resources in data as JSON values, without checking them.
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

// named adds the resource in a document to err.
func named(err error, value any) error {
	if object, ok := value.(map[string]any); ok {
		return in(label(object, 1), err)
	}
	return err
}

// elements returns those of a list, nothing for null, and otherwise the value itself.
func elements(value any) []any {
	switch value := value.(type) {
	case nil:
		return nil
	case []any:
		return value
	}
	return []any{value}
}

// decodeOne checks value against the schema of its kind. It also returns a resource together with errors that the
// schema does not find.
func decodeOne(value any, number int) (Object, error) {
	object, ok := value.(map[string]any)
	if !ok {
		reason := "expected an object with apiVersion, kind, metadata and spec"
		return nil, &apierrors.Invalid{Resource: fmt.Sprintf("resource %d", number), Reason: reason}
	}
	name := label(object, number)
	if object["apiVersion"] != v1alpha1.APIVersion {
		return nil, &apierrors.Invalid{Resource: name, Field: "apiVersion", Reason: "must be " + v1alpha1.APIVersion}
	}
	delete(object, "status") // ignored, so that printed resources can be applied again
	text, _ := object["kind"].(string)
	kind, err := Find(text)
	if err != nil {
		return nil, errors.Join(checkLabels(object, name), in(name, err))
	}
	o := kind.New()
	if err := in(name, decode.Into(object, o)); err != nil {
		return nil, errors.Join(checkLabels(object, name), err)
	}
	return o, errors.Join(checkLabels(object, name), in(name, kind.complete(o, object)))
}

// checkLabels rejects labels that no selector could name. Values that are not labels at all are left to the schema.
func checkLabels(object map[string]any, resource string) error {
	metadata, _ := object["metadata"].(map[string]any)
	labels, _ := metadata["labels"].(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		value, _ := labels[key].(string)
		if len(content.IsLabelKey(key))+len(content.IsLabelValue(value)) > 0 {
			return &apierrors.Invalid{Resource: resource, Field: "metadata.labels",
				Reason: fmt.Sprintf("no selector can name %q: %q; keys and values are up to 63 "+
					"letters, digits, - _ and ., beginning and ending with a letter or digit, and a key may have a prefix as in "+
					"example.org/team", key, value)}
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

// DisplayNames returns the names of the resources that Documents has returned, for error messages.
func DisplayNames(resources []any) []string {
	all := make([]string, len(resources))
	for i, r := range resources {
		object, _ := r.(map[string]any)
		all[i] = label(object, i+1)
	}
	return all
}

// in returns the errors in err as those of a resource.
func in(resource string, err error) error {
	all := apierrors.Invalids(err)
	if len(all) == 0 {
		return err
	}
	for _, e := range all {
		e.Resource = resource
	}
	return apierrors.Join(all)
}

func checkUnique(all []Object) error {
	seen := map[Ref]bool{}
	for _, ref := range Refs(all) {
		if seen[ref] {
			return &apierrors.Invalid{Resource: ref.String(), Field: "metadata.name", Reason: "occurs twice in the request"}
		}
		seen[ref] = true
	}
	return nil
}

// DecodeSetChange reads a change of a set's elements, as Decode does resources.
func DecodeSetChange(data []byte) (change v1alpha1.SetChange, err error) {
	values, err := Documents(data)
	if err != nil {
		return change, err
	}
	if len(values) == 1 {
		if object, ok := values[0].(map[string]any); ok {
			err := decode.Into(object, &change)
			return change, err
		}
	}
	return change, &apierrors.Invalid{Reason: "expected one object with add or delete"}
}

// DecodeRefs reads references as strictly as Decode reads resources.
func DecodeRefs(data []byte) ([]Ref, error) {
	values, err := Documents(data)
	if err != nil {
		return nil, err
	}
	if len(values) == 0 {
		return nil, &apierrors.Invalid{Reason: "the request contains no reference"}
	}
	refs := make([]Ref, len(values))
	for i, value := range values {
		name := fmt.Sprintf("reference %d", i+1)
		object, ok := value.(map[string]any)
		if !ok {
			return nil, &apierrors.Invalid{Resource: name, Reason: "expected an object with kind and name"}
		}
		err := decode.Into(object, &refs[i])
		if err == nil {
			_, err = Find(refs[i].Kind)
		}
		if err != nil {
			return nil, in(name, err)
		}
	}
	return refs, nil
}
