// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"sort"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/atomicfile"
)

// Bindings record the service of each node-side link. A link that was found for a service stays bound to it until the
// link or the service is deleted: the tenant controls where the peer is and which processes run, so neither may
// determine whether its policy is enforced. It is safe for concurrent use.
type Bindings struct {
	path string
	home identity

	mu   sync.Mutex
	held map[int]binding // by ifindex
}

// binding is the last known state of a link, and its service.
type binding struct {
	Service string `json:"service"`
	Link    Link   `json:"link"`
}

// identity is the scope of an ifindex: a boot, and a network namespace in it.
type identity struct {
	Boot  string `json:"boot"`
	Netns uint64 `json:"netns"`
}

// bindingsFile is the file's content.
type bindingsFile struct {
	identity
	Links map[int]binding `json:"links"`
}

// OpenBindings reads the bindings of earlier agents of this boot. With an error they start empty.
func OpenBindings(path string) (*Bindings, error) {
	b := &Bindings{path: path, held: map[int]binding{}}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return b, err
	}
	own, err := nsKeyAt("/proc/thread-self/ns/net")
	if err != nil {
		return b, err
	}
	b.home = identity{Boot: strings.TrimSpace(string(boot)), Netns: own.ino}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !bytes.Contains(text, []byte(b.home.Boot)) {
		return b, nil // of another boot, and possibly damaged by a crash of the machine
	}
	var f bindingsFile
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil {
		return b, fmt.Errorf("read bindings of interfaces: %w", err)
	}
	if f.identity == b.home {
		b.held = f.Links
	}
	return b, nil
}

// Merge adds links that are bound to a service but were not found for it this time to the service's state. It returns
// the owner of each link: the service that it is bound to, or else the first one, by name, for which it was found.
func (b *Bindings) Merge(states map[string]State) (owners map[int]string) {
	owners = map[int]string{}
	found := map[int]Link{}
	for _, name := range slices.Sorted(maps.Keys(states)) {
		for _, l := range states[name].Links {
			if _, taken := owners[l.Ifindex]; !taken {
				owners[l.Ifindex], found[l.Ifindex] = name, l
			}
		}
	}
	b.mu.Lock()
	held := maps.Clone(b.held)
	b.mu.Unlock()
	for ifindex, h := range held {
		state, exists := states[h.Service]
		if !exists {
			continue
		}
		if !slices.ContainsFunc(state.Links, func(l Link) bool { return l.Ifindex == ifindex }) {
			now, other := found[ifindex]
			if other && !bytes.Equal(now.MAC, h.Link.MAC) || !other && deleted(h.Link) {
				continue
			}
			states[h.Service] = state.with(h.Link)
		}
		owners[ifindex] = h.Service
	}
	return owners
}

// with returns the state with a link that was not found in the service's namespace. If the service could not be looked
// up, for example for lack of file descriptors, the link is assumed to be unchanged.
func (s State) with(l Link) State {
	if l.Left = s.Err == nil || IsServiceError(s.Err); !l.Left {
		s.Addresses = slices.Compact(slices.SortedFunc(slices.Values(slices.Concat(s.Addresses, l.PeerAddresses)),
			netip.Prefix.Compare))
	}
	s.Links = append(slices.Clone(s.Links), l) // the old one is the watcher's
	sort.Slice(s.Links, func(i, j int) bool { return s.Links[i].Ifindex < s.Links[j].Ifindex })
	return s
}

// deleted reports whether a link was deleted, or its index reused. It returns false in case of doubt.
func deleted(l Link) bool {
	c, err := openConn()
	if err != nil {
		return false
	}
	defer c.close()
	now, err := c.link(l.Ifindex)
	if err != nil {
		return errors.Is(err, unix.ENODEV)
	}
	return now.Name != l.Name && !bytes.Equal(now.MAC, l.MAC)
}

// Bind stores the bindings of links to services. states and owners are those of Merge. After an error the bindings are
// lost when the agent restarts.
func (b *Bindings) Bind(states map[string]State, owners map[int]string) error {
	held := map[int]binding{}
	for name, s := range states {
		for _, l := range s.Links {
			if owners[l.Ifindex] == name {
				l.Left = false
				held[l.Ifindex] = binding{name, l}
			}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if reflect.DeepEqual(held, b.held) {
		return nil
	}
	b.held = held
	return b.write()
}

// write replaces the file atomically. It need not be on disk: it is not used after a crash of the machine.
func (b *Bindings) write() error {
	text, err := json.Marshal(bindingsFile{b.home, b.held})
	if err != nil {
		return err
	}
	if err := atomicfile.Swap(b.path, text, 0o600); err != nil {
		return fmt.Errorf("store the bindings of interfaces: %w", err)
	}
	return nil
}
