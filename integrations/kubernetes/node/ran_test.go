// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/nritest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// ran creates a running pod that started before kerb-cni was in its network.
func (b *bed) ran(r *nritest.Runtime, name, app string) (*pod, *api.PodSandbox) {
	b.T.Helper()
	labels := map[string]string{"app": app}
	p := &pod{names.Pod{Namespace: "default", Name: name, UID: b.createPod("default", name, labels)}, b.Host(name), b,
		"sandbox-of-" + name}
	return p, p.listed(r, p.host.Path(), labels)
}

// listed adds the sandbox of a pod to the runtime.
func (p *pod) listed(r *nritest.Runtime, netns string, labels map[string]string) *api.PodSandbox {
	s := nritest.Pod(p.container, p.Namespace, p.Name, p.UID, labels)
	for _, n := range s.Linux.Namespaces {
		if n.GetType() == "network" {
			n.Path = netns
		}
	}
	r.Add(s)
	return s
}

// reflect makes a host send datagrams back.
func (b *bed) reflect(h *netlab.Host, port uint16) netip.AddrPort {
	b.T.Helper()
	at := netip.AddrPortFrom(h.Addr4(), port)
	err := h.Do(func() error {
		c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
		if err != nil {
			return err
		}
		b.T.Cleanup(func() { c.Close() })
		go func() {
			buffer := make([]byte, 16)
			for {
				n, from, err := c.ReadFromUDPAddrPort(buffer)
				if err != nil {
					return
				}
				_, _ = c.WriteToUDPAddrPort(buffer[:n], from)
			}
		}()
		return nil
	})
	if err != nil {
		b.T.Fatal(err)
	}
	return at
}

// exchange sends datagrams one at a time, each after the previous one has come back, until stop is called. stop returns
// an error if one was lost.
func (p *pod) exchange(at netip.AddrPort) (stop func() error) {
	p.bed.T.Helper()
	var c *net.UDPConn
	err := p.host.Do(func() (err error) {
		c, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(at))
		return err
	})
	if err != nil {
		p.bed.T.Fatal(err)
	}
	ending, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		defer c.Close()
		for n := 0; ; n++ {
			select {
			case <-ending:
				ended <- nil
				return
			case <-time.After(time.Millisecond):
			}
			_ = c.SetDeadline(time.Now().Add(wait.Patience / 6))
			if _, err := c.Write([]byte("x")); err != nil {
				ended <- fmt.Errorf("datagram %d: %w", n, err)
				return
			}
			if _, err := c.Read(make([]byte, 16)); err != nil {
				ended <- fmt.Errorf("datagram %d has not come back: %w", n, err)
				return
			}
		}
	}()
	return sync.OnceValue(func() error { close(ending); return <-ended })
}

// A pod that ran before kerb-cni was in its network gets its modules when kerb-kube-node connects to the container
// runtime, and loses no packet that they pass. Pods on the host network, and services of kerb-cni, stay unchanged. The
// service is deleted with the sandbox: by DEL, or later if DEL was missed.
func TestPodsBeforeInstallation(t *testing.T) {
	b := newBed(t)
	s := b.sink("sink")
	b.module("deny", "{package: {name: firewall}, config: {defaultPolicy: {ingress: deny, egress: deny}}, "+
		"attach: {pods: {podSelector: {matchLabels: {app: web}}}}}")
	b.module(count, counter("app: db"))
	made := b.pod("made", map[string]string{"app": "db"})
	made.await(count)
	b.stop(syscall.SIGTERM)
	socket := filepath.Join(t.TempDir(), "nri.sock")
	r := nritest.Start(t, socket)
	web, sandbox := b.ran(r, "web", "web")
	db, dbSandbox := b.ran(r, "db", "db")
	made.container = "sandbox-of-made"
	made.listed(r, made.host.Path(), nil)
	onNode := &pod{names.Pod{Namespace: "default", Name: "on-node",
		UID: b.createPod("default", "on-node", map[string]string{"app": "web"})}, nil, b, "sandbox-on-node"}
	onNode.listed(r, b.Lab.Node().Path(), nil)
	b.serve(web.host, "web", targetPort)
	echo := b.Host("echo")
	b.echo(echo, targetPort)
	web.floods(s)
	answered, stop := db.open(echo.Addr4().String(), targetPort), db.exchange(b.reflect(echo, 9))
	b.Eventually("pods send", func() bool { return s.from(web) > 0 })
	if got := db.reach(web.host.Addr4().String(), targetPort); got != "web" || answered() != nil {
		t.Fatalf("before, web answers %q", got)
	}

	b.flags = []string{"--nri", socket}
	b.start()
	web.await("deny")
	db.await(count)
	b.Eventually("nothing of a denied pod arrives any more", func() bool {
		before := s.from(web)
		got := db.reach(web.host.Addr4().String(), targetPort)
		if !strings.Contains(got, "timeout") {
			t.Fatalf("a pod that denies everything answers %q", got)
		}
		return s.from(web) == before
	})
	b.Eventually("no service is left of the pod on the node", func() bool {
		text, _ := os.ReadFile(b.log.Name())
		return strings.Contains(string(text), "pod=default/on-node") && strings.Contains(onNode.modules(), "404")
	})
	var is v1.Service
	b.Must("GET", "/v1/services/"+made.Service(), nil, &is)
	if names.IsAdopted(is.Metadata.Labels[names.LabelAttachment]) || made.modules() != count {
		t.Errorf("the service of kerb-cni became %+v", is.Metadata)
	}
	if err := answered(); err != nil {
		t.Errorf("a connection of a pod that no module denies: %v", err)
	}

	b.stop(syscall.SIGKILL)
	b.start() // it is a service like others
	db.label("app: both")
	db.await("")
	db.label("app: db")
	db.await(count)
	if err := stop(); err != nil {
		t.Error(err)
	}
	r.End(sandbox)
	if err := web.cni("DEL"); err != nil {
		t.Fatal(err)
	}
	if got := web.modules(); !strings.Contains(got, "404") {
		t.Errorf("after DEL: %s", got)
	}
	b.stop(syscall.SIGKILL)
	r.Forget(dbSandbox.GetId())
	db.delete()
	if err := db.host.Remove(); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.Eventually("the service of a pod that has ended meanwhile is gone", func() bool {
		return strings.Contains(db.modules(), "404")
	})
}
