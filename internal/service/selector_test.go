// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"strings"
	"testing"
)

func TestSelector(t *testing.T) {
	web := map[string]string{"app": "web", "tier": "edge"}
	for text, want := range map[string]bool{
		"":                            false,
		"*":                           true,
		" * ":                         true,
		"app=web":                     true,
		"app==web,tier in (edge,iot)": true,
		"app!=web":                    false,
		"tier notin (edge)":           false,
		"tier":                        true,
		"!tier":                       false,
		"other":                       false,
	} {
		s, err := ParseSelector(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if s.Matches(web) != want {
			t.Errorf("%q matches %v: got %v", text, web, !want)
		}
	}
	every, _ := ParseSelector("*")
	if !every.Matches(nil) {
		t.Error("* does not match a service without labels")
	}
}

func TestSelectorErrors(t *testing.T) {
	for _, text := range []string{"app=web,", "app in web", "=web", "a b", "*,app=web", "app=" + strings.Repeat("x", 64)} {
		s, err := ParseSelector(text)
		if !errors.Is(err, ErrSelector) || !strings.Contains(err.Error(), "app=web,tier in (edge,core)") {
			t.Errorf("%q: want ErrSelector with an example, got %v", text, err)
		}
		if s.Matches(nil) {
			t.Errorf("%q: a selector that does not parse chooses something", text)
		}
	}
}
