// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"cmp"
	"maps"
	"slices"
	"sort"
)

// SortInstances sorts by ifindex, then by service and cgroup.
func SortInstances(all []Instance) {
	sort.Slice(all, func(i, j int) bool {
		a, b := all[i], all[j]
		return cmp.Or(cmp.Compare(a.Ifindex, b.Ifindex), cmp.Compare(a.Service, b.Service),
			cmp.Compare(a.CgroupID, b.CgroupID)) < 0
	})
}

// list is ordered by ifindex, then by service and cgroup.
func (n *running) list() []Instance {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := slices.Collect(maps.Values(n.instances))
	SortInstances(all)
	return all
}

// setInstances takes over a whole list.
func (n *running) setInstances(all []Instance) {
	next := byKey(all)
	for _, old := range n.list() {
		if _, stays := next[old.Key()]; !stays {
			n.setInstance(old, false)
		}
	}
	for _, i := range all {
		n.setInstance(i, true)
	}
}

// setInstance adds, updates or removes an attachment and notifies the module only if something has changed.
// Notifications come in order, because following is held during the call.
func (n *running) setInstance(i Instance, there bool) {
	n.following.Lock()
	defer n.following.Unlock()
	n.mu.Lock()
	before, known := n.instances[i.Key()]
	if there {
		n.instances[i.Key()] = i
	} else {
		delete(n.instances, i.Key())
	}
	n.mu.Unlock()
	follower, ok := n.state.(InstanceWatcher)
	if ok && (known != there || there && !before.Equal(i)) {
		follower.InstanceChanged(i, there)
	}
}

func byKey(list []Instance) map[InstanceKey]Instance {
	out := make(map[InstanceKey]Instance, len(list))
	for _, i := range list {
		out[i.Key()] = i
	}
	return out
}
