// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"cmp"
	"maps"
	"slices"
)

// list is ordered by ifindex, then by service and cgroup.
func (n *running) list() []Instance {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.SortedFunc(maps.Values(n.instances), func(a, b Instance) int {
		return cmp.Or(cmp.Compare(a.Ifindex, b.Ifindex), cmp.Compare(a.Service, b.Service),
			cmp.Compare(a.CgroupID, b.CgroupID))
	})
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
