// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/apierrors"
)

func TestLimits(t *testing.T) {
	if c, err := load(t, "log: {format: text}"); err != nil || c.Limits.ControlMemory != "512Mi" ||
		c.Limits.ControlDisk != "1Gi" {
		t.Errorf("without limits: %+v %v", c.Limits, err)
	}
	if c, err := load(t, "limits: {controlMemory: 1Gi}"); err != nil || c.Limits.ControlMemory != "1Gi" ||
		c.Limits.ControlDisk != "1Gi" {
		t.Errorf("with one: %+v %v", c.Limits, err)
	}
	for text, field := range map[string]string{"controlMemory: lots": "limits.controlMemory",
		"controlDisk: '0'": "limits.controlDisk", "controlMemory: ''": "limits.controlMemory"} {
		var invalid *apierrors.Invalid
		if _, err := load(t, "limits: {"+text+"}"); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestSlowPackets(t *testing.T) {
	for text, want := range map[string]time.Duration{"log: {format: text}": 50 * time.Microsecond,
		"slowPackets: 2ms": 2 * time.Millisecond} {
		if c, err := load(t, text); err != nil || c.Slower() != want {
			t.Errorf("%s: %v %v", text, c.Slower(), err)
		}
	}
	for _, text := range []string{"50", "soon", "999ns", "-1s", "''"} {
		var invalid *apierrors.Invalid
		if _, err := load(t, "slowPackets: "+text); !errors.As(err, &invalid) || invalid.Field != "slowPackets" {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestExpeditedRCU(t *testing.T) {
	for text, want := range map[string]string{"log: {format: text}": "auto", "expeditedRCU: 'off'": "off"} {
		if c, err := load(t, text); err != nil || c.ExpeditedRCU != want {
			t.Errorf("%s: %q %v", text, c.ExpeditedRCU, err)
		}
	}
	var invalid *apierrors.Invalid
	if _, err := load(t, "expeditedRCU: always"); !errors.As(err, &invalid) || invalid.Field != "expeditedRCU" {
		t.Error(err)
	}
}

// A configuration that is read again names what needs a restart: not what the agent takes while it runs.
func TestRestartFields(t *testing.T) {
	for text, want := range map[string][]string{
		"log: {level: debug}": nil, "moduleFunctions: true": nil, "expeditedRCU: 'off'": {"expeditedRCU"},
		"limits: {controlDisk: 1Mi}": {"limits"}, "history: {}": {"history"},
	} {
		before, err := load(t, "log: {format: text}")
		if err != nil {
			t.Fatal(err)
		}
		after, err := load(t, text)
		if err != nil {
			t.Fatal(err)
		}
		after.Paths = before.Paths
		if got := before.RestartFields(after); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

// Keys and credentials are next to the configuration file, unless it says otherwise: one that a cluster provides does
// not do away with those of the node.
func TestTrust(t *testing.T) {
	c, err := load(t, "log: {format: text}")
	if err != nil || c.Paths.Keys() != filepath.Join(filepath.Dir(c.Paths.Config), "keys") {
		t.Error(c.Paths.Keys(), err)
	}
	c, err = load(t, "paths: {trust: /etc/kerb}")
	if err != nil || c.Paths.Keys() != "/etc/kerb/keys" || c.Paths.Credentials() != "/etc/kerb/registries.json" {
		t.Error(c.Paths.Keys(), c.Paths.Credentials(), err)
	}
	var invalid *apierrors.Invalid
	if _, err := load(t, "paths: {trust: keys}"); !errors.As(err, &invalid) || invalid.Field != "paths.trust" {
		t.Error(err)
	}
}
