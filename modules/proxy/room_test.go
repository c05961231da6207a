// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/services"
	"github.com/kerb-edge/kerb/sdk"
)

// otherService returns a service with one address and separate instances.
func otherService(name, address string, instances int) sdk.VirtualService {
	vs := sdk.VirtualService{Name: name}
	vs.Spec.Addresses = []v1alpha1.VirtualAddress{{Address: address}}
	vs.Spec.Ports = []v1alpha1.VirtualPort{{Port: 80}}
	for i := range instances {
		vs.Spec.Instances = append(vs.Spec.Instances, v1alpha1.VirtualInstance{Name: fmt.Sprint(name, "-", i),
			Addresses: []string{fmt.Sprintf("10.19.%d.%d", i>>8, i&255)}})
	}
	return vs
}

// later frees resting slots, and retries updates that had no room.
func (p *testControl) later() {
	p.t.Helper()
	p.now = p.now.Add(2 * restFor)
	if err := p.w.again(p.now); err != nil {
		p.t.Fatal(err)
	}
}

// An address without room in a table is not in the maps, so that the data plane does not claim its packets. Existing
// addresses stay unchanged, and it is added when there is room.
func TestNewAddressWithoutRoom(t *testing.T) {
	for field, tables := range map[string]string{"slots": `"slots": 8`, "instances": `"instances": 8`} {
		t.Run(field, func(t *testing.T) {
			p := newTestControl(t, `{"tables": {`+tables+`}}`)
			first, late := otherService("first", "10.30.0.1", 8), otherService("late", "10.30.0.2", 2)
			p.put(first)
			before := p.dump()
			p.put(late)
			if got := p.served("10.30.0.2"); got != nil {
				t.Errorf("served by %v", got)
			}
			if err := p.w.Health(); err == nil || !strings.Contains(err.Error(), "raise tables."+field+", which is 8") {
				t.Errorf("health: %v", err)
			}
			resting := len(p.w.ids.resting)
			for range 3 {
				p.later()
			}
			if got := len(p.w.ids.resting); got != resting || got != 0 {
				t.Errorf("%d IDs rest, then %d, of addresses that were never there", resting, got)
			}
			after := p.dump()
			for key, value := range before {
				if after[key] != value {
					t.Errorf("%s is %v, was %v", key, after[key], value)
				}
			}
			for key := range after {
				if _, ok := before[key]; !ok && !strings.HasPrefix(key, mapInstances) && !strings.HasPrefix(key, mapOwners) {
					t.Errorf("%s is in the maps", key)
				}
			}
			p.update(sdk.VirtualServiceUpdate{Remove: []string{"first"}})
			p.later()
			p.sweep()
			p.later()
			p.same("with room", p.served("10.30.0.2"), []string{"late-0", "late-1"})
			if err := p.w.Health(); err != nil {
				t.Error(err)
			}
			p.update(sdk.VirtualServiceUpdate{Remove: []string{"late"}})
			p.now = p.now.Add(2 * restFor)
			p.w.slots.wake(p.now)
			if p.w.slots.used != 0 || p.w.slots.rested != 0 || len(p.w.addresses) != 0 {
				t.Errorf("%d slots, %d resting, %d addresses are left", p.w.slots.used, p.w.slots.rested, len(p.w.addresses))
			}
		})
	}
}

// An address without instances is not in the maps either, while new ones have no room. Its number is released once.
func TestEmptyAddressWithoutRoom(t *testing.T) {
	p := newTestControl(t, `{"tables": {"slots": 8, "addresses": 2}}`)
	late := otherService("late", "10.30.0.2", 0)
	p.put(late, otherService("first", "10.30.0.1", 4))
	p.same("without instances", p.served("10.30.0.2"), []string{})
	p.put(late, otherService("third", "10.30.0.3", 2), late) // the third has no number
	p.update(sdk.VirtualServiceUpdate{Remove: []string{"third"}})
	p.same("the same again", p.served("10.30.0.2"), []string{})
	p.put(otherService("late", "10.30.0.2", 5))
	if got := p.served("10.30.0.2"); got != nil {
		t.Errorf("served by %v", got)
	}
	p.put(otherService("late", "10.30.0.2", 1))
	p.later()
	p.later()
	p.same("fewer", p.served("10.30.0.2"), []string{"late-0"})
	p.put(otherService("more", "10.30.0.3", 1))
	if err := p.w.Health(); err == nil || !strings.Contains(err.Error(), "raise tables.addresses, which is 2") {
		t.Errorf("a number was given out twice: %v", err)
	}
}

// An address that moves to a virtual service without room is not served by instances of the previous one.
func TestMovedAddressWithoutRoom(t *testing.T) {
	p := newTestControl(t, `{"tables": {"slots": 8}}`)
	p.put(otherService("first", "10.30.0.1", 4))
	p.put(otherService("second", "10.30.0.1", 5))
	if got := p.served("10.30.0.1"); got != nil {
		t.Errorf("served by %v", got)
	}
	p.update(sdk.VirtualServiceUpdate{Remove: []string{"first"}})
	p.later()
	p.same("with room", p.served("10.30.0.1"), []string{"second-0", "second-1", "second-2", "second-3", "second-4"})
}

// An address that moves while all slots are in use is served as soon as its previous slots have rested, not at the next
// sweep, and not retried before.
func TestMovedAddressGetsItsSlots(t *testing.T) {
	p := newTestControl(t, `{"tables": {"slots": 8}}`)
	p.put(otherService("first", "10.30.0.1", 5))
	p.put(otherService("second", "10.30.0.1", 5))
	reuseFreedSlots := func() {
		t.Helper()
		if err := p.w.reuseFreedSlots(p.now); err != nil {
			t.Fatal(err)
		}
	}
	if reuseFreedSlots(); p.served("10.30.0.1") != nil {
		t.Errorf("served by %v before its slots have rested", p.served("10.30.0.1"))
	}
	p.now = p.now.Add(restFor)
	reuseFreedSlots()
	p.same("after that", p.served("10.30.0.1"), []string{"second-0", "second-1", "second-2", "second-3", "second-4"})
	if s := p.w.services["second"]; s.short != 0 || s.spec != nil || p.w.Health() != nil {
		t.Errorf("%d slots are missing: %v", s.short, p.w.Health())
	}
}

// A service that the kernel rejects has an error until it is written: ticks without errors do not clear it, and the
// sweep retries it.
func TestFailedWriteIsTriedAgain(t *testing.T) {
	for name, retry := range map[string]func(*running, time.Time) error{"slots": (*running).reuseFreedSlots,
		"sweep": (*running).again} {
		t.Run(name, func(t *testing.T) {
			p := newTestControl(t, `{"tables": {"slots": 8}}`)
			p.put(otherService("first", "10.30.0.1", 5))
			p.put(otherService("second", "10.30.0.1", 5))
			p.now = p.now.Add(restFor)
			vips := p.w.maps.vips
			p.w.maps.vips = p.w.maps.slots // refuses keys of this size
			if err := retry(p.w, p.now); err == nil {
				t.Fatal("a write that fails is no error")
			}
			p.w.maps.vips = vips
			p.w.tick(p.now)
			if err := p.w.Health(); err == nil || !strings.Contains(err.Error(), "virtual service second") {
				t.Errorf("health of a service that is half written: %v", err)
			}
			p.later()
			p.same("written again", p.served("10.30.0.1"), []string{"second-0", "second-1", "second-2", "second-3", "second-4"})
			if err := p.w.Health(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A port that not all instances serve is refused if its run has no room, since the run of the address contains other
// instances.
func TestPortWithoutSlots(t *testing.T) {
	p := newTestControl(t, `{"tables": {"slots": 8}}`)
	vs := otherService("web", "10.30.0.1", 5)
	vs.Spec.Ports = append(vs.Spec.Ports, v1alpha1.VirtualPort{Port: 81})
	p.put(excluding(vs, 0, v1alpha1.ExcludedPort{Port: 81}))
	if len(p.w.addresses) != 1 || len(p.splits()) != 0 {
		t.Errorf("runs of ports: %v", p.splits())
	}
	for key := range p.dump() {
		if strings.HasPrefix(key, "port") && strings.Contains(key, fmt.Sprint(portOf(81))) {
			t.Errorf("%s is in the maps", key)
		}
	}
	if err := p.w.Health(); err == nil || !strings.Contains(err.Error(), "raise tables.slots, which is 8") {
		t.Errorf("health: %v", err)
	}
}

// Tables of addresses with affinity are small, and frequent changes of one service do not resize tables of others.
func TestMaglevSharesOfServices(t *testing.T) {
	p := newTestControl(t, `{"tables": {"slots": 16384}}`)
	hashed := otherService("hashed", "10.30.0.1", 10)
	hashed.Spec.Addresses[0].Policy = v1alpha1.PolicyConsistentHash
	sticky := otherService("sticky", "10.30.0.2", 10)
	sticky.Spec.Addresses[0].Policy, sticky.Spec.Addresses[0].AffinityTimeout = v1alpha1.PolicySourceAffinity, "3h"
	p.put(hashed, sticky)
	if got := []int{len(p.served("10.30.0.1")), len(p.served("10.30.0.2"))}; !slices.Equal(got, []int{1021, 251}) {
		t.Errorf("tables of %v slots", got)
	}
	other := otherService("other", "10.30.0.3", 10)
	other.Spec.Addresses[0].Policy = v1alpha1.PolicyConsistentHash
	for i := range 11 {
		other.Spec.Instances[0].Draining = i%2 == 0
		p.put(other)
	}
	if p.w.slots.used != 256+12*1024 || p.w.slots.rested != 10*1024 {
		t.Fatalf("%d slots are used, %d rest", p.w.slots.used, p.w.slots.rested)
	}
	hashed.Spec.Instances[0].Draining = true
	p.put(hashed)
	if got := len(p.served("10.30.0.1")); got != 1021 {
		t.Errorf("a table of %d slots", got)
	}
}

// The size that kerb-kube-node computes for a Service is that of its virtual service.
func TestSlotsOfServices(t *testing.T) {
	vs := otherService("web", "10.30.0.1", services.MaxEndpoints)
	vs.Spec.Addresses[0].AffinityTimeout = "3h"
	for n := range services.MaxEndpoints + 1 {
		of := v1alpha1.VirtualService{Spec: vs.Spec}
		of.Spec.Instances = vs.Spec.Instances[:n]
		want := 1
		if n > 1 {
			want = 1 << orderOf(maglevSize(n, maglevScarce))
		}
		if got := services.Slots(&of); got != want {
			t.Fatalf("%d instances: %d, want %d", n, got, want)
		}
	}
	p := newTestControl(t, "")
	r := rand.New(rand.NewPCG(7, 8))
	for i := range 200 {
		vs := webService(r.IntN(1+r.IntN(60)), []v1alpha1.Policy{v1alpha1.PolicySourceAffinity, ""}[i%2])
		for i := range vs.Spec.Addresses {
			if vs.Spec.Addresses[i].Policy != "" {
				vs.Spec.Addresses[i].AffinityTimeout = "10s"
			}
		}
		for port := range r.IntN(6) {
			vs.Spec.Ports = append(vs.Spec.Ports, v1alpha1.VirtualPort{Port: uint16(80 + port)})
		}
		for i := range vs.Spec.Instances {
			in := &vs.Spec.Instances[i]
			in.Draining = r.IntN(4) == 0
			for _, port := range vs.Spec.Ports {
				if r.IntN(5) == 0 {
					in.ExcludedPorts = append(in.ExcludedPorts, v1alpha1.ExcludedPort{Port: port.Port})
				}
			}
		}
		p.put(vs)
		p.now = p.now.Add(2 * restFor)
		p.w.slots.wake(p.now)
		if got, want := services.Slots(&v1alpha1.VirtualService{Spec: vs.Spec}), int(p.w.slots.used); got != want {
			t.Fatalf("%d are counted, %d taken: %+v", got, want, vs.Spec)
		}
	}
}
