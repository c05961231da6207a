// SPDX-License-Identifier: Apache-2.0

package view

import (
	"slices"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/status"
)

// modules returns a function that reads one module with its status. It reads the counters from the kernel once for all
// modules of a list, and without the lock.
func (v *Views) modules() func(string) resource.Object {
	counts := v.counts()
	return func(name string) resource.Object {
		v.Lock.Lock()
		defer v.Lock.Unlock()
		m, ok := resource.Module.Get(v.Now.Desired, name)
		if !ok {
			return nil
		}
		view := v.Now.Module(m)
		view.Status.Counts = status.CountsOf(counts, name)
		return resource.ObjectOf(view)
	}
}

// counts returns the packet counters of all modules.
func (v *Views) counts() dataplane.Counts {
	counts, err := v.Dataplane.Counts()
	if err != nil {
		v.Log.Warn("cannot read the counts of modules", "error", err)
	}
	return counts
}

func (v *Views) services() func(string) resource.Object {
	programs := v.programs()
	v.Lock.Lock()
	view := v.Now.ServiceView(programs)
	v.Lock.Unlock()
	return func(name string) resource.Object {
		v.Lock.Lock()
		defer v.Lock.Unlock()
		s, ok := resource.Service.Get(v.Now.Desired, name)
		if !ok {
			return nil
		}
		return resource.ObjectOf(view(s))
	}
}

// service returns one service with its status, or nil. It reads only the kernel state of this service and does not wait
// for changes, since kerb-cni calls it for each pod that starts, and many start at the same time.
func (v *Views) service(name string, brief bool) resource.Object {
	v.Lock.Lock()
	points := v.Now.ServicePoints(name)
	v.Lock.Unlock()
	programs := v.programsOn(points, brief)
	v.Lock.Lock()
	defer v.Lock.Unlock()
	s, ok := resource.Service.Get(v.Now.Desired, name)
	if !ok {
		return nil
	}
	return resource.ObjectOf(v.Now.ServiceDetail(s, programs))
}

func (v *Views) addPrograms(o resource.Object) error {
	v.Now.AddPrograms(o.(*v1.Service))
	return nil
}

// programs returns the ids of attached programs by attach point.
func (v *Views) programs() map[chain.Point]uint32 {
	state, err := v.Look(time.Second)
	if err != nil {
		v.Log.Warn("cannot read the state of the kernel", "error", err)
	}
	return state.Programs()
}

// programsOn returns the ids of the programs on the given points. If the points still have the programs of the last
// observation, it neither waits for changes nor reads the rest of the node; otherwise, for example during a trace, it
// calls Look. If brief, it does not compare with the kernel.
func (v *Views) programsOn(points []chain.Point, brief bool) map[chain.Point]uint32 {
	if seen := v.Seen.Load(); seen != nil {
		known := seen.Programs()
		changed := func(p chain.Point) bool {
			if brief {
				return known[p] == 0
			}
			program, err := v.Dataplane.Program(p)
			return err != nil || program != known[p]
		}
		if !slices.ContainsFunc(points, changed) {
			return known
		}
	}
	return v.programs()
}

func (v *Views) virtualServices() func(string) resource.Object {
	v.Lock.Lock()
	defer v.Lock.Unlock()
	desired, ejected := v.Now.Desired, v.Now.Ejected()
	return func(name string) resource.Object {
		s, ok := v.Now.VirtualService(name, desired)
		if !ok {
			return nil
		}
		return resource.ObjectOf(status.WithEjected(s, ejected))
	}
}

// sets returns a function that reads one set with its status. It determines the users of sets once for all sets of a
// list.
func (v *Views) sets() func(string) resource.Object {
	v.Lock.Lock()
	defer v.Lock.Unlock()
	desired, users := v.Now.Desired, v.Now.SetUsers()
	return func(name string) resource.Object {
		s, ok := resource.Set.Get(desired, name)
		if !ok {
			return nil
		}
		s.Status = &v1.SetStatus{Elements: len(s.Spec.Elements), Modules: users[name]}
		v.Lock.Lock()
		defer v.Lock.Unlock()
		s.Status.Conditions = v.Now.RecordSet(s, users)
		return resource.ObjectOf(s)
	}
}

func (v *Views) models() func(string) resource.Object {
	return func(name string) resource.Object {
		m, ok := resource.Model.Get(v.present(), name)
		if !ok {
			return nil
		}
		if m.Status = v.Models.Status(name); m.Status == nil { // a change that adds it is in progress
			m.Status = &v1.ModelStatus{}
			return &m
		}
		m.Status.Conditions = v.Now.Record(v1.KindModel, m.Metadata, m.Status.Conditions)
		return &m
	}
}

func (v *Views) addVersions(o resource.Object) (err error) {
	m := o.(*v1.Model)
	m.Status.Versions, err = v.Store.Versions(resource.Model, m.Metadata.Name)
	return err
}
