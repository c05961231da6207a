// SPDX-License-Identifier: Apache-2.0

// Package paths is the one place that knows where Kerb's files are. It does no I/O.
package paths

import (
	"cmp"
	"path/filepath"
)

// Paths are the roots that everything else is derived from. All are absolute.
type Paths struct {
	Config string `json:"-"`               // configuration file of the agent
	State  string `json:"state,omitempty"` // directory of durable state: survives reboots
	Run    string `json:"run,omitempty"`   // directory of sockets and locks: vanishes with a reboot
	BPF    string `json:"bpf,omitempty"`   // directory of pins, on a bpffs
	// Trust is the directory of keys, denied packages and credentials; empty for that of the configuration file.
	Trust string `json:"trust,omitempty"`
}

// Default returns the paths of a packaged installation.
func Default() Paths {
	return Paths{
		Config: "/etc/kerb/kerb.yaml",
		State:  "/var/lib/kerb",
		Run:    "/run/kerb",
		BPF:    "/sys/fs/bpf/kerb",
	}
}

// Store is the file of the desired state.
func (p Paths) Store() string { return filepath.Join(p.State, "state.db") }

// Socket is where the agent serves its API.
func (p Paths) Socket() string { return filepath.Join(p.Run, "kerb.sock") }

// Oakestra is the file of what the Oakestra listener has deployed.
func (p Paths) Oakestra() string { return filepath.Join(p.State, "oakestra.json") }

// OakestraSocket is where the Oakestra listener is unless its configuration says otherwise.
func (p Paths) OakestraSocket() string { return filepath.Join(p.Run, "oakestra.sock") }

// Containers is where hooks of container runtimes report containers.
func (p Paths) Containers() string { return filepath.Join(p.Run, "containers.sock") }

// Resolved is the file of what resolvers found: a restart of the agent continues with it, a reboot asks again.
func (p Paths) Resolved() string { return filepath.Join(p.Run, "resolved.json") }

// SocketFacts is the file of how redirected sockets behave on this kernel.
func (p Paths) SocketFacts() string { return filepath.Join(p.Run, "sockets.json") }

// Bindings is the file of which interface belongs to which service; it holds for one boot.
func (p Paths) Bindings() string { return filepath.Join(p.State, "interfaces.json") }

// History is the directory of the records of changes.
func (p Paths) History() string { return filepath.Join(p.State, "changes") }

// Samples is the directory of what is sampled.
func (p Paths) Samples() string { return filepath.Join(p.State, "samples") }

// Lock is the file whose lock makes an agent the only one on its node.
func (p Paths) Lock() string { return filepath.Join(p.Run, "kerb.lock") }

// Users is the file by which all agents of the machine, whatever their paths, share out the user ids of control planes.
func Users() string { return Default().MountedUsers() }

// MountedUsers is Users where the machine's /run/kerb is mounted at Run: in the container that uninstalls Kerb.
func (p Paths) MountedUsers() string { return filepath.Join(p.Run, "users.lock") }

// ControlSockets is the directory of the sockets of control planes.
func (p Paths) ControlSockets() string { return filepath.Join(p.Run, "control") }

// ControlState is the directory of what control planes keep.
func (p Paths) ControlState() string { return filepath.Join(p.State, "control") }

// ModuleSockets is the directory of the sockets that programs find modules by.
func (p Paths) ModuleSockets() string { return filepath.Join(p.Run, "modules") }

// ModuleSocket is where programs find the module of that name, if its package offers a socket.
func (p Paths) ModuleSocket(module string) string {
	return filepath.Join(p.ModuleSockets(), module+".sock")
}

// Packages is the directory of packages that were pulled, an OCI image layout.
func (p Paths) Packages() string { return filepath.Join(p.State, "packages") }

func (p Paths) trust() string { return cmp.Or(p.Trust, filepath.Dir(p.Config)) }

// Keys is the directory of the public keys whose packages are trusted.
func (p Paths) Keys() string { return filepath.Join(p.trust(), "keys") }

// Credentials is the file of credentials for registries that the agent pulls packages from, as docker login writes it.
func (p Paths) Credentials() string { return filepath.Join(p.trust(), "registries.json") }
