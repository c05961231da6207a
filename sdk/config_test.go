// SPDX-License-Identifier: Apache-2.0

package sdk_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/sdk"
)

type config struct {
	Name  string       `json:"name"`
	Wait  sdk.Duration `json:"wait"`
	Ports []int        `json:"ports"`
	Sub   *sub         `json:"sub"`
}

type sub struct {
	Level int `json:"level"`
}

func TestDecodeConfig(t *testing.T) {
	defaults := func() *config { return &config{Name: "x", Wait: sdk.Duration(time.Second)} }
	for raw, want := range map[string]*config{
		``:                                    defaults(),
		`{}`:                                  defaults(),
		`null`:                                defaults(),
		`{"name": "y", "wait": "1m30s"}`:      {Name: "y", Wait: sdk.Duration(90 * time.Second)},
		`{"ports": [1], "sub": {"level": 2}}`: {"x", sdk.Duration(time.Second), []int{1}, &sub{2}},
	} {
		got, err := sdk.DecodeConfig(json.RawMessage(raw), defaults())
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", raw, err, diff)
		}
	}
	wide := func(c *config) error {
		if len(c.Ports) > 1 {
			return sdk.ConfigErrorf("ports", "%d ports", len(c.Ports))
		}
		return nil
	}
	for raw, want := range map[string]sdk.ConfigError{
		`{"nam": "y"}`:           {Field: "nam", Reason: "unknown property"},
		`{"name": 7}`:            {Field: "name", Reason: "want string, not number"},
		`{"ports": "1"}`:         {Field: "ports", Reason: "want array, not string"},
		`{"sub": {"level": ""}}`: {Field: "sub.level", Reason: "want number, not string"},
		`{"sub": []}`:            {Field: "sub", Reason: "want object, not array"},
		`{"wait": "soon"}`:       {Field: "config", Reason: `time: invalid duration "soon"`},
		`{"ports": [1, 2]}`:      {Field: "ports", Reason: "2 ports"},
		`{`:                      {Field: "config", Reason: "unexpected EOF"},
	} {
		c, err := sdk.DecodeConfig(json.RawMessage(raw), defaults(), wide)
		var got *sdk.ConfigError
		if !errors.As(err, &got) || *got != want || c != nil {
			t.Errorf("%s: %v, want %v", raw, err, want)
		}
	}
}

func TestBelow(t *testing.T) {
	if got := sdk.PrefixField("rules[3]", sdk.ConfigErrorf("port", "is 0")).Error(); got != "rules[3].port: is 0" {
		t.Error(got)
	}
	other := errors.New("no memory")
	if got := sdk.PrefixField("rules[3]", other); got != other {
		t.Error(got)
	}
	if got := sdk.Duration(90 * time.Second).String(); got != "1m30s" {
		t.Error(got)
	}
}
