// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"reflect"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/control"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/sdk"
)

// Preparer prepares modules.
type Preparer struct {
	Log     *slog.Logger
	Base    context.Context // of the background work of control planes
	Catalog *pkgs.Catalog
	Control *control.Manager
	Observe func() (chain.State, error) // the state of the kernel
	// Maps returns the maps of a running module, nil if they are not open. Free prepares their half that no packet reads
	// to be filled, and reports whether there is one.
	Maps func(module string) sdk.Maps
	Free func(sdk.Maps) bool
}

// prepare checks a module as far as possible without the kernel. now is the running module, or nil. Errors are those of
// package apierrors. If fill is set, maps of the running module may be filled immediately.
func (p *Preparer) prepare(m v1.Module, now *Module, fill bool) (_ *Module, err error) {
	d := &Module{Module: plan.Module{Resource: m}}
	defer func() {
		if err != nil {
			d.Release(now)
		}
	}()
	if err := d.checkSpec(p.Catalog, now); err != nil {
		return nil, err
	}
	settings, err := p.settings(d, now, fill)
	if err != nil {
		return nil, err
	}
	if err := d.checkHooks(settings.Hooks); err != nil {
		return nil, err
	}
	if err := d.findEntries(); err != nil {
		return nil, d.Invalid("spec.package", err)
	}
	d.Dataplane = d.dataplaneModule(settings)
	if d.Control != nil {
		d.Dataplane.Fill = func(m sdk.Maps) error {
			if d.Filled != nil && d.Filled == m[sdk.TunablesMap] {
				return nil
			}
			return d.Control.Fill(p.Base, d.Config, m)
		}
	}
	d.describe(settings)
	return d, nil
}

// All prepares the modules of a request and joins the errors in all of them. It returns at the first error of another
// kind, so that a request does not wait for several control planes that do not answer. Unchanged running modules are
// kept. If fill is set, control planes may fill maps that no packet reads: a dry run must not.
func (p *Preparer) All(asked []v1.Module, now map[string]*Module, fill bool) (map[string]*Module, error) {
	prepared := map[string]*Module{}
	var refused []error
	for _, m := range asked {
		d, err := p.next(m, now[m.Metadata.Name], fill)
		if err != nil {
			refused = append(refused, err)
			if len(apierrors.Invalids(err)) == 0 {
				break
			}
			continue
		}
		prepared[m.Metadata.Name] = d
	}
	return prepared, errors.Join(refused...)
}

func (p *Preparer) next(m v1.Module, now *Module, fill bool) (*Module, error) {
	if now != nil && now.Err == nil && reflect.DeepEqual(now.Resource, m) && now.Pkg.Source == pkgs.SourceBuiltin {
		return now, nil
	}
	d, err := p.prepare(m, now, fill)
	if err != nil {
		return nil, err
	}
	err = d.checkMemory(d.Dataplane.Settings) // an accepted module keeps running if this build needs more
	if err == nil {
		err = d.checkCgroups(now)
	}
	if err != nil {
		d.Release(now)
		return nil, err
	}
	return d, nil
}

// Accepted prepares a module that was accepted earlier: errors in it are reported as a condition.
func (p *Preparer) Accepted(m v1.Module) *Module {
	d, err := p.prepare(m, nil, false)
	if err != nil {
		p.Log.Error("module cannot run", "module", m.Metadata.Name, "error", err)
		return Unavailable(m, err, p.failsClosed(m), p.rank(m))
	}
	return d
}

// Again prepares a module that could not run when the agent started, if the result may be different now, for example
// after a file system was mounted or with a slow control plane. The kernel would reject the same code again, and a
// chain that cannot carry labels stays too large until a change. It returns nil if the module still cannot run.
func (p *Preparer) Again(now *Module) *Module {
	var rejected *dataplane.RejectedError
	var labels *dataplane.LabelsError
	if now.Err == nil || errors.As(now.Err, &rejected) || errors.As(now.Err, &labels) {
		return nil
	}
	d, err := p.prepare(now.Resource, now, false)
	if err != nil {
		return nil
	}
	return d
}

// settings makes the control plane compile the config. A map set that was compiled before needs no control plane: a
// running module must not depend on whether it responds.
func (p *Preparer) settings(d, now *Module, fill bool) (settings sdk.Settings, err error) {
	if d.Pkg.Control == nil {
		return d.constants()
	}
	if d.Control, err = p.supervisorOf(d, now); err != nil {
		return settings, d.Invalid("spec.package", err)
	}
	if settings, ok := p.compiled(d, now); ok {
		return settings, nil
	}
	var active sdk.Maps
	if fill && now != nil && now.Err == nil && now.Control == d.Control && now.Values != "" {
		active = p.Maps(d.Name())
	}
	c, err := d.Control.Compile(p.Base, d.Config, active, func() bool { return p.Free(active) })
	var mistake *sdk.ConfigError
	switch {
	case errors.As(err, &mistake):
		return settings, d.configError(err)
	case err != nil:
		return settings, &apierrors.Unavailable{Resource: "Module " + d.Name(), Reason: err.Error()}
	case !c.Known:
		return d.constants()
	case c.Filled:
		d.Filled = active[sdk.TunablesMap]
	}
	return c.Settings, nil
}

// compiled returns the settings if d's config was compiled before, for the running module or by an earlier agent.
func (p *Preparer) compiled(d, now *Module) (sdk.Settings, bool) {
	if now != nil && now.Err == nil {
		return now.Dataplane.Settings, now.Control == d.Control && bytes.Equal(now.Config, d.Config)
	}
	return p.Control.CachedSettings(d.Name(), d.Identity())
}

// constants returns the settings for a config without a control plane.
func (d *Module) constants() (settings sdk.Settings, err error) {
	var config map[string]any
	if err := json.Unmarshal(d.Config, &config); err != nil {
		return settings, d.configError(err)
	}
	if settings.Constants, err = d.Pkg.Constants(config); err != nil {
		return settings, d.configError(err)
	}
	return settings, nil
}

// supervisorOf returns the module's control plane: the running one, as long as the package is the same.
func (p *Preparer) supervisorOf(d, now *Module) (*control.Supervisor, error) {
	if now != nil && now.Control != nil && now.Control.Package().Digest == d.Pkg.Digest {
		return now.Control, nil
	}
	return p.Control.Supervise(d.Name(), d.Pkg)
}

// ReleaseAll stops the control planes that a failed change has started. Others continue.
func ReleaseAll(prepared, now map[string]*Module) {
	for name, d := range prepared {
		if now[name] != d {
			d.Release(now[name])
		}
	}
}

// Release stops the control plane of a module that will not run, unless the running module has the same one.
func (d *Module) Release(now *Module) {
	if d.Control == nil || now != nil && now.Control == d.Control {
		return
	}
	go func() {
		d.Control.Close()
		if now != nil && now.Control != nil {
			now.Control.Resume()
		}
	}()
}

// rank returns the rank of a module's package, nil if the package cannot be read.
func (p *Preparer) rank(m v1.Module) func(service bool) int {
	pkg, err := p.Catalog.Get(m.Spec.Package)
	if err != nil {
		return nil
	}
	return pkg.RankOn
}

// failsClosed reports whether a module that cannot run drops packets: by its own policy, or by default its package's.
// If the package cannot be read, the state that it left in the kernel decides; without any, it might have been a
// firewall.
func (p *Preparer) failsClosed(m v1.Module) bool {
	if policy := m.Spec.FailurePolicy; policy != "" {
		return policy == v1.FailClosed
	}
	if pkg, err := p.Catalog.Get(m.Spec.Package); err == nil {
		return pkg.FailurePolicy == string(v1.FailClosed)
	}
	state, err := p.Observe()
	if err != nil {
		return true
	}
	for _, c := range state.Chains {
		for _, member := range c.Spec.Members {
			if member.Name == m.Metadata.Name {
				return member.FailClosed
			}
		}
	}
	return true
}
