// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// cni executes kerb-cni as a container runtime does, and returns its error.
func (p *pod) cni(command string) error {
	p.bed.T.Helper()
	cmd := p.bed.Lab.Node().Command(context.Background(), plugin)
	cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + cmp.Or(p.container, p.Name),
		"CNI_NETNS=" + p.host.Path(), "CNI_IFNAME=" + p.host.Interface(), "CNI_PATH=/nowhere",
		"CNI_ARGS=K8S_POD_NAMESPACE=" + p.Namespace + ";K8S_POD_NAME=" + p.Name + ";K8S_POD_UID=" + p.UID}
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "pods", "type": "kerb-cni", "socket": %q,
  "prevResult": {"cniVersion": "1.1.0", "interfaces": [{"sandbox": %q, "name": %q}]}}`, p.bed.Socket(), p.host.Path(),
		p.host.Interface()))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s of %s: %w: %s", command, p.Name, err, out)
	}
	return nil
}

// sink counts datagrams by their source.
type sink struct {
	sync.Mutex
	at     netip.AddrPort
	counts map[netip.Addr]int
}

func (b *bed) sink(name string) *sink {
	b.T.Helper()
	h := b.Host(name)
	s := &sink{at: netip.AddrPortFrom(h.Addr4(), 9), counts: map[netip.Addr]int{}}
	err := h.Do(func() error {
		c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(s.at))
		if err != nil {
			return err
		}
		b.T.Cleanup(func() { c.Close() })
		go func() {
			for {
				_, from, err := c.ReadFromUDPAddrPort(make([]byte, 16))
				if err != nil {
					return
				}
				s.Lock()
				s.counts[from.Addr().Unmap()]++
				s.Unlock()
			}
		}()
		return nil
	})
	if err != nil {
		b.T.Fatal(err)
	}
	return s
}

func (s *sink) from(p *pod) int {
	s.Lock()
	defer s.Unlock()
	return s.counts[p.host.Addr4()]
}

// floods starts the first process of a pod, which sends as long as the test runs.
func (p *pod) floods(s *sink) {
	p.bed.T.Helper()
	err := p.host.Do(func() error {
		c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(s.at))
		if err != nil {
			return err
		}
		p.bed.T.Cleanup(func() { c.Close() })
		go func() {
			for range time.Tick(time.Millisecond) {
				if _, err := c.Write([]byte("x")); err != nil && p.bed.T.Context().Err() != nil {
					return
				}
			}
		}()
		return nil
	})
	if err != nil {
		p.bed.T.Fatal(err)
	}
}

// kerb-cni and kerb-kube-node together: a pod sends from the end of ADD on, and not one packet passes that its modules
// deny, regardless of which of the two learns of the pod first, also with a new sandbox and after a restart of
// kerb-kube-node. A pod that no module denies can send as soon as its labels are known.
func TestPluginAndSync(t *testing.T) {
	b := newBed(t)
	s := b.sink("sink")
	b.module("deny", "{package: {name: firewall}, config: {defaultPolicy: {egress: deny}}, "+
		"attach: {pods: {podSelector: {matchLabels: {app: web}}}}}")
	sandboxed := func(name, uid string) *pod {
		return &pod{Pod: names.Pod{Namespace: "default", Name: name, UID: uid}, host: b.Host(name), bed: b}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	probe := sandboxed("probe", "u")
	b.Eventually("STATUS succeeds with the first sync", func() bool { return probe.cni("STATUS") == nil })
	var denied []*pod
	for i := range 4 {
		name := fmt.Sprint("web", i)
		p := sandboxed(name, b.createPod("default", name, map[string]string{"app": "web"}))
		must(p.cni("ADD"))
		p.floods(s)
		denied = append(denied, p)
	}
	free := sandboxed("free", b.createPod("default", "free", map[string]string{"app": "db"}))
	must(free.cni("ADD"))
	free.floods(s)
	b.Eventually("a pod that no module denies sends", func() bool { return s.from(free) > 0 })
	for _, p := range denied {
		p.await("deny")
	}
	b.stop(syscall.SIGKILL)
	again := denied[0]
	again.container = "later"
	must(again.cni("ADD")) // a new sandbox, while no process knows its labels
	if got := again.modules(); got != names.Pending {
		t.Errorf("after ADD of a new sandbox there are modules %s", got)
	}
	b.start()
	again.await("deny")
	passed := s.from(free)
	b.Eventually("packets continue", func() bool { return s.from(free) > passed+100 })
	for _, p := range denied {
		if n := s.from(p); n > 0 {
			t.Errorf("%d packets of %s have passed", n, p.Name)
		}
		must(p.cni("CHECK"))
	}
	must(free.cni("DEL"))
	b.Eventually("DEL removes the service", func() bool { return strings.Contains(free.modules(), "404") })
	b.api.Must(http.MethodDelete, podsPath+"/free?gracePeriodSeconds=0", nil, nil)
}
