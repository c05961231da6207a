// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kerb-edge/kerb/sdk"
)

// Limits of what a control plane may report in addition to its health, which is stored, shown, and becomes events. What
// exceeds them is left out, or truncated if it is a text.
const (
	maxConditions = 16
	maxEjected    = 4096
	maxName       = 253  // bytes
	maxText       = 1024 // bytes of a message or reason
)

var (
	conditionWord   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]{0,63}$`)
	conditionStatus = []string{"True", "False", "Unknown"}
	typesOfAgent    = []string{"Ready", "ControlPlane"}
)

// within returns the accepted part of a health answer, and the reason why the rest was rejected; empty if all is
// accepted.
func within(h sdk.HealthAnswer) (kept sdk.HealthAnswer, wrong string) {
	for _, c := range h.Conditions {
		problem := conditionProblem(kept.Conditions, c)
		if problem != "" {
			wrong = problem
			continue
		}
		c.Message = cutText(c.Message)
		kept.Conditions = append(kept.Conditions, c)
	}
	for _, e := range h.Ejected {
		if len(kept.Ejected) == maxEjected || len(e.Service) > maxName || len(e.Instance) > maxName {
			wrong = fmt.Sprintf("at most %d ejected instances are accepted, with names of at most %d bytes", maxEjected, maxName)
			continue
		}
		e.Reason = cutText(e.Reason)
		kept.Ejected = append(kept.Ejected, e)
	}
	return kept, wrong
}

// conditionProblem returns why a condition cannot be added to the others; empty if it can.
func conditionProblem(others []sdk.Condition, c sdk.Condition) string {
	same := func(o sdk.Condition) bool { return o.Type == c.Type }
	switch {
	case len(others) == maxConditions:
		return fmt.Sprintf("there are more than %d", maxConditions)
	case !conditionWord.MatchString(c.Type), !conditionWord.MatchString(c.Reason):
		return fmt.Sprintf("type and reason must be a word of at most 64 letters and digits: %.70q, %.70q", c.Type, c.Reason)
	case !slices.Contains(conditionStatus, c.Status):
		return fmt.Sprintf("the status of %s must be one of %s: %.70q", c.Type, strings.Join(conditionStatus, ", "), c.Status)
	case slices.Contains(typesOfAgent, c.Type):
		return c.Type + " is a condition of the agent: use another type"
	case slices.ContainsFunc(others, same):
		return fmt.Sprintf("two have the type %s", c.Type)
	}
	return ""
}

// cutText returns a copy of the beginning of a long text.
func cutText(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(strings.Clone(s[:maxText]), "") + "..."
}
