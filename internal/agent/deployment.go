// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/control"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/fault"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/plan"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/internal/version"
	"github.com/kerb-edge/kerb/sdk"
)

// deployment is a module with all that is needed to run it.
type deployment struct {
	plan.Module
	pkg     *pkgs.Package
	plane   *control.Plane  // nil without a control plane
	config  json.RawMessage // with its defaults
	started bool            // the plane works on this generation
	module  dataplane.Module
	err     error // why it cannot run: only for modules from the store
}

// prepare checks a module as far as that is possible without the kernel. Its errors are those of package fault.
func (a *Agent) prepare(m v1.Module) (_ *deployment, err error) {
	d := &deployment{Module: plan.Module{Resource: m}}
	defer func() {
		if err != nil {
			a.release(d)
		}
	}()
	if err := d.checkSpec(a.catalog); err != nil {
		return nil, err
	}
	if d.onSockets() {
		a.kernel.seek() // its control plane will ask
	}
	settings, err := a.settings(d)
	if err != nil {
		return nil, err
	}
	if err := d.checkBudget(settings); err != nil {
		return nil, err
	}
	if err := d.checkHooks(settings.Hooks); err != nil {
		return nil, err
	}
	if err := d.findEntries(); err != nil {
		return nil, d.invalid("spec.package", err)
	}
	d.module = d.dataplaneModule(settings)
	d.module.Fill = a.fill(d)
	d.describe(settings)
	return d, nil
}

var errSelectsNothing = errors.New("selects nothing; " +
	"set services to a label selector (* for every service) or list interfaces or cgroups")

// checkSpec reads the spec and the package, and returns all mistakes in them.
func (d *deployment) checkSpec(catalog *pkgs.Catalog) (err error) {
	spec := d.Resource.Spec
	var wrong []error
	if d.Selector, err = service.ParseSelector(spec.Attach.Services); err != nil {
		wrong = append(wrong, d.invalid("spec.attach.services", err))
	}
	if spec.Attach.Services == "" && len(spec.Attach.Interfaces)+len(spec.Attach.Cgroups) == 0 {
		wrong = append(wrong, d.invalid("spec.attach", errSelectsNothing))
	}
	wrong = append(wrong, d.checkBudgetSyntax())
	if d.pkg, err = catalog.Get(spec.Package); err != nil {
		return errors.Join(append(wrong, d.invalid("spec.package", err))...)
	}
	if hook := spec.Hook; hook != "" && hook != v1.HookAuto && !d.pkg.RunsOn(string(hook)) {
		err := fmt.Errorf("package %s does not run on %s, only on %v", d.pkg.Name, hook, d.pkg.Hooks)
		wrong = append(wrong, d.invalid("spec.hook", err))
	}
	wrong = append(wrong, d.checkAttach())
	if err := d.pkg.CheckFeatures(); err != nil {
		wrong = append(wrong, d.invalid("spec.package", err))
	}
	d.config, err = d.canonical()
	return errors.Join(append(wrong, err)...)
}

// prepareAll prepares the modules of a request and joins the mistakes in all of them. It returns at the first error of
// another kind, so that a request does not wait for each of several control planes that do not answer.
func (a *Agent) prepareAll(next resource.Set, asked []v1.Module) (map[string]*deployment, error) {
	prepared := map[string]*deployment{}
	var refused []error
	for _, m := range asked {
		m, _ = resource.Module.Get(next, m.Metadata.Name)
		d, err := a.prepareNext(m)
		if err != nil {
			refused = append(refused, err)
			if len(fault.Invalids(err)) == 0 {
				break
			}
			continue
		}
		prepared[m.Metadata.Name] = d
	}
	return prepared, errors.Join(refused...)
}

// prepareNext prepares a module unless what runs is the same.
func (a *Agent) prepareNext(m v1.Module) (*deployment, error) {
	now := a.modules[m.Metadata.Name]
	if now != nil && now.err == nil && reflect.DeepEqual(now.Resource, m) && now.pkg.Source == pkgsBuiltin {
		return now, nil
	}
	d, err := a.prepare(m)
	if err != nil {
		return nil, err
	}
	if err := a.checkCgroups(d); err != nil {
		a.release(d)
		return nil, err
	}
	return d, nil
}

// prepareOrFail is prepare for modules that were accepted earlier: what is wrong with them now is a condition.
func (a *Agent) prepareOrFail(m v1.Module) *deployment {
	d, err := a.prepare(m)
	if err != nil {
		a.log.Error("module cannot run", "module", m.Metadata.Name, "error", err)
		return unavailable(m, err, a.failsClosed(m))
	}
	return d
}

// unavailable stands for a module that cannot run, where the module would be.
func unavailable(m v1.Module, why error, closed bool) *deployment {
	selector, _ := service.ParseSelector(m.Spec.Attach.Services) // one that is wrong selects nothing
	module := dataplane.Unavailable(m.Metadata.Name, closed)
	return &deployment{err: why, module: module,
		Module: plan.Module{Resource: m, Selector: selector, CannotRun: true, Member: chainMember(module)}}
}

// retryFailed prepares those modules again that could not run when the agent started: a file system that was not mounted, a
// slow control plane. What the kernel refuses it will refuse again.
func (a *Agent) retryFailed() {
	a.changes.Lock()
	defer a.changes.Unlock()
	back := false
	for name, d := range a.modules {
		var rejected *dataplane.RejectedError
		if d.err == nil || errors.As(d.err, &rejected) {
			continue
		}
		if next, err := a.prepare(d.Resource); err == nil {
			a.log.Info("module can run again", "module", name)
			a.mu.Lock()
			a.modules[name] = next
			a.mu.Unlock()
			back = true
		}
	}
	if back {
		a.poke()
	}
}

func (d *deployment) invalid(field string, err error) error {
	return &fault.Invalid{Resource: "Module " + d.Resource.Metadata.Name, Field: field, Reason: err.Error()}
}

// canonical is the config with its secrets and defaults, never shown or kept: what the generation's identity is made from.
func (d *deployment) canonical() (json.RawMessage, error) {
	config, err := d.pkg.Reveal(d.Resource.Spec.Config, readSecret)
	if err != nil {
		return nil, d.configError(err)
	}
	if config, err = d.pkg.Defaulted(config); err != nil {
		return nil, d.configError(err)
	}
	text, err := json.Marshal(config)
	if err != nil {
		return nil, d.invalid("spec.config", err)
	}
	return text, nil
}

// settings has the control plane compile the config. A generation that was compiled before does not need the control plane
// again: what runs must not depend on whether it responds.
func (a *Agent) settings(d *deployment) (settings sdk.Settings, err error) {
	if d.pkg.Control == nil {
		return d.constants()
	}
	if d.plane, err = a.planeOf(d); err != nil {
		return settings, d.invalid("spec.package", err)
	}
	name := d.Resource.Metadata.Name
	if settings, ok := a.control.Recall(name, d.identity()); ok {
		return settings, nil
	}
	settings, known, err := d.plane.Compile(a.base, d.config)
	var mistake *sdk.ConfigError
	switch {
	case errors.As(err, &mistake):
		return settings, d.configError(err)
	case err != nil:
		return settings, &fault.Unavailable{Resource: "Module " + name, Reason: err.Error()}
	case !known:
		return d.constants()
	}
	return settings, nil
}

// constants returns the settings for a config that no control plane compiles.
func (d *deployment) constants() (settings sdk.Settings, err error) {
	var config map[string]any
	if err := json.Unmarshal(d.config, &config); err != nil {
		return settings, d.configError(err)
	}
	if settings.Constants, err = d.pkg.Constants(config); err != nil {
		return settings, d.configError(err)
	}
	return settings, nil
}

// planeOf is the module's control plane: the one that runs, as long as the package is the same.
func (a *Agent) planeOf(d *deployment) (*control.Plane, error) {
	name := d.Resource.Metadata.Name
	if now := a.modules[name]; now != nil && now.plane != nil && now.plane.Package().Digest == d.pkg.Digest {
		return now.plane, nil
	}
	return a.control.Plane(name, d.pkg)
}

// release stops the control plane of a deployment that is not used, unless the current one uses it.
func (a *Agent) release(d *deployment) {
	if d == nil || d.plane == nil {
		return
	}
	now := a.modules[d.Resource.Metadata.Name]
	if now != nil && now.plane == d.plane {
		return
	}
	go func() {
		d.plane.Close()
		if now != nil && now.plane != nil {
			now.plane.Resume()
		}
	}()
}

// start makes the deployment's generation the one that its control plane works on.
func (d *deployment) start(m sdk.Maps, instances []sdk.Instance) error {
	if d.started {
		d.plane.Instances(instances)
		return nil
	}
	d.started = true
	return d.plane.Start(d.config, m, instances)
}

func (d *deployment) configError(err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, one := range joined.Unwrap() {
			all = append(all, d.configError(one))
		}
		return errors.Join(all...)
	}
	var mistake *sdk.ConfigError
	if errors.As(err, &mistake) {
		return d.invalid(strings.TrimSuffix("spec.config."+mistake.Field, "."), errors.New(mistake.Reason))
	}
	var object *pkgs.ObjectError
	if errors.As(err, &object) { // the first look at the data plane is for its constants
		return d.invalid("spec.package", err)
	}
	return d.invalid("spec.config", err)
}

func (d *deployment) checkBudgetSyntax() error {
	budget := d.Resource.Spec.Budget
	var wrong []error
	if _, err := pkgs.ParseBytes(budget.Memory); budget.Memory != "" && err != nil {
		wrong = append(wrong, d.invalid("spec.budget.memory", err))
	}
	if _, err := time.ParseDuration(budget.Latency); budget.Latency != "" && err != nil {
		wrong = append(wrong, d.invalid("spec.budget.latency", err))
	}
	return errors.Join(wrong...)
}

func (d *deployment) checkBudget(settings sdk.Settings) error {
	if err := d.pkg.CheckMemory(d.Resource.Spec.Budget.Memory, settings.MaxEntries); err != nil {
		return d.invalid("spec.budget.memory", err)
	}
	return nil
}

// findEntries notes for which hooks and directions the package has a function.
func (d *deployment) findEntries() error {
	d.Entries = map[chain.Hook]map[chain.Direction]bool{}
	for _, hook := range d.pkg.Hooks {
		spec, err := d.pkg.Spec(hook)
		if err != nil {
			return err
		}
		has := map[chain.Direction]bool{}
		for _, dir := range []chain.Direction{chain.Egress, chain.Ingress} {
			has[dir] = spec.Programs["kerb_"+string(dir)] != nil
		}
		d.Entries[chain.Hook(hook)] = has
	}
	return nil
}

// identity of the generation: equal for equal code and config.
func (d *deployment) identity() string {
	builder := "" // what else decides on the contents of maps: built-in control planes are part of this build
	if d.pkg.Control != nil && d.pkg.Control.Builtin {
		builder = version.Version()
	}
	return chain.ShortHash([]byte(d.pkg.Digest), d.config, []byte(builder))
}

func (a *Agent) fill(d *deployment) func(sdk.Maps) error {
	if d.plane == nil {
		return nil
	}
	return func(m sdk.Maps) error { return d.plane.Fill(a.base, d.config, m) }
}

func (d *deployment) dataplaneModule(settings sdk.Settings) dataplane.Module {
	m := dataplane.Module{
		Name:       d.Resource.Metadata.Name,
		ID:         d.identity(),
		ConfigMaps: d.pkg.Maps.Config,
		SharedMaps: d.pkg.Maps.Shared,
		Migrate:    d.pkg.Maps.Migrate,
		Settings:   settings,
		FailClosed: d.failClosed(),
		Frags:      d.pkg.Frags,
		Sockets:    d.onSockets(),
		BuiltIn:    d.pkg.Source == pkgsBuiltin,
		Spec: func(h chain.Hook) (*ebpf.CollectionSpec, error) {
			if !d.pkg.RunsOn(string(h)) {
				return nil, nil
			}
			return d.pkg.Spec(string(h))
		},
	}
	return m
}

// failClosed is the module's policy, or else its package's.
func (d *deployment) failClosed() bool {
	if p := d.Resource.Spec.FailurePolicy; p != "" {
		return p == v1.FailClosed
	}
	return d.pkg.FailurePolicy == string(v1.FailClosed)
}

// checkHooks refuses a hook on which the config does not work, as its control plane says.
func (d *deployment) checkHooks(only []string) error {
	for _, hook := range only {
		if !d.pkg.RunsOn(hook) {
			return d.invalid("spec.package", fmt.Errorf("its control plane wants the hook %s, for which the package has no data plane", hook))
		}
	}
	hook := d.Resource.Spec.Hook
	if len(only) > 0 && hook != "" && hook != v1.HookAuto && !slices.Contains(only, string(hook)) {
		return d.invalid("spec.hook", fmt.Errorf("this config works on %v only: set hook to that, or to auto", only))
	}
	return nil
}

// describe gives plans what they need to know of the module.
func (d *deployment) describe(settings sdk.Settings) {
	d.Member = chainMember(d.module)
	d.Package, d.Rank, d.Sockets, d.Replies = d.pkg.Name, d.pkg.Rank, d.onSockets(), d.pkg.Replies
	d.LongReplies = settings.LongReplies
	if d.LinkTypes = settings.LinkTypes; len(d.LinkTypes) == 0 {
		d.LinkTypes = d.pkg.Reads()
	}
	hooks := settings.Hooks
	if len(hooks) == 0 {
		hooks = d.pkg.Hooks
	}
	d.Hooks = as[chain.Hook](hooks)
	d.OnServices, d.OnInterfaces = as[chain.Direction](d.pkg.Directions.Services), as[chain.Direction](d.pkg.Directions.Interfaces)
	d.Idle = as[chain.Direction](settings.Idle)
}

// as gives strings of manifests and control planes their type.
func as[T ~string](texts []string) (out []T) {
	for _, text := range texts {
		out = append(out, T(text))
	}
	return out
}

func chainMember(m dataplane.Module) chain.Member {
	return chain.Member{Name: m.Name, ID: m.ID, FailClosed: m.FailClosed}
}
