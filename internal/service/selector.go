// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// ErrSelector is wrapped by the errors of ParseSelector.
var ErrSelector = errors.New("not a label selector")

// Selector chooses services by their labels. The zero value chooses none.
type Selector struct {
	labels labels.Selector
	text   string
}

// ParseSelector reads Kubernetes' syntax for label selectors; "*" chooses
// every service and the empty string none.
func ParseSelector(text string) (Selector, error) {
	text = strings.TrimSpace(text)
	switch text {
	case "":
		return Selector{}, nil
	case "*":
		return Selector{labels.Everything(), text}, nil
	}
	parsed, err := labels.Parse(text)
	if err != nil {
		return Selector{}, fmt.Errorf("%w: %q: %w; valid are * for every service, or conditions such as app=web,tier in (edge,core),!legacy",
			ErrSelector, text, err)
	}
	return Selector{parsed, text}, nil
}

// Matches reports whether a service with these labels is chosen.
func (s Selector) Matches(set map[string]string) bool {
	return s.labels != nil && s.labels.Matches(labels.Set(set))
}

// String is the text that was parsed.
func (s Selector) String() string { return s.text }
