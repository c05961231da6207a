// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/kerb-edge/kerb/internal/atomicfile"
)

// state is the content of the state file.
type state struct {
	Worker   string    `json:"worker,omitempty"`  // NodeEngine's id
	Cluster  string    `json:"cluster,omitempty"` // address of the cluster
	Subnet   string    `json:"subnet,omitempty"`  // assigned to Worker by the cluster
	Subnet6  string    `json:"subnet6,omitempty"`
	NextID   int       `json:"nextID"` // of a module
	Priority int       `json:"nextPriority"`
	Last     int       `json:"lastAddress"` // number of the last allocated address
	Modules  []module  `json:"modules,omitempty"`
	Services []service `json:"services,omitempty"`
	Claimed  bool      `json:"claimed,omitempty"` // resources of versions without owners have been claimed
	Jobs     []job     `json:"jobs,omitempty"`    // announced, but not deployed yet
}

// module is a module in Oakestra's API.
type module struct {
	ID       int    `json:"id"`
	Name     string `json:"name"`
	Priority int    `json:"priority"`
	Config   any    `json:"config"`            // as received
	Service  string `json:"service,omitempty"` // the only one that it is for; empty: all services
	// Pending is set before a module is sent to the agent, and until the whole deployment has succeeded. For an update,
	// Config is the one before it.
	Pending string `json:"pending,omitempty"`
	// Behind is set if a proxy is nearer to the services: the module then gets packets with virtual addresses.
	Behind bool `json:"behindProxy,omitempty"`
}

// Values of module.Pending.
const (
	pendingCreate   = "create"
	pendingUpdate   = "update"
	pendingPrepared = "prepared" // applied for a service that is announced
)

// deployed reports whether the deployment of a module has succeeded, apart from an update.
func (m module) deployed() bool { return m.Pending == "" || m.Pending == pendingUpdate }

// service is an instance that has been deployed, or is about to be.
type service struct {
	Name     string `json:"name"` // app.namespace.service.namespace
	Instance int    `json:"instance"`
	PID      int    `json:"pid"`
	Netns    uint64 `json:"netns"`  // inode, to recognize the namespace
	Number   int    `json:"number"` // of its addresses in the subnets
	Ports    []port `json:"ports,omitempty"`
	Ready    bool   `json:"ready"`             // the deployment has completed
	Machine  bool   `json:"machine,omitempty"` // a virtual machine, in a named namespace
}

// readState reads the state file; without a file the state is empty. A damaged file is an error, because an empty state
// would assign addresses that are in use.
func readState(path string) (state, error) {
	fresh := state{Priority: 1, Last: firstNumber - 1}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fresh, nil
	}
	if err != nil {
		return fresh, err
	}
	if err := json.Unmarshal(data, &fresh); err != nil {
		return fresh, fmt.Errorf("%s is damaged: %w; remove it to start with empty state", path, err)
	}
	return fresh, nil
}

// save replaces the file atomically.
func (l *Listener) save() error {
	data, err := json.Marshal(l.state) // not indented: nested configs would become many times as long
	if err != nil {
		return err
	}
	return atomicfile.Write(l.file, append(data, '\n'), 0o600)
}

func (s *state) service(name string, instance int) *service {
	i := slices.IndexFunc(s.Services, func(x service) bool { return x.Name == name && x.Instance == instance })
	if i < 0 {
		return nil
	}
	return &s.Services[i]
}

func (s *state) dropService(name string, instance int) {
	s.Services = slices.DeleteFunc(s.Services, func(x service) bool { return x.Name == name && x.Instance == instance })
}

func (s *state) uses(name string) bool {
	return slices.ContainsFunc(s.Services, func(x service) bool { return x.Name == name })
}

// confirmModules marks modules in the state as deployed.
func (s *state) confirmModules(all []module) {
	for _, m := range all {
		m.Pending = ""
		s.Modules[slices.IndexFunc(s.Modules, func(x module) bool { return x.ID == m.ID })] = m
	}
}

// unconfirmed reports whether a deployment has neither succeeded nor been undone.
func (s *state) unconfirmed() bool {
	return slices.ContainsFunc(s.Services, func(x service) bool { return !x.Ready }) ||
		slices.ContainsFunc(s.Modules, func(m module) bool { return m.Pending != "" })
}

// clone returns a copy for a rollback.
func (s *state) clone() state {
	c := *s
	c.Modules, c.Services, c.Jobs = slices.Clone(s.Modules), slices.Clone(s.Services), slices.Clone(s.Jobs)
	return c
}
