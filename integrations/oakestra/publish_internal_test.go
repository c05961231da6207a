// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// tunnelHas is an address that the tunnel always delivers packets to.
const tunnelHas = "10.18.0.9"

const tunnelWarning = "the tunnel may not deliver"

// tunnelAgent is an agent whose tunnel delivers packets to the address of an instance from a given request on. Its
// proxy knows the instance.
type tunnelAgent struct {
	address string
	from    int  // requests until the tunnel has the address
	missing int  // of these, until there is a tunnel
	other   bool // a user has replaced the tunnel by a package that lists no addresses

	mu    sync.Mutex
	asked int
	early bool // the instance was announced before
}

func newTunnelAgent(m *member, a *tunnelAgent) {
	m.Helper()
	socket, err := net.Listen("unix", filepath.Join(m.TempDir(), "agent"))
	if err != nil {
		m.Fatal(err)
	}
	server := &httptest.Server{Listener: socket,
		Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a.serve(m, w, r)
		})}}
	server.Start()
	m.Cleanup(server.Close)
	m.l.agent = newAgent(socket.Addr().String())
}

func (a *tunnelAgent) serve(m *member, w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var answer any
	switch path := strings.TrimPrefix(r.URL.Path, "/v1/"); {
	case path == "modules/"+tunnelResource && a.other:
		answer = v1.Module{}
	case path == "modules/"+tunnelResource+"/addresses" && !a.other:
		a.asked++
		has := []netip.Addr{netip.MustParseAddr(tunnelHas)}
		if a.asked > a.from {
			has = append(has, netip.MustParseAddr(a.address))
		}
		a.early = a.early || a.asked <= a.from && m.count(topicDeployed) > 0
		answer = has
	case strings.HasPrefix(path, "virtualservices/"):
		answer = v1.VirtualService{Status: &v1.VirtualServiceStatus{Modules: []string{proxyResource},
			Instances: []v1.VirtualInstanceStatus{{Name: "0", Addresses: []string{a.address}}}}}
	}
	if answer == nil || a.asked < a.missing {
		http.NotFound(w, r)
		return
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		m.Error(err)
	}
}

func (a *tunnelAgent) seen() (asked int, early bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked, a.early
}

// publish does what a deployment does once the instance is connected.
func (m *member) publish(address string) {
	i := hostedInstance{app: testApp, four: netip.MustParseAddr(address), six: netip.MustParseAddr("fc00::2"),
		known: make(chan bool, 1), held: true}
	m.l.session.add(i)
	m.l.publish(m.Context(), m.l.session, i)
}

// The cluster learns of an instance when the tunnel delivers packets to it: clients on other workers send immediately.
// A reply about the service in the meantime does not cause an announcement, either.
func TestInstanceIsAnnouncedWhenTheTunnelHasIt(t *testing.T) {
	for name, a := range map[string]*tunnelAgent{
		"late":    {address: "10.18.0.2", from: 5},
		"missing": {address: "10.18.0.2", from: 5, missing: 3},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMember(t)
			m.cluster.Create(testApp)
			m.register(testWorker)
			newTunnelAgent(m, a)
			m.cluster.Schedule(testApp, 0)
			done := make(chan struct{})
			go func() { defer close(done); m.publish(a.address) }()
			wait.Until(t, "the tunnel is asked", func() bool { asked, _ := a.seen(); return asked > 0 })
			m.l.session.mu.Lock()
			m.l.session.refresh(m.l.session.services[testApp])
			m.l.session.mu.Unlock()
			<-done
			if asked, early := a.seen(); early || asked <= a.from {
				t.Errorf("announced when the tunnel was asked %d of %d times: %v", asked, a.from+1, m.cluster.Received())
			}
			m.until("announced", 0, a.address+"@192.168.77.11:50103")
		})
	}
}

// An instance that is withdrawn while it waits for the tunnel is not announced any more: the same instance may have
// been deployed again, with another address.
func TestWithdrawnInstanceIsNotAnnounced(t *testing.T) {
	m := newMember(t)
	m.cluster.Create(testApp)
	m.register(testWorker)
	m.cluster.Schedule(testApp, 0)
	a := &tunnelAgent{address: "10.18.0.2", from: 1 << 30}
	newTunnelAgent(m, a)
	done := make(chan struct{})
	go func() { defer close(done); m.publish(a.address) }()
	wait.Until(t, "the tunnel is asked", func() bool { asked, _ := a.seen(); return asked > 0 })
	m.l.session.withdraw(testApp, 0)
	m.publish(tunnelHas)
	<-done
	m.deploy(1, "10.18.0.8") // after all earlier messages
	m.until("another instance", 1, "10.18.0.8@192.168.77.11:50103")
	m.until("deployed again", 0, tunnelHas+"@192.168.77.11:50103")
	for _, r := range m.cluster.Received() {
		if r.Topic == topicDeployed && strings.Contains(r.Payload, `"`+a.address+`"`) {
			t.Errorf("announced: %s", r.Payload)
		}
	}
	if text := m.log.String(); strings.Contains(text, tunnelWarning) {
		t.Errorf("waited for the tunnel: %s", text)
	}
}

// A tunnel that does not deliver in time, or that a user has replaced, does not block the deployment.
func TestInstanceIsAnnouncedWithoutTheTunnel(t *testing.T) {
	m := newMember(t)
	m.cluster.Create(testApp)
	m.register(testWorker)
	m.cluster.Schedule(testApp, 0)
	newTunnelAgent(m, &tunnelAgent{address: "10.18.0.2", from: 1 << 30})
	m.publish("10.18.0.2")
	m.until("announced", 0, "10.18.0.2@192.168.77.11:50103")
	if !strings.Contains(m.log.String(), tunnelWarning) {
		t.Errorf("no warning: %s", m.log)
	}
	mark := len(m.log.String())
	newTunnelAgent(m, &tunnelAgent{address: "10.18.0.3", other: true})
	m.publish("10.18.0.3")
	m.until("announced again", 0, "10.18.0.3@192.168.77.11:50103")
	if after := m.log.String()[mark:]; strings.Contains(after, tunnelWarning) {
		t.Errorf("waited for the tunnel of a user: %s", after)
	}
}
