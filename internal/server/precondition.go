// SPDX-License-Identifier: Apache-2.0

package server

import (
	"strings"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/resource"
)

// Conditional is the precondition of a request on one resource (RFC 9110, 13.1).
type Conditional struct {
	IfMatch     string `header:"If-Match" doc:"Only if the resource has this entity tag, or exists at all (*)"`
	IfNoneMatch string `header:"If-None-Match" doc:"* only if the resource does not exist"`
}

// version returns the version that the resource must have, or nothing.
func (c Conditional) version() (string, error) {
	switch {
	case c.IfNoneMatch == "*":
		return resource.Absent, nil
	case c.IfNoneMatch != "":
		return "", &apierrors.Invalid{Field: "If-None-Match", Reason: "only * is supported"}
	case c.IfMatch == "" || c.IfMatch == resource.Present:
		return c.IfMatch, nil
	}
	tag := strings.TrimSuffix(strings.TrimPrefix(c.IfMatch, `"`), `"`)
	if len(tag)+2 != len(c.IfMatch) || strings.ContainsAny(tag, `",`) || tag == "" {
		return "", &apierrors.Invalid{Field: "If-Match",
			Reason: `must be one entity tag in quotes, as the header ETag has it, or *`}
	}
	return tag, nil
}

// Preference is a client's preference (RFC 7240).
type Preference struct {
	Prefer string `header:"Prefer" doc:"return=representation: the answer is the resource with its status, as in lists, instead of the changes. If another client has changed or deleted the resource since, the answer is the changes all the same"`
}

// wantsResource reports whether a change is to be answered with the resource.
func (p Preference) wantsResource() bool { return prefersReturn(p.Prefer, "representation") }

// Detail is a client's preference for how much of a resource is returned (RFC 7240).
type Detail struct {
	Prefer string `header:"Prefer" doc:"return=minimal: without the fields that lists omit, and without a kernel query for each hook of a service"`
}

func (d Detail) isMinimal() bool { return prefersReturn(d.Prefer, "minimal") }

// prefersReturn reports whether the header Prefer has the preference return with this value. Others are ignored.
func prefersReturn(header, want string) bool {
	for preference := range strings.SplitSeq(header, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(preference), "=")
		value, _, _ = strings.Cut(value, ";")
		if strings.EqualFold(strings.TrimSpace(name), "return") && strings.Trim(value, ` "`) == want {
			return true
		}
	}
	return false
}
