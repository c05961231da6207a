// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"cmp"
	"maps"
	"slices"
	"sort"
)

// SortAttachments sorts by ifindex, then by service and cgroup.
func SortAttachments(all []Attachment) {
	sort.Slice(all, func(i, j int) bool {
		a, b := all[i], all[j]
		return cmp.Or(cmp.Compare(a.Ifindex, b.Ifindex), cmp.Compare(a.Service, b.Service),
			cmp.Compare(a.CgroupID, b.CgroupID)) < 0
	})
}

// ByIfindex returns the attachments by ifindex.
func (l Live) ByIfindex() map[uint32]Attachment {
	out := map[uint32]Attachment{}
	for _, i := range l.Attachments() {
		out[i.Ifindex] = i
	}
	return out
}

// list returns the attachments ordered by ifindex, then by service and cgroup.
func (n *running) list() []Attachment {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := slices.Collect(maps.Values(n.attachments))
	SortAttachments(all)
	return all
}

// setAttachments replaces the list of attachments.
func (n *running) setAttachments(all []Attachment) {
	next := byKey(all)
	for _, old := range n.list() {
		if _, stays := next[old.Key()]; !stays {
			n.setAttachment(old, false)
		}
	}
	for _, i := range all {
		n.setAttachment(i, true)
	}
}

// setAttachment adds, updates or removes an attachment, and notifies the module only if something has changed. The lock
// following is held during the call, so that notifications arrive in order.
func (n *running) setAttachment(i Attachment, there bool) {
	n.following.Lock()
	defer n.following.Unlock()
	n.mu.Lock()
	before, known := n.attachments[i.Key()]
	if there {
		n.attachments[i.Key()] = i
	} else {
		delete(n.attachments, i.Key())
	}
	n.mu.Unlock()
	follower, ok := n.state.(AttachmentWatcher)
	if ok && (known != there || there && !before.Equal(i)) {
		follower.AttachmentChanged(i, there)
	}
}

func byKey(list []Attachment) map[AttachmentKey]Attachment {
	out := make(map[AttachmentKey]Attachment, len(list))
	for _, i := range list {
		out[i.Key()] = i
	}
	return out
}
