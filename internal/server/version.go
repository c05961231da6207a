// SPDX-License-Identifier: Apache-2.0

package server

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/fault"
	"github.com/kerb-edge/kerb/internal/store"
)

// Values of Ref.ResourceVersion that are no version.
const (
	absent  = "0" // the resource must not exist
	present = "*" // it must exist, in any version
)

// versionOf is a resource's metadata.resourceVersion: its generation, and a digest of what the operator wrote, so that a resource
// that was deleted and created again has another one.
func versionOf(meta v1alpha1.ObjectMeta, spec any) string {
	data, err := json.Marshal(map[string]any{"labels": meta.Labels, "spec": spec})
	if err != nil {
		return "" // of a resource that came as JSON
	}
	sum := sha256.Sum256(data)
	return fmt.Sprintf("%d-%x", meta.Generation, sum[:6])
}

func moduleVersion(m *v1alpha1.Module) string   { return versionOf(m.Metadata, m.Spec) }
func serviceVersion(s *v1alpha1.Service) string { return versionOf(s.Metadata, s.Spec) }
func virtualVersion(s *v1alpha1.VirtualService) string {
	return versionOf(s.Metadata, s.Spec)
}

// modelVersion is empty for a model without its document, as lists have it.
func modelVersion(m *v1alpha1.Model) string {
	if m.Spec.Document == "" {
		return ""
	}
	return versionOf(m.Metadata, m.Spec)
}

// CheckUnchanged returns *fault.Changed for the first reference whose version is not the one in d.
func CheckUnchanged(d store.Desired, refs []Ref) error {
	for _, ref := range refs {
		now := currentVersion(d, ref)
		if ref.ResourceVersion == "" || ref.ResourceVersion == now || ref.ResourceVersion == present && now != absent {
			continue
		}
		return &fault.Changed{Resource: ref.Kind + " " + ref.Name, Reason: changeFrom(ref.ResourceVersion, now)}
	}
	return nil
}

func changeFrom(expected, now string) string {
	switch {
	case now == absent:
		return "it no longer exists"
	case expected == absent:
		return "it exists already, in version " + now
	}
	return fmt.Sprintf("it has been changed since: it is now version %s, not %s; read it again and repeat your change", now, expected)
}

func currentVersion(d store.Desired, ref Ref) string {
	switch ref.Kind {
	case v1alpha1.KindModule:
		return versionIn(d.Modules, ref.Name, moduleVersion)
	case v1alpha1.KindService:
		return versionIn(d.Services, ref.Name, serviceVersion)
	case v1alpha1.KindVirtualService:
		return versionIn(d.VirtualServices, ref.Name, virtualVersion)
	}
	return versionIn(d.Models, ref.Name, modelVersion)
}

func versionIn[T any](all map[string]T, name string, version func(*T) string) string {
	if r, ok := all[name]; ok {
		return version(&r)
	}
	return absent
}

// Conditional is the precondition of a request on one resource (RFC 9110, 13.1).
type Conditional struct {
	IfMatch     string `header:"If-Match" doc:"Only if the resource has this entity tag, or exists at all (*)"`
	IfNoneMatch string `header:"If-None-Match" doc:"* only if the resource does not exist"`
}

// version returns the version that the resource must have, or nothing.
func (c Conditional) version() (string, error) {
	switch {
	case c.IfNoneMatch == "*":
		return absent, nil
	case c.IfNoneMatch != "":
		return "", &fault.Invalid{Field: "If-None-Match", Reason: "only * is supported"}
	case c.IfMatch == "" || c.IfMatch == present:
		return c.IfMatch, nil
	}
	tag := strings.TrimSuffix(strings.TrimPrefix(c.IfMatch, `"`), `"`)
	if len(tag)+2 != len(c.IfMatch) || strings.ContainsAny(tag, `",`) || tag == "" {
		return "", &fault.Invalid{Field: "If-Match", Reason: `must be one entity tag in quotes, as the header ETag has it, or *`}
	}
	return tag, nil
}
