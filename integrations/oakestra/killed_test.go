// SPDX-License-Identifier: Apache-2.0

package oakestra_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/oaktest"
)

// killMoments returns at how many moments of a request the process and the agent are killed.
func killMoments() int {
	if os.Getenv("KERB_OAKESTRA_STEPS") != "" { // make test-oakestra
		return 25
	}
	return 3
}

// killers kill (SIGKILL) the processes that serve NodeEngine.
func (n *node) killers() map[string]func() {
	return map[string]func(){
		"process": n.killProcess,
		// restarts the process without a delay, however often that was killed
		"agent": func() { n.Kill(); n.start() },
	}
}

// requestAndKill sends a request, which may fail, and kills after a time, or when it has ended.
func (n *node) requestAndKill(path, body string, after time.Duration, kill func()) {
	n.T.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if r, err := n.client.Post("http://node"+path, isJSON, strings.NewReader(body)); err == nil {
			r.Body.Close()
		}
	}()
	select {
	case <-time.After(after):
	case <-done:
	}
	kill()
	<-done
	n.Eventually("the listener answers after a kill", n.answersAgain)
}

// TestKilledInADeploymentWithModules floods from a container that is deployed with a firewall while the process or the
// agent is killed: no packet passes, the deployment can be repeated, and both instances have different addresses.
func TestKilledInADeploymentWithModules(t *testing.T) {
	n, moments := newNode(t), killMoments()
	register(n)
	four, six := n.container().deploy("other.test.db.test", 0, "") // creates the bridge
	used := map[string]string{four: "other", six: "other"}
	passed := n.sniff("oakbr")
	const modules = `,"ebpfModules":[{"name":"firewall","config":{}},{"name":"counter"}]`
	start := time.Now()
	n.container().deploy(appName, 0, modules)
	whole := time.Since(start)
	n.undeploy(appName, 0)
	for moment := range moments {
		for name, kill := range n.killers() {
			box := n.container()
			stop, sent := make(chan struct{}), make(chan int)
			go func() { sent <- box.flood(stop) }()
			body := fmt.Sprintf(`{"pid":%d,"serviceName":%q,"instanceNumber":0%s}`, box.pid(), appName, modules)
			n.requestAndKill("/container/deploy", body, whole*time.Duration(moment)/time.Duration(moments), kill)
			four, six := box.deploy(appName, 0, modules)
			close(stop)
			if <-sent == 0 {
				t.Errorf("%s killed at %d of %d: nothing was sent", name, moment, moments)
			}
			if passed() {
				t.Fatalf("%s killed at %d of %d: a packet passed before the firewall was attached", name, moment, moments)
			}
			if used[four] != "" || used[six] != "" {
				t.Errorf("%s killed at %d of %d: %s and %s are in use", name, moment, moments, four, six)
			}
			if got := n.modulesFor(appName); !cmp.Equal(got, []string{"firewall", "counter"}) {
				t.Errorf("%s killed at %d of %d: modules %v", name, moment, moments, got)
			}
			n.undeploy(appName, 0)
			if got := n.modulesFor(appName); len(got) > 0 {
				t.Errorf("%s killed at %d of %d: modules %v after an undeployment", name, moment, moments, got)
			}
			box.end()
		}
	}
}

// TestKilledInARegistration registers with a new id, while a service of the former one has a module, and kills the
// process or the agent. Afterwards the id has a subnet that no other id has, and the rest of the service is protected
// or removed.
func TestKilledInARegistration(t *testing.T) {
	n, c := newClusterNode(t, "")
	moments := killMoments()
	c.Create(appName)
	c.Schedule(appName, 0)
	id := func(i int) string { return fmt.Sprintf(`{"client_id":"w%d","cluster_address":"127.0.0.1"}`, i) }
	n.must("POST", "/register", id(0))
	start := time.Now()
	n.must("POST", "/register", id(1))
	whole := time.Since(start)
	n.awaitSubnet("w1")
	subnets, next := map[string]string{}, 2
	for moment := range moments {
		for name, kill := range n.killers() {
			n.prepareFirewall(c, fmt.Sprintf("w%d", next-1))
			n.container().deploy(appName, 0, "")
			n.requestAndKill("/register", id(next), whole*time.Duration(moment)/time.Duration(moments), kill)
			services, modules := list[v1.Service](n, "service"), n.modulesFor(appName)
			if len(services) > 0 && len(modules) != 1 {
				t.Errorf("%s killed at %d of %d: service %s has modules %v", name, moment, moments,
					services[0].Metadata.Name, modules)
			}
			n.must("POST", "/register", id(next))
			n.awaitSubnet(fmt.Sprintf("w%d", next))
			four, _ := n.container().deploy(appName, 0, "")
			subnet := net.ParseIP(four).Mask(net.CIDRMask(26, 32)).String()
			if owner := subnets[subnet]; owner != "" {
				t.Errorf("%s killed at %d of %d: subnet %s is that of %s", name, moment, moments, subnet, owner)
			}
			subnets[subnet] = fmt.Sprint("w", next)
			n.Eventually("the cluster has the address", func() bool {
				return c.Where(appName, 0) == four+"@127.0.0.1:50103"
			})
			n.undeploy(appName, 0)
			next++
		}
	}
	if asked := c.Subnets(); asked > 2*next {
		t.Errorf("%d registrations, each killed at most once, asked for %d subnets", next, asked)
	}
}

// prepareFirewall announces an instance of appName with a firewall to a worker, and returns when its chains are linked.
// A deployment then only attaches them: the time that the verifier takes on a busy machine does not count against
// NodeEngine's timeout.
func (n *node) prepareFirewall(c *oaktest.Cluster, worker string) {
	n.T.Helper()
	var sent time.Time
	n.Eventually("chains with the firewall are linked", func() bool {
		resource := ""
		for _, m := range list[v1.Module](n, "module") {
			if m.Spec.Attach.Services == "oakestra.io/service="+appName {
				resource = m.Metadata.Name
			}
		}
		if resource == "" && time.Since(sent) > time.Second { // a message before the worker has subscribed is lost
			c.Forge("nodes/"+worker+"/control/deploy", jobText(appName, 0, `[{"name": "firewall", "config": {}}]`))
			sent = time.Now()
		}
		ready := 0
		for _, chain := range list[v1.Chain](n, "chain") {
			if chain.Ready && slices.Contains(chain.Modules, resource) {
				ready++
			}
		}
		return ready == 2
	})
}

// awaitSubnet waits until the worker has a subnet. A registration itself waits for it at most 3 s.
func (n *node) awaitSubnet(worker string) {
	n.T.Helper()
	n.Eventually(worker+" has a subnet", func() bool {
		var state struct{ Worker, Subnet string }
		data, err := os.ReadFile(n.Oakestra())
		return err == nil && json.Unmarshal(data, &state) == nil && state.Worker == worker && state.Subnet != ""
	})
}

// sniff captures on an interface of the node. The result reports whether a packet of a flood has arrived since the last
// call. On the port of a service it would also capture packets that a firewall drops.
func (n *node) sniff(name string) (passed func() bool) {
	n.T.Helper()
	var sniffer int
	if err := n.Lab.Node().Do(func() (err error) {
		if sniffer, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		i, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		return errors.Join(unix.SetNonblock(sniffer, true),
			unix.Bind(sniffer, &unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_ALL), Ifindex: i.Index}))
	}); err != nil {
		n.T.Fatal(err)
	}
	n.T.Cleanup(func() { unix.Close(sniffer) })
	frame := make([]byte, 2048)
	return func() bool {
		for {
			size, _, err := unix.Recvfrom(sniffer, frame, 0)
			if err != nil {
				return false
			}
			if strings.Contains(string(frame[:size]), flooded) {
				return true
			}
		}
	}
}
