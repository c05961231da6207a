// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// translate converts a ClusterModule or Module to the agent's Module, which selects pods by the labels of their
// services; names.LabelNamespace selects the namespaces. With an error, it returns the reason for the report.
func translate(m api.Module, namespaces map[string]labels) (v1.Module, string, error) {
	out := v1.Module{
		TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindModule},
		Metadata: v1.ObjectMeta{Name: nodeName(m)},
		Spec:     v1.ModuleSpec{Package: m.Spec.Package.Name, CommonModuleSpec: m.Spec.CommonModuleSpec},
	}
	if m.Undecodable != "" {
		return out, api.Undecodable, fmt.Errorf("kerb-kube-node cannot decode the object: %s; write that field as the "+
			"definition of its version says, or update kerb-kube-node", m.Undecodable)
	}
	if m.TooLarge {
		return out, api.TooLarge, fmt.Errorf("the object has over %d bytes: shorten spec.config, write several Modules, or "+
			"use a ClusterModule", api.MaxSize)
	}
	if m.Omitted > 0 {
		return out, api.NoRoom, fmt.Errorf("the node has no room for the Module (%s): delete Modules, shorten spec.config, "+
			"or use a ClusterModule", moduleLimitsText)
	}
	var err error
	switch {
	case m.Metadata.Namespace != "":
		err = restrictToNamespace(&out, m)
	case m.Metadata.Name == names.Pending || reserved.MatchString(m.Metadata.Name):
		err = fmt.Errorf("metadata.name: %s is Kerb's own: choose another name", m.Metadata.Name)
	}
	if err != nil {
		return out, api.Invalid, err
	}
	if out.Spec.Package, err = packageOf(m.Spec.Package); err != nil {
		return out, api.Invalid, err
	}
	out.Spec.Attach.Services, err = selector(m, namespaces)
	return out, api.Invalid, err
}

var reserved = regexp.MustCompile(names.ReservedModules)

// nearPods is added to the priority of namespaced Modules, so that they are nearest to the pod: ClusterModules process
// packets to the pod before them, and packets from the pod after them.
const nearPods = -1_000_000

// restrictToNamespace limits a module to what an author with write access to a namespace may do.
func restrictToNamespace(out *v1.Module, m api.Module) error {
	switch of := m.Spec; {
	case of.Rollout != nil:
		return errors.New("spec.rollout: a Module is on all nodes: remove it, or use a ClusterModule")
	case of.Attach.Pods.Namespaces != nil:
		return errors.New("spec.attach.pods.namespaceSelector: a Module selects pods of its own namespace only: remove it, " +
			"or use a ClusterModule")
	case of.Package.Image == "" && !slices.Contains(api.ModulePackages, of.Package.Name):
		return fmt.Errorf("spec.package.name: a Module may use %s: use a ClusterModule for %s",
			strings.Join(api.ModulePackages, ", "), of.Package.Name)
	case of.Order.Priority < 0 || of.Order.Priority > api.MaxPriority:
		return fmt.Errorf("spec.order.priority: %d is not from 0 to %d", of.Order.Priority, api.MaxPriority)
	case of.Order.Direction == v1.OrderSame:
		return errors.New("spec.order.direction: same would reverse the order of ClusterModules, too: remove it")
	case of.Budget.Memory != "":
		return errors.New("spec.budget.memory: the memory is the node's: remove it, and the package's limit applies")
	}
	if field := findRestrictedField("spec.config", m.Spec.Config); field != "" && m.Spec.Package.Name == "firewall" {
		return fmt.Errorf("%s: a Module cannot refer to sets or services, whose tables all modules of the node share: write "+
			"addresses, prefixes or ports, or use a ClusterModule", field)
	}
	out.Spec.Order.Priority += nearPods
	out.Spec.Order.Before = inNamespace(m.Metadata.Namespace, m.Spec.Order.Before)
	out.Spec.Order.After = inNamespace(m.Metadata.Namespace, m.Spec.Order.After)
	return nil
}

// findRestrictedField returns the path of the first object with a field set or services in a config, or "". The config
// may be decoded JSON or text. Like encoding/json, it ignores the case of field names.
func findRestrictedField(path string, config any) string {
	switch c := config.(type) {
	case json.RawMessage:
		var decoded any
		_ = json.Unmarshal(c, &decoded) // cannot fail: it was decoded before
		return findRestrictedField(path, decoded)
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(c)) {
			if strings.EqualFold(key, "set") || strings.EqualFold(key, "services") {
				return path
			}
			if field := findRestrictedField(path+"."+key, c[key]); field != "" {
				return field
			}
		}
	case []any:
		for i, v := range c {
			if field := findRestrictedField(fmt.Sprintf("%s[%d]", path, i), v); field != "" {
				return field
			}
		}
	}
	return ""
}

func inNamespace(namespace string, modules []string) (out []string) {
	for _, name := range modules {
		out = append(out, names.Module(namespace, name))
	}
	return out
}

func packageOf(p api.Package) (string, error) {
	switch {
	case p.Image == "" && strings.ContainsRune(p.Name, '/'): // the agent would read it as a directory of the node
		return "", fmt.Errorf("spec.package.name: %q is no name of a built-in package", p.Name)
	case p.Image == "":
		return p.Name, nil
	case p.Name != "" || !strings.Contains(p.Image, "@sha256:"):
		return "", errors.New("spec.package: set exactly one of name, and image with a digest @sha256:...")
	}
	return p.Image, nil
}

// selector returns the label selector for the agent. It excludes pending services, which do not have the labels of
// their pods yet: a condition such as "not app=web" cannot be evaluated on them.
func selector(m api.Module, namespaces map[string]labels) (string, error) {
	conditions, s := []string{"!" + names.LabelPending}, m.Spec.Attach.Pods
	if m.Metadata.Namespace != "" {
		conditions = append(conditions, names.LabelNamespace+"="+m.Metadata.Namespace)
	} else if s.Namespaces == nil || len(s.Namespaces.MatchLabels)+len(s.Namespaces.Expressions) == 0 {
		conditions = append(conditions, names.LabelNamespace)
	} else {
		var matched []string
		for _, name := range slices.Sorted(maps.Keys(namespaces)) {
			if matches(*s.Namespaces, namespaces[name].set()) {
				matched = append(matched, name)
			}
		}
		if matched == nil { // no match so far: the module is applied and ready, but selects no pod
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
		text, err := requirementText(r)
		if err != nil {
			return "", fmt.Errorf("spec.attach.pods.podSelector.matchExpressions: %w", err)
		}
		conditions = append(conditions, text)
	}
	return validateLabel(strings.Join(conditions, ","), *s.Pods)
}

// validateLabel rejects text that is not a label key or value, since it could add conditions to the selector.
func validateLabel(text string, s api.LabelSelector) (string, error) {
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

// requirementText returns a requirement of a label selector in the text form of Kubernetes, which the agent parses. It
// rejects values with operators other than In and NotIn.
func requirementText(r api.Requirement) (string, error) {
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

// matches reports whether labels match a selector by the rules of Kubernetes: NotIn matches an absent label.
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
