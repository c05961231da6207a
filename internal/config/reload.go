// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"reflect"
	"slices"
	"sync"
)

// Reloads passes a configuration that was read again to the parts of the agent that can change while they run. Its zero
// value is ready.
type Reloads struct {
	mu  sync.Mutex
	all []func(Config) error
}

// Subscribe adds a function that is called with every new configuration. If it returns an error, the subscriber keeps
// the previous one.
func (r *Reloads) Subscribe(take func(Config) error) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, take)
}

// Publish passes a configuration to all subscribers.
func (r *Reloads) Publish(c Config) error {
	r.mu.Lock()
	all := slices.Clone(r.all)
	r.mu.Unlock()
	var errs []error
	for _, take := range all {
		errs = append(errs, take(c))
	}
	return errors.Join(errs...)
}

// RestartFields returns the fields whose change takes effect only after a restart of the agent.
func (c Config) RestartFields(next Config) (fields []string) {
	addresses := func(c Config) string {
		if c.TCP == nil {
			return ""
		}
		return c.TCP.Address
	}
	for _, f := range []struct {
		name      string
		now, then any
	}{
		{"paths", c.Paths, next.Paths}, {"log.format", c.Log.Format, next.Log.Format},
		{"socketGroup", c.SocketGroup, next.SocketGroup}, {"slowPackets", c.SlowPackets, next.SlowPackets},
		{"expeditedRCU", c.ExpeditedRCU, next.ExpeditedRCU}, {"limits", c.Limits, next.Limits},
		{"spliceGuard", c.SpliceGuard, next.SpliceGuard},
		{"cgroup", c.Cgroup, next.Cgroup}, {"tcp.address", addresses(c), addresses(next)},
		{"oakestra", c.Oakestra, next.Oakestra}, {"containers", c.Containers, next.Containers},
		{"history", c.History, next.History},
	} {
		if !reflect.DeepEqual(f.now, f.then) {
			fields = append(fields, f.name)
		}
	}
	return fields
}
