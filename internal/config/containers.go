// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
)

// Containers makes the containers of a runtime on this node services.
type Containers struct {
	Runtime string `json:"runtime"`          // docker, podman or containerd
	Socket  string `json:"socket,omitempty"` // of its API
}

// runtimeSockets are where the runtimes listen by default.
var runtimeSockets = map[string]string{"docker": "/run/docker.sock", "podman": "/run/podman/podman.sock",
	"containerd": "/run/containerd/containerd.sock"}

// WithDefaults returns c with the socket of its runtime.
func (c Containers) WithDefaults() Containers {
	c.Socket = cmp.Or(c.Socket, runtimeSockets[c.Runtime])
	return c
}

func (c Containers) check() (err error) {
	if runtimeSockets[c.Runtime] == "" {
		err = invalid("containers.runtime", fmt.Sprintf("is %q, want docker, podman or containerd", c.Runtime))
	}
	if c.Socket != "" && !filepath.IsAbs(c.Socket) {
		err = errors.Join(err, invalid("containers.socket", fmt.Sprintf("%q is not an absolute path", c.Socket)))
	}
	return err
}
