// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/internal/lab/kubefleet"
	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/sdk"
)

const podsPrefix = "kbkupods"

// settled is the time after which kerb-kube-node has written the pods to disk, which it does at most every ten seconds,
// and has released the memory of their first list.
const settled = 12 * time.Second

// pods measures the memory of kerb-kube-node with a number of pods on its node.
func pods(ctx context.Context, r *bench.Run, load, of string) (err error) {
	n, err := strconv.Atoi(of)
	if err != nil {
		return err
	}
	c, err := open(podsPrefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	r.Progress("%s: creating the pods", load)
	p, _, err := c.kubeNode(ctx, n)
	if err != nil {
		return err
	}
	if err := p.recordMemory(ctx, r, load); err != nil {
		return err
	}
	if n == 5000 {
		r.Record(target, load, bench.Sample{Metric: "memory", Stat: "max", Unit: "MiB", Value: targetMemory})
	}
	r.Note("pods: memory is the resident memory of kerb-kube-node %v after all pods had their labels, peak its maximum, "+
		"which it reaches while starting; its agent replies immediately and is not measured", settled)
	return nil
}

// recordMemory records the memory of kerb-kube-node in each round.
func (p *program) recordMemory(ctx context.Context, r *bench.Run, load string) error {
	sdk.Pause(ctx, settled)
	for round := range r.Rounds {
		r.Progress("%s round %d/%d", load, round+1, r.Rounds)
		sdk.Pause(ctx, 3*time.Second)
		if err := ctx.Err(); err != nil {
			return err
		}
		sizes, err := node.Kibibytes(fmt.Sprintf("/proc/%d/status", p.pid()))
		if err != nil {
			return err
		}
		r.Record(withKerb, load, bench.Sample{Metric: "memory", Stat: "max", Unit: "MiB",
			Value: float64(sizes["VmRSS"]) / 1024},
			bench.Sample{Metric: "peak", Stat: "max", Unit: "MiB", Value: float64(sizes["VmHWM"]) / 1024})
	}
	return nil
}

// kubeNode runs kerb-kube-node on a node with a number of pods, and returns when all services have their labels.
func (c *cluster) kubeNode(ctx context.Context, n int) (*program, *kubefleet.Agents, error) {
	all, err := c.createPods(ctx, n)
	if err != nil {
		return nil, nil, err
	}
	owners := kubefleet.Owners{Modules: names.Owner, Pods: names.OwnerPods, Services: names.OwnerServices}
	agents, err := kubefleet.NewAgents(c.dir, 1, owners, all)
	if err != nil {
		return nil, nil, err
	}
	c.Later(agents.Close)
	spec := "{package: {name: counter}, attach: {pods: {podSelector: {matchLabels: {app: web}}}}}"
	if err := kubefleet.Apply(c.api, "count", spec); err != nil {
		return nil, nil, err
	}
	p, err := c.run("kerb-kube-node", "--node", kubefleet.NodeName(0), "--kubeconfig", c.kubeconfig, "--agent",
		kubefleet.SocketOf(c.dir, 0), "--state", kubefleet.StateOf(c.dir, 0))
	if err != nil {
		return nil, nil, err
	}
	pending := func(s v1.Service) bool { return names.IsPending(s.Metadata.Labels) }
	return p, agents, kubefleet.Await(ctx, "all pods have their labels", func() (bool, error) {
		all, err := agents.Services()
		return err == nil && !slices.ContainsFunc(all, pending), err
	})
}

// createPods creates pods on the first node, and returns the services that kerb-cni would create for them.
func (c *cluster) createPods(ctx context.Context, n int) ([]v1.Service, error) {
	services := make([]v1.Service, n)
	return services, each(ctx, n, func(i int) (err error) {
		services[i], err = c.createPod(fmt.Sprint("pod-", i), kubefleet.NodeName(0), "")
		services[i].Metadata.Owner = names.OwnerPods
		return err
	})
}

// each calls f for all numbers below n, several concurrently, until the first error.
func each(ctx context.Context, n int, f func(i int) error) error {
	failed := make([]error, 16)
	var running sync.WaitGroup
	for worker := range failed {
		running.Go(func() {
			for i := worker; i < n && failed[worker] == nil && ctx.Err() == nil; i += len(failed) {
				failed[worker] = f(i)
			}
		})
	}
	running.Wait()
	return errors.Join(append(failed, ctx.Err())...)
}

// createPod creates a pod, and returns the service that kerb-cni would create for it.
func (c *cluster) createPod(name, node, netns string) (v1.Service, error) {
	var created struct{ Metadata struct{ UID string } }
	err := c.api.Call(http.MethodPost, "/api/v1/namespaces/default/pods", map[string]any{"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": name, "labels": map[string]string{"app": "web", "pod-template-hash": "7c5b8d6f4"}},
		"spec": map[string]any{"nodeName": node, "automountServiceAccountToken": false,
			"containers": []any{map[string]any{"name": "c", "image": "example.org/c"}}}}, &created)
	p := names.Pod{Namespace: "default", Name: name, UID: created.Metadata.UID}
	attachment := names.Attachment{Network: "pods", ContainerID: name, Interface: "eth0"}
	return v1.Service{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindService},
		Metadata: v1.ObjectMeta{Name: p.Service(), Labels: names.PodLabels(p, attachment)},
		Spec:     v1.ServiceSpec{Netns: netns}}, err
}
