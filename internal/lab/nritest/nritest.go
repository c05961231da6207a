// SPDX-License-Identifier: Apache-2.0

// Package nritest runs the container runtime's side of NRI in tests, with the library that containerd uses.
package nritest

import (
	"context"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/log"
)

// Runtime is a container runtime with pods, but without containers. It reports pods like containerd.
type Runtime struct {
	t       *testing.T
	socket  string
	inner   string // of the library
	options []adaptation.Option
	nri     *adaptation.Adaptation

	listener net.Listener

	synchronized atomic.Int32

	mu          sync.Mutex
	connections []net.Conn
	pods        map[string]*api.PodSandbox // by ID
}

// Start runs a container runtime with a socket for plugins until the test ends.
func Start(t *testing.T, socket string, options ...adaptation.Option) *Runtime {
	t.Helper()
	r := &Runtime{t: t, socket: socket, inner: filepath.Join(t.TempDir(), "inner.sock"),
		pods: map[string]*api.PodSandbox{}}
	r.options = append([]adaptation.Option{adaptation.WithSocketPath(r.inner), adaptation.WithPluginPath(t.TempDir()),
		adaptation.WithPluginConfigPath(t.TempDir())}, options...)
	log.Set(quiet{})
	t.Cleanup(r.Stop)
	r.Restart()
	return r
}

// Restart restarts the runtime, which closes its connections. Its pods remain.
func (r *Runtime) Restart() {
	r.t.Helper()
	r.Stop()
	none := func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil }
	runtime, err := adaptation.New("nritest", "v1", r.synchronize, none, r.options...)
	if err == nil {
		err = runtime.Start()
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.nri = runtime
	_ = os.Remove(r.socket) // of an earlier run
	if r.listener, err = net.Listen("unix", r.socket); err != nil {
		r.t.Fatal(err)
	}
	go r.accept(r.listener)
}

// accept passes connections to the library, which does not end them when it stops; a real runtime's process would end.
func (r *Runtime) accept(from net.Listener) {
	for {
		plugin, err := from.Accept()
		if err != nil {
			return
		}
		library, err := net.Dial("unix", r.inner)
		if err != nil {
			plugin.Close()
			continue
		}
		r.mu.Lock()
		r.connections = append(r.connections, plugin, library)
		r.mu.Unlock()
		for _, way := range [][2]net.Conn{{plugin, library}, {library, plugin}} {
			go func() {
				_, _ = io.Copy(way[0], way[1])
				way[0].Close()
			}()
		}
	}
}

// Stop stops the runtime, and closes its connections.
func (r *Runtime) Stop() {
	if r.nri == nil {
		return
	}
	r.listener.Close()
	r.mu.Lock()
	for _, c := range r.connections {
		c.Close()
	}
	r.connections = nil
	r.mu.Unlock()
	r.nri.Stop()
	r.nri = nil
}

// quiet discards the library's log.
type quiet struct{}

func (quiet) Debugf(context.Context, string, ...any) {}
func (quiet) Infof(context.Context, string, ...any)  {}
func (quiet) Warnf(context.Context, string, ...any)  {}
func (quiet) Errorf(context.Context, string, ...any) {}

// synchronize passes all pods to a plugin that has connected.
func (r *Runtime) synchronize(ctx context.Context, plugin adaptation.SyncCB) error {
	r.mu.Lock()
	all := slices.Collect(maps.Values(r.pods))
	r.mu.Unlock()
	_, err := plugin(ctx, all, nil)
	if err == nil {
		r.synchronized.Add(1)
	}
	return err
}

// Synchronized returns how often a plugin has received all pods.
func (r *Runtime) Synchronized() int { return int(r.synchronized.Load()) }

// Pod returns a sandbox with its own network namespace, and with the labels that kubelet and containerd add.
func Pod(id, namespace, name, uid string, labels map[string]string) *api.PodSandbox {
	all := map[string]string{"io.kubernetes.pod.name": name, "io.kubernetes.pod.namespace": namespace,
		"io.kubernetes.pod.uid": uid, "io.cri-containerd.kind": "sandbox", "oci_runtime_type": "io.containerd.runc.v2",
		"selinux_label": ""}
	maps.Copy(all, labels)
	return &api.PodSandbox{Id: id, Namespace: namespace, Name: name, Uid: uid, Labels: all, Linux: &api.LinuxPodSandbox{
		Namespaces: []*api.LinuxNamespace{{Type: "pid"}, {Type: "network", Path: "/run/netns/cni-" + id}}}}
}

// Add adds a pod without reporting it, as if it had started while no plugin was connected.
func (r *Runtime) Add(all ...*api.PodSandbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range all {
		r.pods[p.GetId()] = p
	}
}

// Run reports a new sandbox, and after an error its end.
func (r *Runtime) Run(p *api.PodSandbox) error {
	defer r.nri.BlockPluginSync().Unblock()
	if err := r.nri.RunPodSandbox(r.t.Context(), &api.RunPodSandboxRequest{Pod: p}); err != nil {
		r.End(p)
		return err
	}
	r.Add(p)
	return nil
}

// End reports the end of a sandbox.
func (r *Runtime) End(p *api.PodSandbox) {
	if err := r.nri.StopPodSandbox(r.t.Context(), &api.StopPodSandboxRequest{Pod: p}); err != nil {
		r.t.Errorf("StopPodSandbox: %v", err)
	}
	r.Forget(p.GetId())
}

// Forget removes a sandbox without reporting it.
func (r *Runtime) Forget(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pods, id)
}

// CreateContainer reports a new container of a pod. It fails without the required plugins.
func (r *Runtime) CreateContainer(p *api.PodSandbox) error {
	_, err := r.nri.CreateContainer(r.t.Context(), &api.CreateContainerRequest{Pod: p,
		Container: &api.Container{Id: "c-" + p.GetId(), PodSandboxId: p.GetId(), Name: "c"}})
	return err
}
