// SPDX-License-Identifier: Apache-2.0

// Package deploy prepares modules: it finds the package, checks spec and config, makes the control plane compile the
// config, and describes the result for plans and for the data plane. It changes nothing in the kernel.
package deploy

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/control"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/internal/version"
	"github.com/kerb-edge/kerb/sdk"
)

// Module is a module with everything that is needed to run it.
type Module struct {
	plan.Module
	Pkg       *pkgs.Package
	Control   *control.Supervisor // nil without a control plane
	Config    json.RawMessage     // with its defaults and secrets: never shown or stored
	Dataplane dataplane.Module
	Err       error // why it cannot run; only for modules from the store
	// Filled is the map of the running values, if the control plane has filled the free half of their maps for d. It is
	// nil after the change: later changes write that half.
	Filled *ebpf.Map

	tunable bool // it has KERB_TUNABLES
	started bool // the control plane works on this map set
}

// Unavailable represents a module that cannot run. Its position follows from the rank of its package, which is nil if
// it is unknown.
func Unavailable(m v1.Module, why error, closed bool, rank func(service bool) int) *Module {
	selector, _ := service.ParseSelector(m.Spec.Attach.Services) // an invalid one selects nothing
	module := dataplane.Unavailable(m.Metadata.Name, closed)
	return &Module{Err: why, Dataplane: module,
		Module: plan.Module{Resource: m, Selector: selector, CannotRun: true, Rank: rank, Member: memberOf(module)}}
}

// Name returns the name of the module.
func (d *Module) Name() string { return d.Resource.Metadata.Name }

// Start makes the control plane work on the module's map set.
func (d *Module) Start(m sdk.Maps, attachments []sdk.Attachment) error {
	if d.started {
		d.Control.SetAttachments(attachments)
		return nil
	}
	d.started = true
	return d.Control.Start(d.Config, m, attachments)
}

// CgroupPaths returns the cgroups that the module needs: its own, and root for the sockets of services.
func (d *Module) CgroupPaths(root string) []string {
	if !d.Sockets {
		return nil
	}
	paths := slices.Clone(d.Resource.Spec.Attach.Cgroups)
	if d.Resource.Spec.Attach.Services != "" {
		paths = append(paths, root)
	}
	return paths
}

// Candidate returns the module for budgets. The caller sets Measure.
func (d *Module) Candidate() apply.Candidate {
	name := d.Dataplane.Name
	c := apply.Candidate{Module: name, Key: fmt.Sprint(name, " ", d.Dataplane.ID, " ", d.AttachedHooks()),
		Limits: d.Limits()}
	if c.Limits.ByOperator() { // values, too, decide how long a packet takes: those that take too long are rejected
		c.Key += " " + d.Values
	}
	return c
}

// Limits returns the limits of a module that can run.
func (d *Module) Limits() apply.Limits { return apply.LimitsOf(d.Resource.Spec.Budget, d.Pkg.Budget) }

// AttachedHooks returns the hooks that the module uses on its attach points.
func (d *Module) AttachedHooks() []chain.Hook {
	var out []chain.Hook
	if d.Resource.Spec.Attach.Services != "" {
		out = append(out, d.Hook(true, "veth"))
	}
	if len(d.Resource.Spec.Attach.Interfaces) > 0 {
		out = append(out, d.Hook(false, ""), d.Hook(false, "veth"))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// SameProgram reports whether d differs from before only in values, so that nothing has to be verified.
func (d *Module) SameProgram(before *Module) bool {
	return before != nil && before.Err == nil && d.Values != "" && d.Dataplane.ID == before.Dataplane.ID
}

// Identity returns a digest that is equal for equal code and config.
func (d *Module) Identity() string {
	return chain.ShortHash([]byte(d.Pkg.Digest), d.Config, []byte(d.builder()))
}

// builder returns what else determines the contents of maps: built-in control planes are part of this build.
func (d *Module) builder() string {
	if d.Pkg.Control != nil && d.Pkg.Control.Builtin {
		return version.Version()
	}
	return ""
}

// shape returns the identity of a map set whose values may change: equal for equal code and equal rest of the config.
// An idle direction is neither verified nor measured. A control plane's answer may have empty members, which are
// missing when it is read after a restart.
func (d *Module) shape(settings sdk.Settings) string {
	text, err := json.Marshal(sdk.Settings{Constants: settings.Constants, MaxEntries: settings.MaxEntries,
		Shape: settings.Shape + usesSets(settings), Idle: settings.Idle})
	if err != nil { // integers and booleans
		panic(err)
	}
	return chain.ShortHash([]byte(d.Pkg.Digest), []byte(d.builder()), text)
}

// usesSets is true if the module uses the node's maps of sets.
func usesSets(settings sdk.Settings) string {
	if len(settings.Sets) > 0 {
		return " sets"
	}
	return ""
}

// dataplaneModule derives the identity of the map set: a map set with the same shape can take over maps of the running
// one.
func (d *Module) dataplaneModule(settings sdk.Settings) dataplane.Module {
	id, values := d.Identity(), ""
	if d.tunable {
		id, values = d.shape(settings), id
	}
	return dataplane.Module{
		Name:       d.Name(),
		ID:         id,
		Package:    d.Pkg.Name + " " + d.Pkg.Version,
		Values:     values,
		ConfigMaps: d.Pkg.Maps.Config,
		SharedMaps: d.Pkg.Maps.Shared,
		Migrate:    d.Pkg.Maps.Migrate,
		Settings:   settings,
		FailClosed: d.failClosed(),
		Frags:      d.Pkg.Frags,
		Sockets:    d.onSockets(),
		Tunables:   d.Pkg.Tunables,
		BuiltIn:    d.Pkg.Source == pkgs.SourceBuiltin,

		DeferredRedirect: d.Pkg.DeferredRedirect,
		Spec: func(h chain.Hook) (*ebpf.CollectionSpec, error) {
			if !d.Pkg.HasHook(string(h)) {
				return nil, nil
			}
			return d.Pkg.Spec(string(h))
		},
	}
}

// failClosed returns the module's policy, or by default its package's.
func (d *Module) failClosed() bool {
	if p := d.Resource.Spec.FailurePolicy; p != "" {
		return p == v1.FailClosed
	}
	return d.Pkg.FailurePolicy == string(v1.FailClosed)
}

// onSockets reports whether the module runs on sockets and not on packets.
func (d *Module) onSockets() bool { return d.Pkg.HasHook(pkgs.HookSockets) }

// describe returns the module as plans see it.
func (d *Module) describe(settings sdk.Settings) {
	d.Member, d.Values = memberOf(d.Dataplane), d.Dataplane.Values
	d.Package, d.Rank, d.Sockets, d.Replies = d.Pkg.Name, d.Pkg.RankOn, d.onSockets(), d.Pkg.Replies
	d.DeferredRedirect = d.Pkg.DeferredRedirect
	d.LongReplies, d.TranslatesReplies, d.Inbound = settings.LongReplies, settings.TranslatesReplies, settings.Inbound
	if d.LinkTypes = settings.LinkTypes; len(d.LinkTypes) == 0 {
		d.LinkTypes = d.Pkg.ReadableLinkTypes()
	}
	hooks := settings.Hooks
	if len(hooks) == 0 {
		hooks = d.Pkg.Hooks
	}
	d.Hooks = as[chain.Hook](hooks)
	d.OnServices, d.OnInterfaces = as[chain.Direction](d.Pkg.Directions.Services),
		as[chain.Direction](d.Pkg.Directions.Interfaces)
	d.Idle = as[chain.Direction](settings.Idle)
}

// findEntries determines the hooks and directions for which the package has a function, and whether it has tunables.
func (d *Module) findEntries() error {
	d.Entries = map[chain.Hook]map[chain.Direction]bool{}
	for _, hook := range d.Pkg.Hooks {
		has := map[chain.Direction]bool{}
		for _, dir := range []chain.Direction{chain.Egress, chain.Ingress} {
			var err error
			if has[dir], err = d.Pkg.HasEntry(hook, "kerb_"+string(dir)); err != nil {
				return err
			}
		}
		d.Entries[chain.Hook(hook)] = has
	}
	d.tunable = d.Pkg.Tunables() != nil
	return nil
}

// as converts strings of manifests and control planes to their types.
func as[T ~string](texts []string) (out []T) {
	for _, text := range texts {
		out = append(out, T(text))
	}
	return out
}

func memberOf(m dataplane.Module) chain.Member {
	return chain.Member{Name: m.Name, ID: m.ID, FailClosed: m.FailClosed}
}
