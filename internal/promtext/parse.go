// SPDX-License-Identifier: Apache-2.0

package promtext

import (
	"fmt"
	"strconv"
	"strings"
)

// Sample is one value of a metric.
type Sample struct {
	Name   string
	Labels map[string]string
	Value  float64
}

// Parse reads the samples of a text that Set.Text has written.
func Parse(text []byte) (all []Sample, err error) {
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		s, err := parseSample(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		all = append(all, s)
	}
	return all, nil
}

// parseSample parses a line NAME{LABELS} VALUE. A timestamp after the value is an error.
func parseSample(line string) (s Sample, err error) {
	end := strings.IndexAny(line, "{ ")
	if end < 0 {
		return s, fmt.Errorf("%q has no value", line)
	}
	rest := line[end:]
	s.Name, s.Labels = line[:end], map[string]string{}
	if rest[0] == '{' {
		if rest, err = s.parseLabels(rest[1:]); err != nil {
			return s, err
		}
	}
	s.Value, err = strconv.ParseFloat(strings.TrimSpace(rest), 64)
	return s, err
}

// parseLabels parses labels up to the closing brace and returns what follows it. Values are unquoted by the rules of
// Go, which include the escapes of the text format.
func (s *Sample) parseLabels(text string) (rest string, err error) {
	for !strings.HasPrefix(text, "}") {
		name, value, _ := strings.Cut(text, "=")
		quoted, err := strconv.QuotedPrefix(value)
		if err != nil {
			return "", fmt.Errorf("label %q of %s: %w", name, s.Name, err)
		}
		if s.Labels[name], err = strconv.Unquote(quoted); err != nil {
			return "", fmt.Errorf("label %q of %s: %w", name, s.Name, err)
		}
		text = strings.TrimPrefix(value[len(quoted):], ",")
	}
	return text[1:], nil
}
