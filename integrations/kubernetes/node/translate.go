// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// translate makes a ClusterModule the agent's Module: pods are selected by labels of their services, of which
// names.LabelNamespace stands for the namespaces that the selector matches.
func translate(m api.ClusterModule, namespaces map[string]labels) (v1.Module, error) {
	out := v1.Module{
		TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindModule},
		Metadata: v1.ObjectMeta{Name: m.Metadata.Name},
		Spec: v1.ModuleSpec{Package: m.Spec.Package.Name, Config: m.Spec.Config, Order: m.Spec.Order,
			FailurePolicy: m.Spec.FailurePolicy, Budget: m.Spec.Budget},
	}
	if m.Metadata.Name == names.Pending {
		return out, fmt.Errorf("metadata.name: %s is Kerb's own: choose another name", names.Pending)
	}
	if image := m.Spec.Package.Image; image != "" {
		if out.Spec.Package != "" || !strings.Contains(image, "@sha256:") {
			return out, errors.New("spec.package: set exactly one of name, and image with a digest @sha256:...")
		}
		out.Spec.Package = image
	}
	if strings.ContainsRune(m.Spec.Package.Name, '/') { // a directory of the node, to the agent
		return out, fmt.Errorf("spec.package.name: %q is no name of a built-in package", m.Spec.Package.Name)
	}
	var err error
	out.Spec.Attach.Services, err = selector(m.Spec.Attach.Pods, namespaces)
	return out, err
}

// selector is a label selector of the agent. Pending services have no labels of pods yet, by which a condition such as
// "not app=web" could be decided.
func selector(s api.PodSelector, namespaces map[string]labels) (string, error) {
	conditions := []string{"!" + names.LabelPending}
	if s.Namespaces == nil || len(s.Namespaces.MatchLabels)+len(s.Namespaces.Expressions) == 0 {
		conditions = append(conditions, names.LabelNamespace)
	} else {
		var matched []string
		for _, name := range slices.Sorted(maps.Keys(namespaces)) {
			if matches(*s.Namespaces, namespaces[name].set()) {
				matched = append(matched, name)
			}
		}
		if matched == nil { // not yet: the module is checked and ready, and selects nothing
			conditions = append(conditions, names.LabelNamespace, "!"+names.LabelNamespace)
		} else {
			conditions = append(conditions, names.LabelNamespace+" in ("+strings.Join(matched, ",")+")")
		}
	}
	if s.Pods == nil {
		return strings.Join(conditions, ","), nil
	}
	for _, key := range slices.Sorted(maps.Keys(s.Pods.MatchLabels)) {
		conditions = append(conditions, key+"="+s.Pods.MatchLabels[key])
	}
	for _, r := range s.Pods.Expressions {
		text, err := condition(r)
		if err != nil {
			return "", fmt.Errorf("spec.attach.pods.podSelector.matchExpressions: %w", err)
		}
		conditions = append(conditions, text)
	}
	return checked(strings.Join(conditions, ","), *s.Pods)
}

// checked refuses what is more than a key or a value: it would become conditions of its own.
func checked(text string, s api.LabelSelector) (string, error) {
	words := slices.Collect(maps.Keys(s.MatchLabels))
	for _, key := range words {
		words = append(words, s.MatchLabels[key])
	}
	keys := slices.Collect(maps.Keys(s.MatchLabels))
	for _, r := range s.Expressions {
		keys, words = append(keys, r.Key), append(append(words, r.Key), r.Values...)
	}
	for _, word := range words {
		if strings.ContainsAny(word, " \t\r\n!=<>(),") {
			return "", fmt.Errorf("spec.attach.pods.podSelector: %q is no key or value of a label", word)
		}
	}
	for _, key := range keys {
		if strings.HasPrefix(key, names.LabelPrefix) || key == "" {
			return "", fmt.Errorf("spec.attach.pods.podSelector: %q is no label of a pod", key)
		}
	}
	return text, nil
}

func condition(r api.Requirement) (string, error) {
	if (r.Operator == "In" || r.Operator == "NotIn") != (len(r.Values) > 0) {
		return "", fmt.Errorf("%s %s: In and NotIn need at least one value; Exists and DoesNotExist take none", r.Key,
			r.Operator)
	}
	switch r.Operator {
	case "In":
		return r.Key + " in (" + strings.Join(r.Values, ",") + ")", nil
	case "NotIn":
		return r.Key + " notin (" + strings.Join(r.Values, ",") + ")", nil
	case "Exists":
		return r.Key, nil
	case "DoesNotExist":
		return "!" + r.Key, nil
	}
	return "", fmt.Errorf("%s: operator %q is not In, NotIn, Exists or DoesNotExist", r.Key, r.Operator)
}

// matches reports whether labels meet a selector, as Kubernetes defines it: NotIn holds for an absent label.
func matches(s api.LabelSelector, set map[string]string) bool {
	for key, want := range s.MatchLabels {
		if got, ok := set[key]; !ok || got != want {
			return false
		}
	}
	for _, r := range s.Expressions {
		value, ok := set[r.Key]
		in := ok && slices.Contains(r.Values, value)
		switch r.Operator {
		case "In":
			ok = in
		case "NotIn":
			ok = !in
		case "Exists":
		case "DoesNotExist":
			ok = !ok
		default:
			ok = false
		}
		if !ok {
			return false
		}
	}
	return true
}
