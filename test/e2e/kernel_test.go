// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// On the node's end of a veth.
const (
	tcxIngress = ebpf.AttachTCXIngress // from the service
	tcxEgress  = ebpf.AttachTCXEgress  // to the service
)

// hooks returns the modules and program id that an operator sees on a service's interface, by hook.
func (n *node) hooks(name string) map[string]string {
	n.T.Helper()
	out := map[string]string{}
	for _, l := range get[v1.Service](n, "service", name).Status.Links {
		for _, h := range l.Hooks {
			out[h.Hook] = fmt.Sprintf("%s %d", strings.Join(h.Modules, ","), h.Program)
		}
	}
	return out
}

// programs returns the ids of all running chains by attach point, with the modules.
func (n *node) programs() string {
	n.T.Helper()
	var out []string
	for _, c := range get[[]v1.Chain](n, "chain") {
		for _, p := range c.Points {
			out = append(out, fmt.Sprintf("%s/%s=%s:%d", p.Interface, p.Hook, strings.Join(c.Modules, ","), c.Program))
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// settled waits until the agent has reconciled the node and all modules are attached.
func (n *node) settled(instances map[string]int) {
	n.T.Helper()
	n.Eventually(fmt.Sprintf("modules on as many attach points as expected, %v", instances), func() bool {
		for name, want := range instances {
			if len(get[v1.Module](n, "module", name).Status.Attachments) != want {
				return false
			}
		}
		return true
	})
}

// attached queries the kernel, not the agent, for the TCX programs on the node's end of a host's veth.
func (n *node) attached(h *netlab.Host, at ebpf.AttachType) (ids []ebpf.ProgramID) {
	n.T.Helper()
	err := n.Lab.Node().Do(func() error {
		r, err := link.QueryPrograms(link.QueryOptions{Target: h.OuterIndex(), Attach: at})
		if err != nil {
			return err
		}
		for _, p := range r.Programs {
			ids = append(ids, p.ID)
		}
		return nil
	})
	if err != nil {
		n.T.Fatal(err)
	}
	return ids
}

// pinned returns the pins of the node.
func (n *node) pinned() []string {
	n.T.Helper()
	var out []string
	err := filepath.WalkDir(n.BPF, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		n.T.Fatal(err)
	}
	return out
}

// checkPins checks that the only pins are those of running or prepared chains, of their map sets, and one map set of
// each module that is not attached.
func (n *node) checkPins() {
	n.T.Helper()
	used := map[string]bool{}
	for _, c := range get[[]v1.Chain](n, "chain") {
		if len(c.Points) == 0 && !c.Ready {
			n.T.Errorf("chain %s (%v) is pinned and runs nowhere", c.ID, c.Modules)
		}
		members, _ := filepath.Glob(filepath.Join(n.BPF, "chains", fmt.Sprintf("%s_%s*_%s", c.Hook, c.Direction, c.ID),
			"m[0-9][0-9]_*"))
		for _, m := range members {
			part := strings.SplitN(filepath.Base(m), "_", 3)
			used[part[2]+"/"+part[1][:len(part[1])-1]] = true
		}
	}
	for _, path := range n.pinned() {
		if strings.Contains(path, "/tmp_") {
			n.T.Errorf("a half-built pin is left: %s", path)
		}
	}
	for _, m := range get[[]v1.Module](n, "module") {
		if dirs, _ := filepath.Glob(filepath.Join(n.BPF, "modules", m.Metadata.Name, "*")); len(m.Status.Attachments) == 0 &&
			len(dirs) == 1 {
			used[m.Metadata.Name+"/"+filepath.Base(dirs[0])] = true
		}
	}
	mapSets, _ := filepath.Glob(filepath.Join(n.BPF, "modules", "*", "*"))
	for _, g := range mapSets {
		if name := filepath.Join(filepath.Base(filepath.Dir(g)), filepath.Base(g)); !used[name] {
			n.T.Errorf("map set %s is pinned and in no chain", name)
		}
	}
}

// mapID returns the kernel's id of a map of a module, which must have one map set.
func (n *node) mapID(module, name string) ebpf.MapID {
	n.T.Helper()
	paths, _ := filepath.Glob(filepath.Join(n.BPF, "modules", module, "*", name))
	if len(paths) != 1 {
		n.T.Fatalf("pins of map %s: %v", name, paths)
	}
	m, err := ebpf.LoadPinnedMap(paths[0], nil)
	if err != nil {
		n.T.Fatal(err)
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		n.T.Fatal(err)
	}
	id, _ := info.ID()
	return id
}

// objects are kernel objects of one agent, by id.
type objects struct {
	programs map[ebpf.ProgramID]bool
	maps     map[ebpf.MapID]bool
	links    map[link.ID]bool
}

// objects returns the kernel objects that the pins of the node hold.
func (n *node) objects() objects {
	n.T.Helper()
	o := objects{map[ebpf.ProgramID]bool{}, map[ebpf.MapID]bool{}, map[link.ID]bool{}}
	for _, path := range n.pinned() {
		switch {
		case strings.Contains(path, "/links/") || filepath.Base(path) == "guardlink":
			o.addLink(n.T, path)
		case isProgram(path):
			o.addProgram(n.T, path)
		default:
			o.addMap(n.T, path)
		}
	}
	return o
}

// isProgram reports whether a pin is a program rather than a map, by its name. On sockets, a member also stands for a
// program.
func isProgram(path string) bool {
	name := filepath.Base(path)
	if !strings.Contains(path, "/chains/sockets_") {
		return strings.HasPrefix(name, "prog")
	}
	return name != "sockets" && name != "off" && name != "drained" && name != "guarded"
}

func (o objects) addLink(t *testing.T, path string) {
	t.Helper()
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		t.Fatal(err)
	}
	o.links[info.ID] = true
}

func (o objects) addProgram(t *testing.T, path string) {
	t.Helper()
	p, err := ebpf.LoadPinnedProgram(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	o.programs[id] = true
	used, _ := info.MapIDs()
	for _, id := range used {
		o.maps[id] = true
	}
}

func (o objects) addMap(t *testing.T, path string) {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	o.maps[id] = true
}

// left returns the objects that still exist in the kernel, and all programs that use one of the maps, pinned or not.
func (o objects) left() []string {
	var out []string
	for id := ebpf.ProgramID(0); ; {
		next, err := ebpf.ProgramGetNextID(id)
		if err != nil {
			break
		}
		id = next
		if p, err := ebpf.NewProgramFromID(id); err == nil {
			info, err := p.Info()
			if o.programs[id] || err == nil && o.uses(info) {
				out = append(out, fmt.Sprintf("program %d", id))
			}
			p.Close()
		}
	}
	for id := ebpf.MapID(0); ; {
		next, err := ebpf.MapGetNextID(id)
		if err != nil {
			break
		}
		if id = next; o.maps[id] {
			out = append(out, fmt.Sprintf("map %d", id))
		}
	}
	for it := new(link.Iterator); it.Next(); {
		if o.links[it.ID] {
			out = append(out, fmt.Sprintf("link %d", it.ID))
		}
	}
	return out
}

func (o objects) uses(info *ebpf.ProgramInfo) bool {
	used, _ := info.MapIDs()
	return slices.ContainsFunc(used, func(id ebpf.MapID) bool { return o.maps[id] })
}

// copyPackage copies a package of the tests to a new directory, with an edited manifest.
func copyPackage(t *testing.T, name string, edit func(manifest string) string) string {
	t.Helper()
	return copyPackageIn(t, testPackage(t, name), edit)
}

func copyPackageIn(t *testing.T, from string, edit func(manifest string) string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), filepath.Base(from))
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "kerb.yaml")
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(edit(string(text))), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
