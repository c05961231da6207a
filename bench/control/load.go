// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/kerbmods"
	"github.com/kerb-edge/kerb/examples"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

// eventPort is the port whose packets the Python module reports.
const eventPort = 7412

// load has the deployed modules.
type load struct {
	modules []v1.Module
	// change returns the module with its nth config; nil if there is nothing to configure.
	change  func(n int) v1.Module
	events  bool // the last module sends events
	control bool
}

// newLoad writes the packages that it needs to dir.
func newLoad(name, dir string) (load, error) {
	counter := node.Module("counter", "counter", "*", nil)
	switch name {
	case "counter":
		return load{modules: []v1.Module{counter}, control: true}, nil
	case "firewall":
		return load{modules: []v1.Module{firewall(0)}, change: firewall, control: true}, nil
	case "all-builtin":
		return load{modules: append([]v1.Module{counter, firewall(0)}, others()...), change: firewall, control: true}, nil
	case "python":
		return pythonLoad(dir)
	case "constants":
		return constantsLoad(dir)
	}
	return load{}, fmt.Errorf("no load %q", name)
}

// others returns the built-in modules except counter and firewall, each with a config that makes it active.
func others() []v1.Module {
	tunnel := node.Module("tunnel", "tunnel", "*", map[string]any{
		"nodes": []map[string]any{{"address": "192.0.2.2", "subnets": []string{"10.18.0.64/26"}}}})
	tunnel.Spec.Attach.Interfaces = []string{netlab.Underlay} // without one it is not healthy
	return []v1.Module{
		tunnel,
		node.Module("proxy", "proxy", "*", nil),
		node.Module("responder", "responder", "*", map[string]any{"listeners": []map[string]any{{"app": "echo", "port": 7}}}),
		node.Module("intercept", "intercept", "*",
			map[string]any{"classes": []map[string]any{
				{"name": "ctrl", "match": map[string]any{"protocol": "udp", "ports": []int{8080}}}}}),
		node.Module("classifier", "classifier", "*", map[string]any{"extractor": "flow"}),
	}
}

func firewall(n int) v1.Module {
	return node.Module("firewall", "firewall", "*", map[string]any{"rules": []map[string]any{
		{"action": "allow", "direction": "ingress", "protocol": "tcp", "dstPort": 8000 + n}}})
}

func pythonLoad(dir string) (load, error) {
	files, err := fs.Sub(examples.Topports, "topports")
	if err != nil {
		return load{}, err
	}
	path := filepath.Join(dir, "topports")
	if err := os.CopyFS(path, files); err != nil {
		return load{}, err
	}
	change := func(n int) v1.Module {
		return node.Module("topports", path, "*", map[string]any{"watch": []int{eventPort, 8000 + n}, "keep": 1})
	}
	return load{modules: []v1.Module{change(0)}, change: change, events: true, control: true}, nil
}

func constantsLoad(dir string) (load, error) {
	path, err := kerbmods.Extract("stamp", dir)
	change := func(n int) v1.Module {
		return node.Module("stamp", path, "*", map[string]any{"port": eventPort, "generation": n})
	}
	return load{modules: []v1.Module{change(0)}, change: change}, err
}

// missing returns what a load needs and this machine or build lacks.
func missing(load string) error {
	if load != "python" {
		return nil
	}
	if _, err := fs.Stat(examples.Topports, "topports/topports.tc.o"); err != nil {
		return fmt.Errorf("examples/topports: %w", bench.ErrNotBuilt)
	}
	return havePython("/usr/local/bin", "/usr/bin", "/bin")
}

// havePython searches the directories in which the agent searches for control planes, regardless of PATH.
func havePython(dirs ...string) error {
	for _, dir := range dirs {
		if _, err := exec.LookPath(filepath.Join(dir, "python3")); err == nil {
			return nil
		}
	}
	return fmt.Errorf("no python3 in %s", strings.Join(dirs, ", "))
}
