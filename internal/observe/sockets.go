// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"errors"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/cgroup"
	"github.com/kerb-edge/kerb/internal/service"
)

// Sockets is what modules on sockets are placed by.
type Sockets struct {
	Root    string                   // path of the cgroup in which the sockets of services are
	Cgroups map[string]cgroup.Cgroup // that exist, by the path in a spec
	Cookies map[string]uint64        // of network namespaces, by service; those that are known
	Errs    map[string]error         // by path or ServiceKey: why not
	View    error                    // why cgroups of other containers are not seen
}

// ServicesByNetns are the services whose sockets modules may see, by the cookies of their network namespaces. Of
// several in one it is preferred, or else the first by name.
func (s *Sockets) ServicesByNetns(preferred string) map[uint64]string {
	out := map[uint64]string{}
	if s == nil {
		return out
	}
	for name, netns := range s.Cookies {
		if other, taken := out[netns]; !taken || name == preferred || other != preferred && name < other {
			out[netns] = name
		}
	}
	return out
}

// ServiceKey is the key of a service in Errs.
func ServiceKey(name string) string { return "service " + name }

// Selection is what a module on sockets selects.
type Selection struct {
	Cgroups  []string // paths
	Services service.Selector
}

// checkView is cgroup.CheckView. Tests replace it.
var checkView = cgroup.CheckView

// FindSockets adds what modules on sockets need: cgroups, and the cookies of services' network namespaces.
func (o *Observer) FindSockets(s *Snapshot, services map[string]v1.Service, modules []Selection) {
	v := &Sockets{Root: o.Cgroup, Cgroups: map[string]cgroup.Cgroup{}, Cookies: map[string]uint64{},
		Errs: map[string]error{}}
	if len(modules) > 0 { // it reads all mounts of the node
		if err := checkView(); errors.Is(err, cgroup.ErrOwnOnly) {
			v.View = err // others are those of each path
		}
	}
	for _, m := range modules {
		for _, path := range m.Cgroups {
			if found, err := cgroup.Find(path); err != nil {
				v.Errs[path] = err
			} else {
				v.Cgroups[path] = found
			}
		}
		for name, wanted := range services {
			if state := s.Services[name]; m.Services.Matches(wanted.Metadata.Labels) && state.Err == nil {
				v.Cookies[name], v.Errs[ServiceKey(name)] = o.cookies.Get(wanted.Spec, state.Links)
			}
		}
	}
	s.Sockets = v
}

// moved reports whether a cgroup has come, gone or been replaced since it was found.
func (v *Sockets) moved(paths map[string]bool) bool {
	for path := range paths {
		if v == nil || v.Cgroups[path].Exists() {
			continue
		}
		if found, _ := cgroup.Find(path); v.Cgroups[path] != found {
			return true
		}
	}
	return false
}

// cgroupPeriod is how soon it is seen that a cgroup comes, goes or is another one.
const cgroupPeriod = time.Second

// WatchCgroups calls changed when a cgroup was created, removed, or replaced under the same path since the last
// observation, until ctx ends. selected returns that observation, and the paths that modules select; wake says that
// these may be others. While there are none it sleeps.
func WatchCgroups(ctx context.Context, wake <-chan struct{}, selected func() (*Sockets, map[string]bool),
	changed func()) {
	tick := time.NewTimer(cgroupPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-tick.C:
		}
		seen, paths := selected()
		if seen.moved(paths) {
			changed()
		}
		if tick.Stop(); len(paths) > 0 {
			tick.Reset(cgroupPeriod)
		}
	}
}
