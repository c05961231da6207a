// SPDX-License-Identifier: Apache-2.0

package kubefleet

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
)

// Node has the options of one node's kerb-kube-node.
type Node struct{ Name, Agent, State, Kubeconfig string }

// Kubeconfig is the kubeconfig file of all nodes, in the directory of a fleet.
func Kubeconfig(dir string) string { return filepath.Join(dir, "kubeconfig") }

// RunNodes runs the nodes whose agents are in a directory, all in this process, until the context ends.
func RunNodes(ctx context.Context, dir string, n int, run func(context.Context, Node) error) error {
	var running sync.WaitGroup
	failed := make([]error, n)
	for i := range n {
		of := Node{Name: NodeName(i), Agent: SocketOf(dir, i), State: StateOf(dir, i), Kubeconfig: Kubeconfig(dir)}
		running.Go(func() { failed[i] = run(ctx, of) })
	}
	running.Wait()
	return errors.Join(failed...)
}
