// SPDX-License-Identifier: Apache-2.0

// Package config is the agent's configuration: defaults, then the file, then flags.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/kerb-edge/kerb/internal/fault"
	"github.com/kerb-edge/kerb/internal/paths"
	"github.com/kerb-edge/kerb/internal/pkgs"
)

// Config of the agent.
type Config struct {
	Paths       paths.Paths `json:"paths,omitempty"`
	Log         Log         `json:"log,omitempty"`
	SocketGroup string      `json:"socketGroup,omitempty"` // group that may use the socket, if it exists
	Cgroup      string      `json:"cgroup,omitempty"`      // of version 2, in which services' sockets are; empty for the root
	TCP         *TCP        `json:"tcp,omitempty"`         // nil: the socket only
	Oakestra    *Oakestra   `json:"oakestra,omitempty"`    // nil: off
	Resolvers   Resolvers   `json:"resolvers,omitzero"`
	Limits      Limits      `json:"limits,omitzero"`

	Reloads *Reloads `json:"-"` // nil: never read again
}

// Limits are the most that manifests of packages may ask for; built-in ones are not held to them.
type Limits struct {
	ControlMemory string `json:"controlMemory,omitempty"` // control.memory, for example 512Mi
	ControlDisk   string `json:"controlDisk,omitempty"`   // control.disk
}

// Log says what is logged and how.
type Log struct {
	Level  slog.Level `json:"level,omitempty"`  // debug, info, warn or error
	Format string     `json:"format,omitempty"` // text or json
}

// TCP is an additional listener. It is always encrypted and always authenticated.
type TCP struct {
	Address     string `json:"address"`             // host:port
	Certificate string `json:"certificate"`         // PEM file
	Key         string `json:"key"`                 // PEM file
	ClientCA    string `json:"clientCA,omitempty"`  // PEM file; clients must show a certificate signed by it
	TokenFile   string `json:"tokenFile,omitempty"` // clients must send its content as bearer token
}

// Default returns the configuration without a file.
func Default() Config {
	return Config{
		Paths:       paths.Default(),
		Log:         Log{Format: "text"},
		SocketGroup: "kerb",
		Limits:      Limits{ControlMemory: "512Mi", ControlDisk: "1Gi"},
	}
}

// Load reads the file at path over the defaults. A missing file is the defaults unless it is required. Mistakes in it are
// *fault.Invalid.
func Load(path string, required bool) (Config, error) {
	c := Default()
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !required {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("configuration: %w", err)
	}
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		reason := strings.Join(strings.Fields(err.Error()), " ") // it has line breaks
		return c, &fault.Invalid{Resource: path, Reason: strings.TrimPrefix(reason, "error unmarshaling JSON: while decoding JSON: json: ")}
	}
	c.Paths.Config = path
	return c, nil
}

// Check returns *fault.Invalid for the first mistake.
func (c Config) Check() error {
	for name, path := range map[string]string{"paths.state": c.Paths.State, "paths.run": c.Paths.Run, "paths.bpf": c.Paths.BPF} {
		if !filepath.IsAbs(path) {
			return c.invalid(name, fmt.Sprintf("%q is not an absolute path", path))
		}
	}
	if c.Log.Format != "text" && c.Log.Format != "json" {
		return c.invalid("log.format", fmt.Sprintf("%q is neither text nor json", c.Log.Format))
	}
	for name, size := range map[string]string{"limits.controlMemory": c.Limits.ControlMemory, "limits.controlDisk": c.Limits.ControlDisk} {
		if n, err := pkgs.ParseBytes(size); err != nil || n == 0 {
			return c.invalid(name, fmt.Sprintf("%q is not a size; write for example 512Mi", size))
		}
	}
	if c.TCP != nil {
		if err := c.checkTCP(*c.TCP); err != nil {
			return err
		}
	}
	if o := c.Resolvers.Oakestra; o != nil {
		if err := c.checkOakestraResolver(*o); err != nil {
			return err
		}
	}
	if c.Oakestra != nil {
		return c.checkOakestra(c.Oakestra.Complete(c.Paths))
	}
	return nil
}

func (c Config) checkTCP(t TCP) error {
	switch {
	case t.Address == "":
		return c.invalid("tcp.address", "missing; write host:port")
	case t.Certificate == "" || t.Key == "":
		return c.invalid("tcp.certificate", "a TCP listener needs a certificate and a key")
	case t.ClientCA == "" && t.TokenFile == "":
		return c.invalid("tcp", "a TCP listener needs clientCA or tokenFile, so that not everybody can change the node")
	}
	return nil
}

func (c Config) invalid(field, reason string) error {
	return &fault.Invalid{Resource: c.Paths.Config, Field: field, Reason: reason}
}
