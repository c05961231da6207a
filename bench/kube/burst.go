// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// conflist returns the plugin chain for a runtime, with the last plugin of a config.
func (n *place) conflist(config string) (*libcni.NetworkConfigList, error) {
	plugins := fmt.Sprintf(`{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": {"type": "host-local",
		"dataDir": %q, "ranges": [[{"subnet": "10.77.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}}`,
		filepath.Join(n.agent.Dir, "ipam"))
	switch config {
	case tuning:
		plugins += `, {"type": "tuning"}`
	case withKerb:
		plugins += fmt.Sprintf(`, {"type": "kerb-cni", "socket": %q}`, n.agent.Socket())
	}
	return libcni.NetworkConfFromBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "pods", "plugins": [%s]}`, plugins))
}

// runtime returns a CNI client that executes plugins as container runtimes do.
func (n *place) runtime(cache string) *libcni.CNIConfig {
	exec := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: io.Discard}} // results contain the errors
	return libcni.NewCNIConfigWithCacheDir(n.plugins, cache, exec)
}

// sandbox is a network namespace as created by a container runtime.
type sandbox struct {
	name, netns string
	conf        *libcni.RuntimeConf
}

// sandboxes creates the namespaces of new pods.
func (n *place) sandboxes(count int) (all []sandbox, err error) {
	for range count {
		n.number++
		s := sandbox{name: fmt.Sprint("pod-", n.number), netns: fmt.Sprint(n.lab.Prefix(), "-pod-", n.number)}
		if out, err := exec.Command("ip", "netns", "add", s.netns).CombinedOutput(); err != nil {
			return all, fmt.Errorf("ip netns add: %w: %s", err, out)
		}
		s.conf = &libcni.RuntimeConf{ContainerID: "kerb-bench-" + s.name, NetNS: "/run/netns/" + s.netns, IfName: "eth0",
			Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "bench"}, {"K8S_POD_NAME", s.name},
				{"K8S_POD_UID", "uid-" + s.name}, {"K8S_POD_INFRA_CONTAINER_ID", "kerb-bench-" + s.name}}}
		all = append(all, s)
	}
	return all, nil
}

// burst starts pods at the same time. It returns the duration of each ADD, in milliseconds, and the number of services
// that DEL, which waits up to 3 s for the agent, left to garbage collection. Afterwards, all are deleted.
func (n *place) burst(ctx context.Context, pods int, config string) (times []float64, left int, err error) {
	list, err := n.conflist(config)
	if err != nil {
		return nil, 0, err
	}
	cache := filepath.Join(n.agent.Dir, "cni")
	defer func() { err = errors.Join(err, os.RemoveAll(cache)) }()
	runtime := n.runtime(cache)
	all, err := n.sandboxes(pods)
	defer func() { err = errors.Join(err, removeAll(all)) }()
	if err != nil {
		return nil, 0, err
	}
	times, err = n.addConcurrently(all, func(s sandbox) error {
		_, err := runtime.AddNetworkList(ctx, list, s.conf)
		return err
	})
	_, deleted := n.addConcurrently(all, func(s sandbox) error { return runtime.DelNetworkList(ctx, list, s.conf) })
	left, failed := n.collect()
	return times, left, errors.Join(err, deleted, failed)
}

// collect deletes the services that DELs have left, and returns their number.
func (n *place) collect() (int, error) {
	var services []v1.Service
	err := n.agent.Get("/v1/services", &services)
	if err != nil || len(services) == 0 {
		return 0, err
	}
	return len(services), n.agent.Call("POST", "/v1/apply?prune=true&owner="+names.OwnerPods, []any{}, nil)
}

// addConcurrently calls f for all sandboxes concurrently, in the node's namespace, and returns the durations.
func (n *place) addConcurrently(all []sandbox, f func(sandbox) error) ([]float64, error) {
	times, failed := make([]float64, len(all)), make([]error, len(all))
	var ready, running sync.WaitGroup
	begin := make(chan struct{})
	for i, s := range all {
		ready.Add(1)
		running.Go(func() {
			failed[i] = n.lab.Node().Do(func() error {
				ready.Done()
				<-begin
				began := time.Now()
				err := f(s)
				times[i] = time.Since(began).Seconds() * 1000
				return err
			})
		})
	}
	ready.Wait()
	close(begin)
	running.Wait()
	return times, errors.Join(failed...)
}

func removeAll(all []sandbox) (err error) {
	for _, s := range all {
		if out, failed := exec.Command("ip", "netns", "del", s.netns).CombinedOutput(); failed != nil {
			err = errors.Join(err, fmt.Errorf("ip netns del: %w: %s", failed, out))
		}
	}
	return err
}
