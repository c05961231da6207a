// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/kubefleet"
)

// endpoints is the number of endpoints of each Service.
const endpoints = 5

// podsOfServices is the number of pods on the node; few in tests.
var podsOfServices = 5000

// services measures the memory of kerb-kube-node with a number of the cluster's Services, which the proxy implements.
func services(ctx context.Context, r *bench.Run, load, of string) (err error) {
	n, err := strconv.Atoi(of)
	if err != nil {
		return err
	}
	c, err := open(podsPrefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	r.Progress("%s: creating Services and pods", load)
	if err := each(ctx, n, c.createService); err != nil {
		return err
	}
	spec := "{package: {name: proxy}, attach: {pods: {podSelector: {matchLabels: {app: web}}}}}"
	if err := kubefleet.Apply(c.api, "services", spec); err != nil {
		return err
	}
	p, agents, err := c.kubeNode(ctx, podsOfServices)
	if err != nil {
		return err
	}
	if err := kubefleet.Await(ctx, "the agent has all virtual services", func() (bool, error) {
		return agents.VirtualServices() >= n, nil
	}); err != nil {
		return err
	}
	r.Note("services: like pods, with %d pods on the node, and Services with %d endpoints each as virtual services of "+
		"the proxy", podsOfServices, endpoints)
	return p.recordMemory(ctx, r, load)
}

// createService creates a Service and its endpoints.
func (c *cluster) createService(i int) error {
	name := fmt.Sprint("service-", i)
	err := c.api.Call(http.MethodPost, "/api/v1/namespaces/default/services", map[string]any{"apiVersion": "v1",
		"kind": "Service", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"ports": []any{map[string]any{"name": "http", "port": 80, "targetPort": 8080}}}}, nil)
	if err != nil {
		return err
	}
	var all []any
	for e := range endpoints {
		address := fmt.Sprintf("10.%d.%d.%d", 200+e, i/250, 1+i%250)
		all = append(all, map[string]any{"addresses": []string{address}, "nodeName": kubefleet.NodeName(e),
			"conditions": map[string]bool{"ready": true, "serving": true, "terminating": false}})
	}
	return c.api.Call(http.MethodPost, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", map[string]any{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "endpoints": all,
		"metadata": map[string]any{"name": name + "-1", "labels": map[string]string{"kubernetes.io/service-name": name}},
		"ports":    []any{map[string]any{"name": "http", "port": 8080, "protocol": "TCP"}}}, nil)
}
