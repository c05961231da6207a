// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
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
		"tier,tier=edge,app in (web)": true,
		"tier=edge,tier":              true,
		"n<3,n>1":                     false,
	} {
		s, err := ParseSelector(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if labels, ok := s.Example(); ok != s.Matches(labels) || ok != (text != "") {
			t.Errorf("%q: example %v, %v", text, labels, ok)
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

// What ParseSelector accepts, and what it then matches, is what Kubernetes has.
func FuzzSelector(f *testing.F) {
	for _, text := range []string{"app=web", "app==web, tier in (edge,core)", "!legacy", "tier notin (edge)", "n > 5,n<9",
		"a in ()", "a in (,b)",
		"in in (in)", "a in(b)", "a=", "a!=", "a=b=c", "!a=b", "a,", ",a", "a in (b", "a in b)", "x/y=z", "x/y/z", "a===b",
		"a=!b", "! a", "a\n",
		"n>x", "n>", "a b", "a=-", "()", "a()", "a in (b)(c)", "a in (b c)", "A=" + strings.Repeat("x", 64)} {
		f.Add(text, "5", "edge")
	}
	f.Fuzz(func(t *testing.T, text, a, tier string) {
		if text = strings.TrimSpace(text); text == "" || text == "*" || strings.Contains(text, "\x00") {
			t.Skip("not of Kubernetes, or where its lexer ends")
		}
		want, wantErr := labels.Parse(text)
		got, err := ParseSelector(text)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%q: %v, Kubernetes: %v", text, err, wantErr)
		}
		for _, set := range []map[string]string{nil, {"a": a, "n": a, "tier": tier},
			{"app": a, "in": "in", "legacy": "", "x/y": "z"}} {
			if err == nil && got.Matches(set) != want.Matches(labels.Set(set)) {
				t.Errorf("%q on %v: %v", text, set, got.Matches(set))
			}
		}
	})
}

// The error names the condition that is wrong, not the whole selector.
func TestSelectorErrorNamesCondition(t *testing.T) {
	for text, want := range map[string]string{"app=web,a=-,b": `"a=-"`, "app=web tier=x": `"app=web tier=x"`,
		"n>x,app": `"n>x"`, "app,in (x": `"in (x"`} {
		if _, err := ParseSelector(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error on %s", text, err, want)
		}
	}
}
