// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/cgrouptest"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	kerbnode "github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

// node is a machine with two services, a and b, whose processes are in one cgroup, and one agent.
type node struct {
	*nodetest.Node
	a, b   *netlab.Host
	cgroup *os.File
}

// plain disables the accelerator.
var plain = os.Getenv("KERB_PLAIN") != ""

// newNode returns a node without an agent.
func newNode(t *testing.T) *node {
	t.Helper()
	cgroup, err := os.Open(cgrouptest.New(t, "", "kerb-peers"))
	if err != nil {
		t.Fatal(err)
	}
	n := &node{Node: nodetest.New(t), cgroup: cgroup}
	t.Cleanup(func() { cgroup.Close() })
	n.Configure("cgroup: " + cgroup.Name() + "\n")
	n.a, n.b = n.Host("a"), n.Host("b")
	return n
}

// newAcceleratedNode returns a node whose services are accelerated.
func newAcceleratedNode(t *testing.T, config map[string]any) *node {
	t.Helper()
	n := newNode(t)
	if !plain {
		n.Start()
		n.Apply(service(n.a), service(n.b), accelerator(config))
		n.settled()
	}
	return n
}

func service(h *netlab.Host) v1.Service { return kerbnode.Service(h, "app=mesh") }

// accelerator returns the module fast.
func accelerator(config map[string]any) v1.Module {
	return kerbnode.Module("fast", "accelerator", "app=mesh", config)
}

// command prepares a process of a service.
func (n *node) command(ctx context.Context, h *netlab.Host, name string, args ...string) *exec.Cmd {
	cmd := h.Command(ctx, name, args...)
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(n.cgroup.Fd())
	return cmd
}

// settled waits until the data plane knows both services, and the control plane responds: an agent that adopts an
// existing data plane starts it a moment later.
func (n *node) settled() {
	n.T.Helper()
	n.Eventually("the module accelerates both services", func() bool {
		return n.entries("members") == 2 && n.Get("/v1/modules/fast/pairs", nil) == nil
	})
}

// entries returns the number of entries of a map of the module, or -1 without a module.
func (n *node) entries(name string) (count int) {
	n.T.Helper()
	found, _ := filepath.Glob(filepath.Join(n.BPF, "modules", "fast", "*", name))
	if len(found) == 0 {
		return -1
	}
	m, err := ebpf.LoadPinnedMap(found[len(found)-1], &ebpf.LoadPinOptions{ReadOnly: true})
	if errors.Is(err, fs.ErrNotExist) { // removed in this moment
		return -1
	}
	if err != nil {
		n.T.Fatal(err)
	}
	defer m.Close()
	key := make([]byte, m.KeySize())
	for err = m.NextKey(nil, key); err == nil && count <= int(m.MaxEntries()); err = m.NextKey(bytes.Clone(key), key) {
		count++
	}
	if !errors.Is(err, ebpf.ErrKeyNotExist) {
		n.T.Fatalf("map %s: %v", name, err)
	}
	return count
}
