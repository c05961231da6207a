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
	"time"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/decode"
	"github.com/kerb-edge/kerb/internal/paths"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/serve"
	"github.com/kerb-edge/kerb/internal/yamldoc"
)

// Config of the agent.
type Config struct {
	Paths       paths.Paths `json:"paths,omitempty"`
	Log         Log         `json:"log,omitempty"`
	SocketGroup string      `json:"socketGroup,omitempty"` // group that may use the socket, if it exists
	// ExpeditedRCU is auto or off.
	ExpeditedRCU string `json:"expeditedRCU,omitempty"`
	// SpliceGuard is auto or off.
	SpliceGuard string `json:"spliceGuard,omitempty"`
	// ModuleFunctions does not inline small modules into their chain, so that profilers know them by name.
	ModuleFunctions bool `json:"moduleFunctions,omitempty"`
	// SlowPackets is the time above which a measured packet is kept, such as 50us.
	SlowPackets string `json:"slowPackets,omitempty"`
	// of version 2, in which services' sockets are; empty for the root
	Cgroup   string    `json:"cgroup,omitempty"`
	TCP      *TCP      `json:"tcp,omitempty"`      // nil: the socket only
	Oakestra *Oakestra `json:"oakestra,omitempty"` // nil: off
	// Containers is nil to follow none.
	Containers *Containers `json:"containers,omitempty"`
	History    *History    `json:"history,omitempty"` // nil: nothing is sampled
	Limits     Limits      `json:"limits,omitzero"`

	Reloads *Reloads `json:"-"` // nil: never read again

	positions yamldoc.Index // in the file
}

// Values of ExpeditedRCU: whether the kernel is asked for expedited RCU grace periods while attach points change,
// and after values have changed. They are shorter, and interrupt all CPUs. With auto it is asked unless a module
// delivers packets to programs in real time.
const (
	ExpeditedAuto = "auto"
	ExpeditedOff  = "off"
)

// Values of SpliceGuard: whether modules on sockets have splice(2) fail on sockets that it does not work on, by a BPF
// program on an LSM hook. With auto they do where the kernel has it.
const (
	GuardAuto = "auto"
	GuardOff  = "off"
)

// Limits are the most that manifests of packages may ask for; built-in ones are not held to them.
type Limits struct {
	ControlMemory string `json:"controlMemory,omitempty"` // control.memory, for example 512Mi
	ControlDisk   string `json:"controlDisk,omitempty"`   // control.disk
}

// History switches samples on. What is sampled and for how long is fixed.
type History struct{}

// Log says what is logged and how.
type Log struct {
	// Level is debug, info, warn or error.
	Level  slog.Level `json:"level,omitempty" pattern:"^(?i:debug|info|warn|error)([-+][0-9]+)?$" patternDescription:"debug, info, warn or error"`
	Format string     `json:"format,omitempty"` // text or json
}

// TCP is an additional listener.
type TCP = serve.TCP

// Default returns the configuration without a file.
func Default() Config {
	return Config{
		Paths:       paths.Default(),
		Log:         Log{Format: "text"},
		SocketGroup: "kerb", ExpeditedRCU: ExpeditedAuto, SpliceGuard: GuardAuto, SlowPackets: "50us",
		Limits: Limits{ControlMemory: "512Mi", ControlDisk: "1Gi"},
	}
}

// Load reads the file at path over the defaults. A missing file is the defaults unless it is required. Mistakes in it
// are *apierrors.Invalid.
func Load(path string, required bool) (Config, error) {
	c := Default()
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !required {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("configuration: %w", err)
	}
	c.positions, err = decode.File(path, data, &c)
	c.Paths.Config = path
	return c, err
}

// Locate returns the mistakes that err joins with their places in the configuration's file.
func (c Config) Locate(err error) error { return c.positions.Locate(c.Paths.Config, err) }

// Check returns all mistakes, joined, as *apierrors.Invalid with their places.
func (c Config) Check() error {
	var wrong []error
	for _, dir := range []struct{ field, path string }{
		{"paths.state", c.Paths.State}, {"paths.run", c.Paths.Run}, {"paths.bpf", c.Paths.BPF},
	} {
		if !filepath.IsAbs(dir.path) {
			wrong = append(wrong, invalid(dir.field, fmt.Sprintf("%q is not an absolute path", dir.path)))
		}
	}
	if trust := c.Paths.Trust; trust != "" && !filepath.IsAbs(trust) {
		wrong = append(wrong, invalid("paths.trust", fmt.Sprintf("%q is not an absolute path", trust)))
	}
	if c.Log.Format != "text" && c.Log.Format != "json" {
		wrong = append(wrong, invalid("log.format", fmt.Sprintf("%q is neither text nor json", c.Log.Format)))
	}
	if c.ExpeditedRCU != ExpeditedAuto && c.ExpeditedRCU != ExpeditedOff {
		wrong = append(wrong, invalid("expeditedRCU", fmt.Sprintf("%q is neither auto nor off", c.ExpeditedRCU)))
	}
	if c.SpliceGuard != GuardAuto && c.SpliceGuard != GuardOff {
		wrong = append(wrong, invalid("spliceGuard", fmt.Sprintf("%q is neither auto nor off", c.SpliceGuard)))
	}
	if slower, err := time.ParseDuration(c.SlowPackets); err != nil || slower < time.Microsecond {
		wrong = append(wrong, invalid("slowPackets",
			fmt.Sprintf("%q is not a time of at least 1us; write for example 50us or 1ms", c.SlowPackets)))
	}
	for _, limit := range []struct{ field, size string }{
		{"limits.controlMemory", c.Limits.ControlMemory}, {"limits.controlDisk", c.Limits.ControlDisk},
	} {
		if n, err := pkgs.ParseBytes(limit.size); err != nil || n == 0 {
			wrong = append(wrong, invalid(limit.field, fmt.Sprintf("%q is not a size; write for example 512Mi", limit.size)))
		}
	}
	if c.TCP != nil {
		wrong = append(wrong, c.TCP.Check("tcp"))
	}
	if c.Containers != nil {
		wrong = append(wrong, c.Containers.check())
	}
	if c.Oakestra != nil {
		wrong = append(wrong, c.Oakestra.WithDefaults(c.Paths).check())
	}
	return c.Locate(errors.Join(wrong...))
}

// Slower is the time that SlowPackets has.
func (c Config) Slower() time.Duration {
	d, _ := time.ParseDuration(c.SlowPackets) // Check has done so
	return d
}

func invalid(field, reason string) error { return &apierrors.Invalid{Field: field, Reason: reason} }
