// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/resource"
)

// kindOf is what the agent does for a kind of resources beyond storing them. All fields are optional.
type kindOf struct {
	// names lists the resources; those that were applied unless set.
	names func() []string
	// views returns a function that returns a resource with its status, or nil. What all views need is read once.
	views func() func(name string) resource.Object
	// detail adds what lists leave out.
	detail func(resource.Object) error
	// committed is called with changes after they were stored.
	committed func(resource.Changes)
}

// kinds returns what the agent does for each kind that needs anything.
func (a *Agent) kinds() map[resource.Kind]kindOf {
	return map[resource.Kind]kindOf{
		resource.Module:         {views: a.moduleViews},
		resource.Service:        {views: a.serviceViews},
		resource.VirtualService: {names: a.virtual.Names, views: a.virtualViews, committed: a.virtualCommitted},
		resource.NamedSet:       {views: a.setViews, committed: func(resource.Changes) { a.retainSets() }},
		resource.Model:          {views: a.modelViews, detail: a.addVersions, committed: a.modelsCommitted},
	}
}

// List returns all resources of a kind with their status.
func (a *Agent) List(_ context.Context, kind resource.Kind) ([]resource.Object, error) {
	own := a.kinds()[kind]
	names := own.names
	if names == nil {
		names = func() []string { return a.present().Names(kind) }
	}
	view := a.viewsOf(kind)
	var out []resource.Object
	for _, name := range names() {
		if o := view(name); o != nil {
			out = append(out, o)
		}
	}
	return out, nil
}

// Get returns one.
func (a *Agent) Get(_ context.Context, kind resource.Kind, name string) (resource.Object, error) {
	o := a.viewsOf(kind)(name)
	if o == nil {
		return nil, &apierrors.NotFound{Kind: kind.Names().Kind, Name: name}
	}
	if detail := a.kinds()[kind].detail; detail != nil {
		return o, detail(o)
	}
	return o, nil
}

// viewsOf returns the views of a kind. They are copies, which callers may change.
func (a *Agent) viewsOf(kind resource.Kind) func(name string) resource.Object {
	if views := a.kinds()[kind].views; views != nil {
		return views()
	}
	return func(name string) resource.Object {
		if o, ok := a.present()[kind.Names().Kind][name]; ok {
			return kind.Copy(o)
		}
		return nil
	}
}

// Version returns a resource as it was in an earlier generation.
func (a *Agent) Version(_ context.Context, kind resource.Kind, name string, generation int64) (resource.Object, error) {
	now, ok := a.present()[kind.Names().Kind][name]
	if !ok {
		return nil, &apierrors.NotFound{Kind: kind.Names().Kind, Name: name}
	}
	o := kind.Copy(now)
	if o.Meta().Generation == generation {
		return o, nil
	}
	document, err := a.store.Document(kind, name, generation)
	kind.Restore(o, generation, document)
	return o, err
}

// present returns the desired state, in which nothing is changed.
func (a *Agent) present() resource.Set {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.now.Desired
}

// commitOnly commits changes that need nothing in the kernel.
func (a *Agent) commitOnly(next resource.Set, c resource.Changes, dryRun bool) error {
	if dryRun || c.Len() == 0 {
		return nil
	}
	if c.OfKind(resource.NamedSet).Len() > 0 {
		if err := a.fillSets(next, a.now.Modules, a.now.Services); err != nil {
			a.restoreSets()
			return &apierrors.Unavailable{Reason: err.Error()}
		}
	}
	if err := a.store.CommitChanges(c); err != nil {
		a.restoreSets()
		return err
	}
	a.mu.Lock()
	a.now.Desired = next
	a.mu.Unlock()
	a.announce(c)
	return nil
}

// announce passes on what has been committed.
func (a *Agent) announce(c resource.Changes) {
	for kind, own := range a.kinds() {
		if own.committed != nil {
			own.committed(c.OfKind(kind))
		}
	}
}

// removed returns the names of resources that changes remove.
func removed(c resource.Changes) (names []string) {
	for _, r := range c.Remove {
		names = append(names, r.Name)
	}
	return names
}
