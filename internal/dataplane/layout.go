// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kerb-edge/kerb/internal/chain"
)

// layout defines the names of all pins. bpffs rejects dots in names.
//
//	<root>/modules/<module>/<map set>/<map>     every map that the map set uses, carried-over ones included
//	<root>/chains/<side>_<direction>_<id>/prog0... the linked programs; prog0 is the entry
//	                                     /m00_<map set>_<module>   members in order, each the module's drop counters
//	                                     /packets                     packets and verdicts of the modules
//	                                     /samples, /latency           tail-call table of the timed copy; what it has measured
//	                                     /slow-<ns>                   packets that took longer in it
//	                                     /outcomes, /parts            parse counters; the tail-call table of a split chain
//	                                     of sockets: /all, /services, /messages, /drain, /age, and the maps /sockets, /off, /drained
//	<root>/links/<ifindex>_<side>                  attach points (XDP and TCX)
//	            /cgroup<id>_<entry>_<module>       attach points (sockets)
//	<root>/traces/<id>                             tail-call tables of split chains that are traced
//	<root>/shared/<map>                            maps shared by name between modules
type layout struct{ root string }

const tempPrefix = "tmp_"

func (l layout) modules() string { return filepath.Join(l.root, "modules") }
func (l layout) chains() string  { return filepath.Join(l.root, "chains") }
func (l layout) links() string   { return filepath.Join(l.root, "links") }
func (l layout) traces() string  { return filepath.Join(l.root, "traces") }
func (l layout) shared() string  { return filepath.Join(l.root, "shared") }

func (l layout) module(name string) string { return filepath.Join(l.modules(), name) }
func (l layout) mapSet(name, id string) string {
	return filepath.Join(l.module(name), id)
}

func (l layout) chain(s chain.Spec) string { return l.chainDir(s, s.ID()) }

func (l layout) pinned(c chain.Pinned) string { return l.chainDir(c.Spec, c.ID) }

func (l layout) chainDir(s chain.Spec, id string) string {
	direction := string(s.Direction)
	if s.Veth {
		direction += vethSuffix
	}
	return filepath.Join(l.chains(), fmt.Sprintf("%s_%s_%s", s.Side, direction, id))
}

const vethSuffix = "-veth"

// entryPin is the first program in a chain's directory.
func entryPin(dir string) string { return filepath.Join(dir, "prog0") }

func (l layout) link(p chain.Point) string { return filepath.Join(l.links(), p.String()) }

// temp is where a directory is built before it is renamed into place.
func temp(path string) string {
	return filepath.Join(filepath.Dir(path), tempPrefix+filepath.Base(path))
}

// mapPin is the file name of a map; data sections (.rodata, .bss) differ per hook.
func mapPin(hook chain.Hook, name string) string {
	if !strings.HasPrefix(name, ".") {
		return name
	}
	return string(hook) + "-" + strings.ReplaceAll(strings.TrimPrefix(name, "."), ".", "_")
}

func memberPin(i int, m chain.Member) string {
	closed := "o"
	if m.FailClosed {
		closed = "c"
	}
	return fmt.Sprintf("m%02d_%s%s_%s", i, m.ID, closed, m.Name)
}

// parseMemberPin reads mPOSITION_IDPOLICY_NAME, where the policy is c (fail closed) or o. The name comes last, as it
// may have underscores.
func parseMemberPin(name string) (chain.Member, bool) {
	parts := strings.SplitN(name, "_", 3)
	if len(parts) != 3 || !strings.HasPrefix(parts[0], "m") || len(parts[1]) < 2 {
		return chain.Member{}, false
	}
	id, policy := parts[1][:len(parts[1])-1], parts[1][len(parts[1])-1:]
	return chain.Member{Name: parts[2], ID: id, FailClosed: policy == "c"}, true
}

// parseChainPin parses SIDE_DIRECTION_ID; the direction of chains that reply by redirect ends with vethSuffix.
func parseChainPin(name string) (spec chain.Spec, id string, ok bool) {
	parts := strings.Split(name, "_")
	if len(parts) != 3 {
		return chain.Spec{}, "", false
	}
	direction, veth := strings.CutSuffix(parts[1], vethSuffix)
	return chain.Spec{Side: chain.Side(parts[0]), Direction: chain.Direction(direction), Veth: veth}, parts[2], true
}

// parsePoint is the inverse of chain.Point.String: IFINDEX_SIDE, or cgroupID_ENTRY_MODULE.
func parsePoint(name string) (chain.Point, bool) {
	if rest, ok := strings.CutPrefix(name, "cgroup"); ok {
		return parseCgroupPoint(rest)
	}
	index, side, found := strings.Cut(name, "_")
	n, err := strconv.Atoi(index)
	if !found || err != nil {
		return chain.Point{}, false
	}
	return chain.Point{Ifindex: n, Side: chain.Side(side)}, true
}

// parseCgroupPoint parses the part after cgroup. The module comes last, as its name may contain underscores.
func parseCgroupPoint(name string) (chain.Point, bool) {
	parts := strings.SplitN(name, "_", 3)
	if len(parts) != 3 {
		return chain.Point{}, false
	}
	id, err := strconv.ParseUint(parts[0], 10, 64)
	return chain.Point{Side: chain.OnSockets, Cgroup: id, Entry: chain.Entry(parts[1]), Module: parts[2]}, err == nil
}
