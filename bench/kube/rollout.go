// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/kerbmods"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/internal/lab/depot"
	"github.com/kerb-edge/kerb/internal/lab/kubefleet"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

const (
	rolloutPrefix = "kbkuroll"
	targetBack    = 5 // s from the trip of a node's guard until the node runs the previous version
	guarded       = "guard"
	firstPort     = 50 // destination of the packets that a version drops, in the first round
	usualPort     = 9
)

// drill is a node with a sending pod, and a rollout.
type drill struct {
	*cluster
	agent *node.Node
	kube  *program
	port  atomic.Uint32 // destination of one packet in 100; 0 for none
	round int
}

// rollouts measures the rollback of a version that drops one packet in 100, or counts the nodes that switch to a
// version that the kernel rejects.
func rollouts(ctx context.Context, r *bench.Run, load, of string) (err error) {
	c, err := open(rolloutPrefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	d := &drill{cluster: c}
	if err := d.start(); err != nil {
		return err
	}
	if of == "refused" {
		return d.refused(ctx, r, load)
	}
	if err := d.pod(); err != nil {
		return err
	}
	if err := r.Interleave(ctx, load, bench.Trial{Config: withKerb, Measure: d.measure}); err != nil {
		return err
	}
	r.Record(target, load, bench.Sample{Metric: "back", Stat: "max", Unit: "s", Value: targetBack})
	r.Note("rollout: back is the time from when the node's guard trips until the previous version runs; the pod sends " +
		"1,000 packets per second")
	r.Note("rollout: dropping is the time from the first packet that the new version drops until the previous version " +
		"runs")
	return nil
}

// refused rolls out a package that the kernel's verifier rejects, and counts the nodes that switch to it.
func (d *drill) refused(ctx context.Context, r *bench.Run, load string) error {
	packages, err := depot.New(d.lab.Node(), d.agent, d.dir, nil)
	if err != nil {
		return err
	}
	d.Later(packages.Close)
	var images [2]string
	for i, name := range []string{"pass", "unsafe"} {
		files, err := kerbmods.Files(name)
		if err != nil {
			return err
		}
		if images[i], err = packages.Push(files, "bench/"+name, "0.1.0", true); err != nil {
			return err
		}
	}
	const attach = "attach: {pods: {}}"
	if err := kubefleet.Apply(d.api, guarded, fmt.Sprintf("{package: {image: %q}, %s}", images[0], attach)); err != nil {
		return err
	}
	runs := func() string {
		var m v1.Module
		_ = d.agent.Get("/v1/modules/"+guarded, &m)
		return m.Spec.Package
	}
	if err := d.await(ctx, "the first version runs", func() bool { return runs() == images[0] }); err != nil {
		return err
	}
	if err := kubefleet.Apply(d.api, guarded, fmt.Sprintf("{package: {image: %q}, %s, rollout: {soakSeconds: 0, "+
		"previous: {package: {image: %q}}}}", images[1], attach, images[0])); err != nil {
		return err
	}
	reason, message := "", ""
	if err := kubefleet.Await(ctx, "the rollout has halted", func() (bool, error) {
		m, err := kubefleet.Get(d.api, guarded)
		_, reason, message = m.RolledOut()
		return m.Halted(), err
	}); err != nil {
		return err
	}
	if reason != "CheckFailed" || !strings.Contains(message, "verifier refuses") {
		r.Invalidate("%s: a version that the kernel rejects ended with %s: %s", load, reason, message)
	}
	changes, err := kubefleet.Changes(d.agent, guarded)
	if err != nil {
		return err
	}
	r.Record(withKerb, load, bench.Count("switched", uint64(len(changes)-1)))
	r.Record(target, load, bench.Count("switched", 0))
	return nil
}

func (d *drill) start() (err error) {
	if d.agent, err = node.Start(d.lab.Node()); err != nil {
		return err
	}
	d.Later(d.agent.Close)
	if d.kube, err = d.run("kerb-kube-node", "--node", "n1", "--kubeconfig", d.kubeconfig, "--agent", d.agent.Socket(),
		"--state", filepath.Join(d.dir, "kube")); err != nil {
		return err
	}
	_, err = d.run("kerb-kube-controller", "--kubeconfig", d.kubeconfig)
	return err
}

// traffic makes the pod send 1,000 packets/s until the drill is closed.
func (d *drill) traffic(from, to *netlab.Host) error {
	at := netip.AddrPortFrom(to.Addr4(), usualPort)
	var receiver, sender *net.UDPConn
	err := to.Do(func() (err error) {
		receiver, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
		return err
	})
	if err != nil {
		return err
	}
	d.Later(receiver.Close)
	if err := from.Do(func() (err error) { sender, err = net.ListenUDP("udp4", nil); return err }); err != nil {
		return err
	}
	done := make(chan struct{})
	d.Later(func() error { close(done); return sender.Close() })
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			to := at
			if port := d.port.Load(); port != 0 && n%100 == 0 {
				to = netip.AddrPortFrom(at.Addr(), uint16(port))
			}
			_, _ = sender.WriteToUDPAddrPort([]byte("x"), to) // packets that modules drop cause errors, too
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	}()
	return nil
}

const (
	selectsWeb = "attach: {pods: {podSelector: {matchLabels: {app: web}}}}"
	previous   = "package: {name: firewall}, config: {defaultPolicy: {egress: allow}}"
)

// measure rolls out another version, which drops packets to another port.
func (d *drill) measure(ctx context.Context) ([]bench.Sample, error) {
	port := firstPort + d.round
	d.round++
	if err := kubefleet.Apply(d.api, guarded, "{"+previous+", "+selectsWeb+"}"); err != nil {
		return nil, err
	}
	if err := d.await(ctx, "the previous version runs on the pod", func() bool {
		return !d.drops() && d.onPod()
	}); err != nil {
		return nil, err
	}
	if err := kubefleet.Apply(d.api, guarded, fmt.Sprintf("{package: {name: firewall}, config: {defaultPolicy: {egress: "+
		"allow}, rules: [{direction: egress, action: deny, protocol: udp, dstPort: %d}]}, %s, rollout: {nodes: [n1], "+
		"soakSeconds: 600, maxDrops: 5, previous: {%s}}}", port, selectsWeb, previous)); err != nil {
		return nil, err
	}
	if err := d.await(ctx, "the canary runs the new version", d.drops); err != nil {
		return nil, err
	}
	began := time.Now()
	d.port.Store(uint32(port))
	defer d.port.Store(0)
	if err := d.await(ctx, "the canary goes back", func() bool { return !d.drops() }); err != nil {
		return nil, err
	}
	tripped, err := kubefleet.Tripped(d.kube.log)
	if err != nil {
		return nil, err
	}
	changes, err := kubefleet.Changes(d.agent, guarded)
	if err != nil {
		return nil, err
	}
	if len(tripped) != d.round || len(changes) == 0 {
		return nil, fmt.Errorf("the guard has tripped %d times in %d rounds", len(tripped), d.round)
	}
	back := kubefleet.Done(changes[len(changes)-1])
	err = kubefleet.Await(ctx, "the rollout has halted", func() (bool, error) {
		m, err := kubefleet.Get(d.api, guarded)
		return m.Halted(), err
	})
	took := back.Sub(tripped[d.round-1]).Seconds()
	return []bench.Sample{bench.P50("back", "s", took), {Metric: "back", Stat: "max", Unit: "s", Value: took},
		bench.P50("dropping", "s", back.Sub(began).Seconds())}, err
}

func (d *drill) await(ctx context.Context, what string, ok func() bool) error {
	return kubefleet.Await(ctx, what, func() (bool, error) { return ok(), nil })
}

// pod creates a sending pod, and its service as kerb-cni does.
func (d *drill) pod() error {
	web, err := d.lab.Host("web", netlab.HostOptions{})
	if err != nil {
		return err
	}
	sink, err := d.lab.Host("sink", netlab.HostOptions{})
	if err != nil {
		return err
	}
	s, err := d.createPod("web", "n1", web.Path())
	if err != nil {
		return err
	}
	if err := d.traffic(web, sink); err != nil {
		return err
	}
	return d.agent.Call(http.MethodPut, "/v1/services/"+s.Metadata.Name+"?owner="+names.OwnerPods, s, nil)
}

// drops reports whether the agent runs a version that drops packets.
func (d *drill) drops() bool {
	var m v1.Module
	if d.agent.Get("/v1/modules/"+guarded, &m) != nil {
		return false
	}
	config, _ := json.Marshal(m.Spec.Config)
	return strings.Contains(string(config), "rules")
}

// onPod reports whether the module is in the chains of the pod.
func (d *drill) onPod() bool {
	var all []v1.Service
	if d.agent.Get("/v1/services", &all) != nil || len(all) != 1 {
		return false
	}
	for _, l := range all[0].Status.Links {
		for _, h := range l.Hooks {
			for _, name := range h.Modules {
				if name == guarded {
					return true
				}
			}
		}
	}
	return false
}
