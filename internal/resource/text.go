// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"maps"
	"slices"
	"strings"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// Status returns a status that may be missing.
func Status[S any](s *S) (status S) {
	if s != nil {
		status = *s
	}
	return status
}

// Ready puts the condition Ready into a word.
func Ready(conditions []v1alpha1.Condition) string {
	for _, c := range conditions {
		switch {
		case c.Type != "Ready":
		case c.Status == "True":
			return "yes"
		case c.Status == "False":
			return "no: " + c.Reason
		}
	}
	return "unknown"
}

// Labels writes labels in a line.
func Labels(labels map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		all = append(all, key+"="+labels[key])
	}
	return strings.Join(all, ",")
}
