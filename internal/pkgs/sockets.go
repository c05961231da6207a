// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
)

// Programs of a data plane on the hook sockets. All are in one object. Every package on sockets uses these names, and
// pins have them, so that agents of other versions find them.
const (
	EntryAll      = "all"      // SEC("sockops"), on the cgroups of attach.cgroups
	EntryServices = "services" // SEC("sockops"), on the agent's cgroup, for the services of attach.services
	EntryDrain    = "drain"    // SEC("syscall"), finds sockets that can be released
	EntryAge      = "age"      // SEC("syscall"), finds sockets that are idle
	EntryGuard    = "guard"    // SEC("lsm/file_permission"), built-in packages only; runs if the BPF LSM is enabled
)

// Maps that a data plane with EntryDrain has.
const (
	MapOff = "off" // ARRAY of one u32: if not 0, nothing more is redirected
	// HASH with the keys of sockets in the SOCKHASH that EntryDrain or EntryAge found to hold no redirected bytes
	MapDrained = "drained"
	MapGuarded = "guarded" // ARRAY of one u32: set by EntryGuard, which shows that the kernel calls it
)

// Errors of a data plane on sockets.
var (
	ErrSocketsEntry = errors.New("not a valid data plane on sockets: it has sockops programs all or services, one " +
		"sk_msg program, and syscall programs drain and age")
	ErrNoGuard = errors.New("is only in Kerb's own packages, on file_permission, with a map guarded (ARRAY of u32): it " +
		"decides about all files of the node")
	ErrNoSocketMap = errors.New("a sk_msg program needs exactly one map of type SOCKHASH, which it is attached to")
	ErrNoDrain     = errors.New("needs a map off (ARRAY of u32) and a map drained (HASH with the keys of the SOCKHASH), " +
		"neither in maps.config")
	ErrNoAge = errors.New("needs drain")
)

// checkSockets returns a field that is not allowed with the hook sockets, and the reason.
func (m *Manifest) checkSockets() (field, reason string) {
	switch {
	case !slices.Contains(m.Hooks, HookSockets):
		return "", ""
	case len(m.Hooks) > 1:
		return "hooks", "sockets cannot be combined with other hooks: split the package"
	case m.Frags || m.Replies || m.DeferredRedirect || m.HasCapability(CapabilityInject) || len(m.DropReasons) > 0,
		len(m.Directions.Services)+len(m.Directions.Interfaces) > 0:
		return "hooks", "sockets are no packets: frags, replies, deferredRedirect, inject, dropReasons and directions " +
			"have no meaning there"
	case m.FailurePolicy == "closed":
		return "failurePolicy", "sockets cannot fail closed: without the module they are plain TCP"
	}
	return "", ""
}

// checkSocketsSpec checks a data plane on sockets.
func (p *Package) checkSocketsSpec(spec *ebpf.CollectionSpec) error {
	messages, entries := "", 0
	for _, name := range slices.Sorted(maps.Keys(spec.Programs)) {
		switch prog := spec.Programs[name]; {
		case prog.Type == ebpf.SockOps && (name == EntryAll || name == EntryServices):
			entries++
		case prog.Type == ebpf.SkMsg && messages == "":
			messages = name
		case prog.Type == ebpf.Syscall && (name == EntryDrain || name == EntryAge):
		case prog.Type == ebpf.LSM && name == EntryGuard:
			guarded := spec.Maps[MapGuarded]
			if p.Control == nil || !p.Control.Builtin || prog.AttachTo != "file_permission" || guarded == nil ||
				guarded.Type != ebpf.Array || guarded.ValueSize != 4 {
				return &ObjectError{What: name, Err: ErrNoGuard}
			}
		default:
			return &ObjectError{What: name, Err: ErrSocketsEntry}
		}
	}
	if entries == 0 {
		return &ObjectError{Err: fmt.Errorf("neither %s nor %s is there: %w", EntryAll, EntryServices, ErrSocketsEntry)}
	}
	if _, ok := SocketMap(spec); messages != "" && !ok {
		return &ObjectError{What: messages, Err: ErrNoSocketMap}
	}
	return p.checkDrain(spec)
}

// SocketMap returns the name of the SOCKHASH that the sk_msg program is attached to, or false unless there is exactly
// one.
func SocketMap(spec *ebpf.CollectionSpec) (string, bool) {
	found := ""
	for name, m := range spec.Maps {
		if m.Type == ebpf.SockHash && found != "" {
			return "", false
		}
		if m.Type == ebpf.SockHash {
			found = name
		}
	}
	return found, found != ""
}

// checkDrain checks the maps with which a module on sockets releases connections before it is replaced: sockets in a
// map keep its program, and their redirected bytes.
func (p *Package) checkDrain(spec *ebpf.CollectionSpec) error {
	sockets, ok := SocketMap(spec)
	if ok && slices.Contains(p.Maps.Config, sockets) {
		return &ObjectError{What: "map " + sockets, Err: errors.New("holds connections and cannot be in maps.config")}
	}
	if spec.Programs[EntryDrain] == nil {
		if spec.Programs[EntryAge] != nil {
			return &ObjectError{What: EntryAge, Err: ErrNoAge}
		}
		return nil
	}
	off, drained := spec.Maps[MapOff], spec.Maps[MapDrained]
	if !ok || off == nil || off.Type != ebpf.Array || off.ValueSize != 4 || drained == nil || drained.Type != ebpf.Hash ||
		drained.KeySize != spec.Maps[sockets].KeySize || slices.Contains(p.Maps.Config, MapOff) ||
		slices.Contains(p.Maps.Config, MapDrained) {
		return &ObjectError{What: EntryDrain, Err: ErrNoDrain}
	}
	return nil
}
