// SPDX-License-Identifier: Apache-2.0

// Package plugin implements a plugin for the container runtime's Node Resource Interface (NRI). containerd and CRI-O
// report a pod with its labels after its network is set up (CNI ADD), and create no container of it before the plugin
// has responded.
//
// The runtime calls plugins sequentially for all pods, and disconnects a plugin that does not respond in time. The
// plugin therefore always responds before this timeout.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/kerb-edge/kerb/integrations/kubernetes/nri"
)

// Name is the plugin's name in the runtime, for example in required_plugins of containerd's default_validator.
const Name = "kerb"

// index is the place among other plugins, from 00 to 99. The order does not matter to Kerb.
const index = "50"

// Times between connections.
const (
	minRetry = 100 * time.Millisecond
	maxRetry = 2 * time.Second
)

// handshake is how long the runtime may take to answer a registration.
var handshake = 10 * time.Second

var errNotConfigured = errors.New("the runtime has not configured the plugin")

// Run connects to the socket of a runtime, and reconnects after the runtime has restarted, until the context ends.
// After an error the process must exit, since goroutines of the connection keep running.
func Run(ctx context.Context, socket string, pods nri.Pods, log *slog.Logger) error {
	retry := minRetry
	for {
		connected, err := serve(ctx, socket, pods, log)
		if ctx.Err() != nil {
			return nil
		}
		pods.Disconnected(err)
		if errors.Is(err, errNotConfigured) {
			return err
		}
		if connected {
			retry = minRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retry/2 + rand.N(retry)):
		}
		retry = min(2*retry, maxRetry)
	}
}

// serve serves the runtime until the connection ends. It reports whether the runtime accepted the plugin.
func serve(ctx context.Context, socket string, pods nri.Pods, log *slog.Logger) (bool, error) {
	conn, err := (&net.Dialer{Timeout: handshake}).DialContext(ctx, "unix", socket)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	p := &plugin{pods: pods, configured: make(chan struct{})}
	p.stub, err = stub.New(p, stub.WithPluginName(Name), stub.WithPluginIdx(index), stub.WithConnection(conn),
		stub.WithLogger(logger{log}))
	if err != nil {
		return false, err
	}
	ended := make(chan error, 1)
	go func() { ended <- p.stub.Run(ctx) }()
	select {
	case err = <-ended:
	case <-p.configured:
		if err = <-ended; err == nil {
			err = errors.New("the connection has ended")
		}
		return true, err
	case <-time.After(handshake): // the stub waits for its configuration, also after the connection has ended
		err = errNotConfigured
	}
	return false, err
}

// plugin handles events. The stub subscribes to the events for which it has methods.
type plugin struct {
	stub       stub.Stub
	pods       nri.Pods
	runtime    atomic.Pointer[string]
	answer     atomic.Int64 // time.Duration in which Start has to answer
	configured chan struct{}
}

var (
	_ stub.ConfigureInterface   = (*plugin)(nil)
	_ stub.SynchronizeInterface = (*plugin)(nil)
	_ stub.RunPodInterface      = (*plugin)(nil)
	_ stub.StopPodInterface     = (*plugin)(nil)
)

// Configure is called by the runtime after registration.
func (p *plugin) Configure(_ context.Context, _, runtime, version string) (stub.EventMask, error) {
	name := runtime + " " + version
	p.runtime.Store(&name)
	p.answer.Store(int64(p.stub.RequestTimeout() * 3 / 4))
	close(p.configured)
	return 0, nil
}

// Synchronize receives the existing pods when the plugin connects.
func (p *plugin) Synchronize(_ context.Context, all []*api.PodSandbox, _ []*api.Container) ([]*api.ContainerUpdate,
	error) {
	var pods []nri.Pod
	for _, s := range all {
		if hasNetwork(s) {
			pods = append(pods, podOf(s))
		}
	}
	p.pods.Replace(*p.runtime.Load(), slices.Values(pods))
	return nil, nil
}

// RunPodSandbox is called between CNI ADD and the first container of a pod.
func (p *plugin) RunPodSandbox(ctx context.Context, s *api.PodSandbox) error {
	if !hasNetwork(s) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(p.answer.Load()))
	defer cancel()
	if err := p.pods.Start(ctx, podOf(s)); err != nil {
		return fmt.Errorf("kerb: pod %s/%s has not got its modules: %w", s.GetNamespace(), s.GetName(), err)
	}
	return nil
}

// StopPodSandbox is called when a sandbox ends.
func (p *plugin) StopPodSandbox(_ context.Context, s *api.PodSandbox) error {
	p.pods.Stop(podOf(s))
	return nil
}

// hasNetwork reports whether a pod has a network of its own: pods with hostNetwork have neither the namespace nor
// addresses, and are no services.
func hasNetwork(s *api.PodSandbox) bool { return netnsOf(s) != "" || len(s.GetIps()) > 0 }

// netnsOf returns the path of the pod's own network namespace. It is empty with hostNetwork, and in some runtimes for
// sandboxes that have ended.
func netnsOf(s *api.PodSandbox) string {
	for _, n := range s.GetLinux().GetNamespaces() {
		if n.GetType() == "network" {
			return n.GetPath()
		}
	}
	return ""
}

func podOf(s *api.PodSandbox) nri.Pod {
	labels := maps.Clone(s.GetLabels())
	maps.DeleteFunc(labels, func(key, _ string) bool { return isAdded(key) })
	return nri.Pod{ID: s.GetId(), Namespace: s.GetNamespace(), Name: s.GetName(), UID: s.GetUid(), Netns: netnsOf(s),
		Labels: labels}
}

// isAdded reports whether a label of a sandbox was added by the kubelet or containerd, and is not a label of the pod.
func isAdded(key string) bool {
	switch key {
	case "io.kubernetes.pod.name", "io.kubernetes.pod.namespace", "io.kubernetes.pod.uid", "oci_runtime_type",
		"selinux_label":
		return true
	}
	return strings.HasPrefix(key, "io.cri-containerd.")
}

// logger forwards the stub's log. It lowers the level of information, which the stub logs for every step of a
// connection.
type logger struct{ *slog.Logger }

func (l logger) Debugf(ctx context.Context, format string, args ...any) {
	l.DebugContext(ctx, "NRI: "+fmt.Sprintf(format, args...))
}

func (l logger) Infof(ctx context.Context, format string, args ...any) {
	l.Debugf(ctx, format, args...)
}

func (l logger) Warnf(ctx context.Context, format string, args ...any) {
	l.WarnContext(ctx, "NRI: "+fmt.Sprintf(format, args...))
}

func (l logger) Errorf(ctx context.Context, format string, args ...any) {
	l.ErrorContext(ctx, "NRI: "+fmt.Sprintf(format, args...))
}
