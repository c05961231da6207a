// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
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
