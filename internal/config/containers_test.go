// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
	"testing"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/config"
)

func TestContainers(t *testing.T) {
	for text, want := range map[string]config.Containers{
		"containers: {runtime: docker}":     {Runtime: "docker", Socket: "/run/docker.sock"},
		"containers: {runtime: podman}":     {Runtime: "podman", Socket: "/run/podman/podman.sock"},
		"containers: {runtime: containerd}": {Runtime: "containerd", Socket: "/run/containerd/containerd.sock"},
		"containers: {runtime: podman, socket: /run/user/1000/podman/podman.sock}": {Runtime: "podman",
			Socket: "/run/user/1000/podman/podman.sock"},
	} {
		if c, err := load(t, text); err != nil || c.Containers.WithDefaults() != want {
			t.Errorf("%s: %+v, %v", text, c.Containers, err)
		}
	}
	for text, field := range map[string]string{"containers: {}": "containers",
		"containers: {runtime: crio}":                   "containers.runtime",
		"containers: {runtime: docker, socket: d.sock}": "containers.socket"} {
		var invalid *apierrors.Invalid
		if _, err := load(t, text); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%s: %v", text, err)
		}
	}
	if c, err := load(t, ""); err != nil || c.Containers != nil {
		t.Errorf("without the section: %+v, %v", c.Containers, err)
	}
}
