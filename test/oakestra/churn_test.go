// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/seed"
)

const (
	services     = 20
	maxInstances = 2 // of a service
)

// instance is a running instance in the model.
type instance struct {
	service   string
	number    int
	at        *worker
	container *container
	addresses [2]string
}

// model is the expected state of the cluster.
type model struct {
	*bed
	rng        *rand.Rand
	running    map[string]map[int]*instance
	containers int
	flows      []*flow
}

func serviceName(i int) string { return fmt.Sprintf("app.ns.s%d.test", i) }

func (m *model) all() (all []*instance) {
	for _, name := range slices.Sorted(maps.Keys(m.running)) {
		for _, n := range slices.Sorted(maps.Keys(m.running[name])) {
			all = append(all, m.running[name][n])
		}
	}
	return all
}

func pick[T any](m *model, all []T) T { return all[m.rng.IntN(len(all))] }

// place deploys an instance on a worker, as orchestrator and NodeEngine do. An existing one moves.
func (m *model) place(name string, number int, w *worker) {
	m.Helper()
	m.cluster.Schedule(name, number)
	for try := 1; ; try++ {
		m.containers++
		c := w.container(m.T, fmt.Sprintf("%s.%d#%d", name, number, m.containers))
		addresses, err := w.deploy(name, number, c)
		if err == nil {
			m.addInstance(&instance{name, number, w, c, addresses})
			return
		}
		w.end(c)
		if try == 5 {
			m.Fatalf("after %d tries: %v", try, err)
		}
	}
}

func (m *model) addInstance(i *instance) {
	m.Helper()
	for _, a := range i.addresses {
		if owner := m.used[a]; owner != "" {
			m.Errorf("%s got %s, which %s has", i.container.identity, a, owner)
		}
		m.used[a] = i.container.identity
	}
	m.running[i.service][i.number] = i
}

func (m *model) removeInstance(i *instance) {
	for _, a := range i.addresses {
		delete(m.used, a)
	}
	delete(m.running[i.service], i.number)
}

// steps are the possible steps, with their probability in percent. Each returns the affected services.
var steps = []struct {
	name  string
	often int
	do    func(*model) (touched map[string]bool)
}{
	{"deploy", 28, (*model).deploy},
	{"undeploy", 24, (*model).undeploy},
	{"move", 24, (*model).move},
	{"redeploy", 8, (*model).redeploy},
	{"kill the agent", 4, (*model).killAgent},
	{"kill the agent in a deployment", 5, (*model).killInDeployment},
	{"restart NodeEngine", 3, (*model).restartNodeEngine},
	{"restart the broker", 2, (*model).restartBroker},
	{"restart the service manager", 2, (*model).restartServiceManager},
}

func (m *model) deploy() map[string]bool {
	for range 50 {
		name := serviceName(m.rng.IntN(services))
		for n := range maxInstances {
			if m.running[name][n] == nil {
				m.place(name, n, pick(m, m.workers))
				return map[string]bool{name: true}
			}
		}
	}
	return nil
}

// undeploy notifies the root first, as the system manager does: the notice may arrive before the worker's own request.
func (m *model) undeploy() map[string]bool {
	all := m.all()
	if len(all) <= services/2 {
		return nil
	}
	i := pick(m, all)
	m.cluster.Undeploy(i.service, i.number)
	i.at.undeploy(i.service, i.number)
	i.at.end(i.container)
	m.removeInstance(i)
	return map[string]bool{i.service: true}
}

// move ends the instance on one worker, as after a failure, and starts it on another under the same number.
func (m *model) move() map[string]bool {
	i := pick(m, m.all())
	i.at.undeploy(i.service, i.number)
	i.at.end(i.container)
	m.removeInstance(i)
	others := slices.DeleteFunc(slices.Clone(m.workers), func(w *worker) bool { return w == i.at })
	m.place(i.service, i.number, pick(m, others))
	return map[string]bool{i.service: true}
}

func (m *model) redeploy() map[string]bool {
	i := pick(m, m.all())
	i.at.undeploy(i.service, i.number)
	i.at.end(i.container)
	m.removeInstance(i)
	m.place(i.service, i.number, i.at)
	return map[string]bool{i.service: true}
}

// killInDeployment kills the agent at a random moment of a deployment. NodeEngine gets an error, and then starts
// another container, or a response.
func (m *model) killInDeployment() map[string]bool {
	i := pick(m, m.all())
	w := i.at
	i.at.undeploy(i.service, i.number)
	w.end(i.container)
	m.removeInstance(i)
	m.cluster.Schedule(i.service, i.number)
	m.containers++
	c := w.container(m.T, fmt.Sprintf("%s.%d#%d", i.service, i.number, m.containers))
	done := make(chan error)
	var addresses [2]string
	go func() {
		var err error
		addresses, err = w.deploy(i.service, i.number, c)
		done <- err
	}()
	moment := time.NewTimer(time.Duration(m.rng.IntN(150)) * time.Millisecond)
	var err error
	select {
	case err = <-done:
		w.killAgent()
	case <-moment.C:
		w.killAgent()
		err = <-done
	}
	if err == nil {
		m.addInstance(&instance{i.service, i.number, w, c, addresses})
	} else {
		w.end(c)
		m.place(i.service, i.number, w)
	}
	return map[string]bool{i.service: true}
}

// restartNodeEngine ends all containers of a worker, which gets a new id and subnet. The cluster marks the instances as
// dead, and half of them are started elsewhere.
func (m *model) restartNodeEngine() map[string]bool {
	w, touched := pick(m, m.workers), map[string]bool{}
	var dead []*instance
	for _, i := range m.all() {
		if i.at == w {
			dead = append(dead, i)
			touched[i.service] = true
			m.removeInstance(i)
		}
	}
	if m.rng.IntN(2) == 0 {
		m.registerAndKill(w)
	}
	w.startNodeEngine()
	for _, i := range dead {
		m.cluster.Undeploy(i.service, i.number)
	}
	for n, i := range dead {
		if n%2 == 0 || len(m.all()) < services/2 {
			m.place(i.service, i.number, pick(m, m.workers))
		}
	}
	return touched
}

// registerAndKill kills the agent at a random moment of a registration, which makes NodeEngine exit.
func (m *model) registerAndKill(w *worker) {
	done := make(chan struct{})
	m.ids++
	id := fmt.Sprintf("6650000000000000%08x", m.ids)
	go func() {
		defer close(done)
		_, _, _ = w.call("/register", map[string]any{"client_id": id, "cluster_address": m.lab.Gateway4().String()})
	}()
	select {
	case <-done:
	case <-time.After(time.Duration(m.rng.IntN(100)) * time.Millisecond):
	}
	w.killAgent()
	<-done
}

func (m *model) killAgent() map[string]bool {
	pick(m, m.workers).killAgent()
	return nil
}

func (m *model) restartServiceManager() map[string]bool {
	m.cluster.Restart()
	return nil
}

func (m *model) restartBroker() map[string]bool {
	m.inCluster(func() { m.broker.Stop(); m.broker.Start() })
	return nil
}

// awaitSettled waits until all agents have the model's state of a service, and so have their modules.
func (m *model) awaitSettled(name string) {
	m.Helper()
	for _, w := range m.workers {
		var got v1.VirtualService
		var err error
		wait.Until(m.T, w.name+" has "+name+" as it is", func() bool {
			got = v1.VirtualService{}
			err = w.Get("/v1/virtualservices/oakestra."+name, &got)
			return err != nil || m.isValid(name, w, got)
		}, func() any { return got.Status }, func() any { return m.describe(name) })
	}
}

// isValid reports whether a worker's state of a service is valid: a worker with an instance of the service has passed
// it to its proxy; others may not use it.
func (m *model) isValid(name string, w *worker, s v1.VirtualService) bool {
	if s.Status == nil || len(s.Status.Instances) != len(m.running[name]) {
		return false
	}
	hosted := false
	for _, i := range s.Status.Instances {
		n, _ := strconv.Atoi(i.Name)
		r := m.running[name][n]
		if r == nil || !slices.Equal(i.Addresses, r.addresses[:]) {
			return false
		}
		hosted = hosted || r.at == w
	}
	return slices.Contains(s.Status.Modules, "oakestra-proxy") || !hosted && len(s.Status.Modules) == 0
}

func (m *model) describe(name string) (all []string) {
	for n, i := range m.running[name] {
		all = append(all, fmt.Sprintf("%d %v on %s; the cluster has %s", n, i.addresses, i.at.name, m.cluster.Where(name, n)))
	}
	return all
}

// check makes a client reach a service in every way: by service IP and instance IP, IPv4 and IPv6, TCP, UDP and UDP in
// fragments. The service receives the instance IP of the client.
func (m *model) check(from *instance, name string) error {
	own := m.cluster.InstanceAddresses(from.service, from.number)
	ask := func(family int, address string, right ...*instance) (err error) {
		ways := []struct{ network, text string }{{"udp", "reach"}, {"tcp", "reach"}, {"udp", fragmented}}
		stock := slices.ContainsFunc(append(right, from), func(i *instance) bool { return i.at.Node == nil })
		if stock {
			ways = ways[:2] // NetManager damages fragments and drops ICMP
		}
		for _, way := range ways {
			got, wrong := from.container.reach(way.network, address, way.text)
			if wrong == nil && (got.client != own[family] ||
				!slices.ContainsFunc(right, func(i *instance) bool { return i.container.identity == got.identity })) {
				wrong = fmt.Errorf("%s by %s %s: answered by %s to %s, not %s", from.container.identity, way.network, address,
					got.identity, got.client, own[family])
			}
			err = errors.Join(err, wrong)
		}
		if stock {
			return err
		}
		return errors.Join(err, from.container.refused(address))
	}
	all := slices.Collect(maps.Values(m.running[name]))
	if len(all) == 0 {
		return nil
	}
	var wrong error
	for family, a := range m.cluster.Addresses(name) {
		wrong = errors.Join(wrong, ask(family, a, all...))
	}
	for n, i := range m.running[name] {
		for family, a := range m.cluster.InstanceAddresses(name, n) {
			wrong = errors.Join(wrong, ask(family, a, i))
		}
	}
	if wrong != nil {
		return fmt.Errorf("%s on %s: %w; %s is %v", from.container.identity, from.at.name, wrong, name, m.describe(name))
	}
	return nil
}

// checkAll makes clients reach others, several at a time, until a check fails.
func (m *model) checkAll(from []*instance, to func(*instance) []string) (pairs int64) {
	m.Helper()
	group, ctx := errgroup.WithContext(m.Context())
	group.SetLimit(8)
	var count atomic.Int64
	for _, i := range from {
		names := to(i)
		group.Go(func() error {
			for _, name := range names {
				if ctx.Err() != nil {
					return nil
				}
				if err := m.check(i, name); err != nil {
					return err
				}
				count.Add(1)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		m.Errorf("not reached: %v", err)
	}
	return count.Load()
}

func (m *model) others(i *instance) (names []string) {
	for name := range m.running {
		if name != i.service {
			names = append(names, name)
		}
	}
	return names
}

// newModel deploys an instance of each service on three workers, some of them with NetManager.
func newModel(t *testing.T, stock int) *model {
	t.Helper()
	m := &model{bed: newBed(t, 3-stock, stock), running: map[string]map[int]*instance{}}
	for i := range services {
		m.running[serviceName(i)] = map[int]*instance{}
		m.cluster.Create(serviceName(i))
		m.place(serviceName(i), 0, m.workers[i%len(m.workers)])
	}
	return m
}

// TestPairs makes each service connect to each other one by each of its addresses, and then reach it in all other ways.
func TestPairs(t *testing.T) {
	m := newModel(t, 0)
	m.connectAll(1, 4*services*(services-1))
	if pairs := m.checkAll(m.all(), m.others); pairs != services*(services-1) {
		t.Errorf("%d pairs of services reach each other in all ways", pairs)
	}
}

// TestPairsWithNetManager is TestPairs with a worker that has the double of NetManager.
func TestPairsWithNetManager(t *testing.T) {
	m := newModel(t, 1)
	m.connectAll(1, 4*services*(services-1))
	if pairs := m.checkAll(m.all(), m.others); pairs != services*(services-1) {
		t.Errorf("%d pairs of services reach each other in all ways", pairs)
	}
}

// TestChurn takes random steps. After each, the cluster matches the model; connections that a step does not affect
// continue, and lose nothing.
func TestChurn(t *testing.T) {
	text := os.Getenv("KERB_OAKESTRA_STEPS")
	if text == "" {
		t.Skip("needs minutes: make test-oakestra")
	}
	count, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("KERB_OAKESTRA_STEPS: %v", err)
	}
	m := newModel(t, 0)
	m.rng = seed.Rand(t)
	m.checkAll(m.all(), m.others)
	if t.Failed() {
		return
	}
	took := map[string]int{}
	for n := range count {
		m.openFlows()
		name, do := m.choose()
		stop := m.run()
		touched := do(m)
		for name := range touched {
			m.awaitSettled(name)
		}
		m.Logf("step %d, %s: %v", n, name, slices.Sorted(maps.Keys(touched)))
		stop(fmt.Sprintf("step %d, %s", n, name), touched)
		took[name]++
		all := m.all()
		m.checkAll([]*instance{pick(m, all), pick(m, all)}, func(i *instance) []string {
			names := append(slices.Collect(maps.Keys(touched)), serviceName(m.rng.IntN(services)))
			return slices.DeleteFunc(names, func(n string) bool { return n == i.service })
		})
		if t.Failed() {
			t.Fatalf("after step %d, %s", n, name)
		}
	}
	m.closeFlows()
	if count > 100 {
		m.checkAll(m.all(), m.others)
	}
	if m.cluster.Dead() {
		t.Error("a worker has ended the service manager by an interest/remove without an interest")
	}
	t.Logf("steps: %v; %d packets of untouched flows, none lost", took, m.packets())
}

func (m *model) choose() (string, func(*model) map[string]bool) {
	n := m.rng.IntN(100)
	for _, s := range steps {
		if n -= s.often; n < 0 {
			return s.name, s.do
		}
	}
	return steps[0].name, steps[0].do
}
