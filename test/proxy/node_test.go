// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"os"
	"slices"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	kerbnode "github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

func TestMain(m *testing.M) { os.Exit(nodetest.Main(m, nodetest.Oakestra)) }

// node is a machine with one agent, whose proxy runs on all services labelled app=mesh.
type node struct{ *nodetest.Node }

// synced waits until the proxy has a virtual service.
func (n *node) synced(name string) {
	n.T.Helper()
	n.Eventually("the proxy knows "+name, func() bool { return n.knows(name) })
}

func (n *node) knows(name string) bool {
	var s v1.VirtualService
	err := n.Get("/v1/virtualservices/"+name, &s)
	return err == nil && s.Status != nil && slices.Contains(s.Status.Modules, "px")
}

func service(h *netlab.Host) v1.Service { return kerbnode.Service(h, "app=mesh") }

// proxyModule returns the module px.
func proxyModule(config map[string]any) v1.Module {
	return kerbnode.Module("px", "proxy", "app=mesh", config)
}

func virtualService(name string, spec v1.VirtualServiceSpec) v1.VirtualService {
	return v1.VirtualService{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindVirtualService},
		Metadata: v1.ObjectMeta{Name: name}, Spec: spec}
}
