// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
)

// ControlBuiltin is the value of control in manifests of packages inside the binary.
const ControlBuiltin = "builtin"

// Limits and defaults of control planes.
const (
	DefaultControlMemory       = 64 << 20 // bytes
	DefaultControlDisk         = 64 << 20 // bytes
	DefaultControlHealthWithin = 5 * time.Second
	maxControlFiles            = 256
	maxControlFile             = 64 << 20 // bytes
)

// Control describes the process of a module's control plane; see docs/control-planes.md. In a manifest it is an object,
// or the word builtin.
type Control struct {
	Builtin      bool     `json:"-"`
	Command      []string `json:"command,omitempty"`      // a first word with a slash is relative to the package
	Files        []string `json:"files,omitempty"`        // files of the package that the process needs
	Memory       string   `json:"memory,omitempty"`       // at most, for example 64Mi
	Disk         string   `json:"disk,omitempty"`         // at most, in its state directory, for example 64Mi
	Network      bool     `json:"network,omitempty"`      // uses the network of the node
	HealthWithin string   `json:"healthWithin,omitempty"` // a new version that is not healthy by then is rolled back
}

// MarshalJSON writes what UnmarshalJSON reads.
func (c Control) MarshalJSON() ([]byte, error) {
	if c.Builtin {
		return json.Marshal(ControlBuiltin)
	}
	type plain Control
	return json.Marshal(plain(c))
}

// UnmarshalJSON reads the word builtin or an object. The schema rejects unknown fields.
func (c *Control) UnmarshalJSON(data []byte) error {
	if string(data) == `"`+ControlBuiltin+`"` {
		*c = Control{Builtin: true}
		return nil
	}
	type plain Control
	return json.Unmarshal(data, (*plain)(c))
}

// MemoryLimit returns the memory limit of the process and its children, in bytes.
func (c *Control) MemoryLimit() int64 { return bytesOr(c.Memory, DefaultControlMemory) }

// DiskLimit returns the limit of their state directory, in bytes.
func (c *Control) DiskLimit() int64 { return bytesOr(c.Disk, DefaultControlDisk) }

func bytesOr(text string, otherwise int64) int64 {
	if n, err := ParseBytes(text); err == nil && n > 0 {
		return n
	}
	return otherwise
}

// HealthTime returns how long an upgrade waits for the new version to become healthy before it is rolled back.
func (c *Control) HealthTime() time.Duration {
	if d, err := time.ParseDuration(c.HealthWithin); err == nil && d > 0 {
		return d
	}
	return DefaultControlHealthWithin
}

// check returns the field and the reason of the first error.
func (c *Control) check() (field, reason string) {
	if c == nil || c.Builtin {
		return "", ""
	}
	for i, name := range c.Files {
		if !fs.ValidPath(name) || name == "." {
			return fmt.Sprintf("control.files[%d]", i),
				fmt.Sprintf("%q is not a path inside the package; write for example control/run.py", name)
		}
	}
	program := c.Command[0]
	if strings.HasPrefix(program, "/") {
		return "control.command[0]", "must not be absolute: name a file of the package (./run) or a program that is looked " +
			"up in /usr/local/bin, /usr/bin and /bin"
	}
	if strings.Contains(program, "/") && !slices.Contains(c.Files, path.Clean(program)) {
		return "control.files", fmt.Sprintf("does not list %s, which control.command starts", path.Clean(program))
	}
	if _, err := ParseBytes(c.Memory); err != nil {
		return "control.memory", err.Error()
	}
	if _, err := ParseBytes(c.Disk); err != nil {
		return "control.disk", err.Error()
	}
	if d, err := time.ParseDuration(c.HealthWithin); c.HealthWithin != "" && (err != nil || d <= 0 || d > time.Minute) {
		return "control.healthWithin", fmt.Sprintf("%q is not a duration of at most 1m; write for example 5s", c.HealthWithin)
	}
	return "", ""
}

// readControlFiles reads the files of the control plane, by path.
func readControlFiles(fsys fs.FS, m *Manifest) (map[string][]byte, error) {
	if m.Control == nil || len(m.Control.Files) == 0 {
		return nil, nil
	}
	out := map[string][]byte{}
	for _, name := range m.Control.Files {
		data, err := readFile(fsys, name, maxControlFile)
		if err != nil {
			return nil, fmt.Errorf("package %s: control plane: %w", m.Name, err)
		}
		out[name] = data
	}
	return out, nil
}
