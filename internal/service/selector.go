// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
)

// ErrSelector is wrapped by the errors of ParseSelector.
var ErrSelector = errors.New("not a label selector")

// Selector chooses services by their labels. The zero value chooses none.
type Selector struct {
	everything bool
	conditions []condition
	text       string
}

// condition is on one label. Operators without values are "" (the label exists) and "!" (it does not).
type condition struct {
	key, operator string
	values        []string
	bound         int64 // of < and >
}

// nextCondition matches a condition and the comma behind it: !key, key operator value, or key in (values).
var nextCondition = regexp.MustCompile(strings.NewReplacer("_", `[ \t\r\n]`, "WORD", `[^ \t\r\n!=<>(),]`).Replace(
	`^_*(!)?_*(WORD+)(?:_*(==?|!=|[<>])_*(WORD*)|_+(in|notin)_*\(([^()]*)\))?_*(,|$)`))

// ParseSelector reads Kubernetes' syntax for label selectors; "*" chooses every service and the empty string none.
// Kubernetes' own parser is in the tests: it would add a logging library to the agent.
func ParseSelector(text string) (Selector, error) {
	s := Selector{text: strings.TrimSpace(text)}
	if s.everything = s.text == "*"; s.everything || s.text == "" {
		return s, nil
	}
	for rest := s.text; ; {
		match := nextCondition.FindStringSubmatch(rest)
		c, err := newCondition(match)
		if err != nil {
			wrong := rest
			if match != nil {
				wrong = strings.TrimRight(match[0], ", \t\r\n")
			}
			return Selector{}, fmt.Errorf("%w: %q: %w; valid are * for every service, or conditions such as app=web,tier in "+
				"(edge,core),!legacy",
				ErrSelector, wrong, err)
		}
		s.conditions = append(s.conditions, c)
		if match[len(match)-1] == "" {
			return s, nil
		}
		rest = rest[len(match[0]):]
	}
}

// newCondition makes a condition of the groups of the pattern: key, operator and values. Keys and values are checked
// as Kubernetes checks those of labels.
func newCondition(match []string) (c condition, err error) {
	if match == nil || match[1] != "" && match[3]+match[5] != "" {
		return c, errors.New("not conditions with commas between them")
	}
	c.key, c.operator = match[2], match[1]+match[3]+match[5]
	problems := content.IsLabelKey(c.key)
	switch {
	case match[5] != "":
		c.values = strings.Split(match[6], ",")
	case match[3] != "":
		c.values = []string{match[4]}
	}
	for i := range c.values {
		c.values[i] = strings.Trim(c.values[i], " \t\r\n")
		problems = append(problems, content.IsLabelValue(c.values[i])...)
	}
	if len(problems) > 0 {
		return c, errors.New(strings.Join(problems, "; "))
	}
	if c.operator == "<" || c.operator == ">" {
		if c.bound, err = strconv.ParseInt(c.values[0], 10, 64); err != nil {
			err = fmt.Errorf("%s compares with a number", c.operator)
		}
	}
	return c, err
}

// Matches reports whether a service with these labels is chosen.
func (s Selector) Matches(set map[string]string) bool {
	fails := func(c condition) bool { return !c.holds(set) }
	return s.everything || len(s.conditions) > 0 && !slices.ContainsFunc(s.conditions, fails)
}

// holds reports whether a set of labels meets the condition. As in Kubernetes, != and notin hold for a key that is
// absent, and < and > for integers only.
func (c condition) holds(set map[string]string) bool {
	value, exists := set[c.key]
	switch c.operator {
	case "":
		return exists
	case "!":
		return !exists
	case "!=", "notin":
		return !exists || !slices.Contains(c.values, value)
	case "<", ">":
		n, err := strconv.ParseInt(value, 10, 64)
		return err == nil && (c.operator == "<" && n < c.bound || c.operator == ">" && n > c.bound)
	}
	return exists && slices.Contains(c.values, value)
}

// Example returns the fewest labels with which a service is chosen. It returns false if none are: the conditions
// exclude each other, or there are none.
func (s Selector) Example() (map[string]string, bool) {
	out := map[string]string{}
	for _, c := range s.conditions {
		switch c.operator {
		case "":
			if _, ok := out[c.key]; !ok { // else what another condition asks for
				out[c.key] = ""
			}
		case "=", "==", "in":
			out[c.key] = c.values[0]
		case "<":
			out[c.key] = strconv.FormatInt(c.bound-1, 10)
		case ">":
			out[c.key] = strconv.FormatInt(c.bound+1, 10)
		}
	}
	return out, s.Matches(out)
}

// String is the text that was parsed.
func (s Selector) String() string { return s.text }
