// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/cgroup"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/sdk"
)

// Invalid is an error in a field of the module.
func (d *Module) Invalid(field string, err error) error {
	return &apierrors.Invalid{Resource: "Module " + d.Name(), Field: field, Reason: err.Error()}
}

var errSelectsNothing = errors.New("selects nothing; " +
	"set services to a label selector (* for every service) or list interfaces or cgroups")

// checkSpec checks the spec and the package, and returns all errors in them. Parsed parts of the running package are
// reused.
func (d *Module) checkSpec(catalog *pkgs.Catalog, now *Module) (err error) {
	spec := d.Resource.Spec
	var wrong []error
	if d.Selector, err = service.ParseSelector(spec.Attach.Services); err != nil {
		wrong = append(wrong, d.Invalid("spec.attach.services", err))
	}
	if spec.Attach.Services == "" && len(spec.Attach.Interfaces)+len(spec.Attach.Cgroups) == 0 {
		wrong = append(wrong, d.Invalid("spec.attach", errSelectsNothing))
	}
	wrong = append(wrong, d.checkBudgetSyntax())
	if d.Pkg, err = catalog.Get(spec.Package); err != nil {
		return errors.Join(append(wrong, d.Invalid("spec.package", err))...)
	}
	if now != nil && now.Pkg != nil && d.Pkg.Equal(now.Pkg) {
		d.Pkg = now.Pkg
	}
	if hook := spec.Hook; hook != "" && hook != v1.HookAuto && !d.Pkg.HasHook(string(hook)) {
		err := fmt.Errorf("package %s does not run on %s, only on %v", d.Pkg.Name, hook, d.Pkg.Hooks)
		wrong = append(wrong, d.Invalid("spec.hook", err))
	}
	wrong = append(wrong, d.checkAttach())
	if err := d.Pkg.CheckFeatures(); err != nil {
		wrong = append(wrong, d.Invalid("spec.package", err))
	}
	d.Config, err = d.canonical()
	return errors.Join(append(wrong, err)...)
}

func (d *Module) checkBudgetSyntax() error {
	budget := d.Resource.Spec.Budget
	var wrong []error
	if _, err := pkgs.ParseBytes(budget.Memory); budget.Memory != "" && err != nil {
		wrong = append(wrong, d.Invalid("spec.budget.memory", err))
	}
	if _, err := time.ParseDuration(budget.Latency); budget.Latency != "" && err != nil {
		wrong = append(wrong, d.Invalid("spec.budget.latency", err))
	}
	return errors.Join(wrong...)
}

// checkAttach compares the attach points of a module with those that its package supports.
func (d *Module) checkAttach() error {
	attach := d.Resource.Spec.Attach
	wrong := func(field, reason string) error {
		return d.Invalid("spec."+field, fmt.Errorf("package %s %s", d.Pkg.Name, reason))
	}
	switch {
	case !d.onSockets() && len(attach.Cgroups) > 0:
		return wrong("attach.cgroups", "runs on packets, which cgroups do not have; select services or interfaces")
	case !d.onSockets():
		return nil
	case d.Resource.Spec.FailurePolicy == v1.FailClosed:
		return wrong("failurePolicy", "runs on sockets, which cannot fail closed: without it they are plain TCP")
	case len(attach.Interfaces) > 0:
		return wrong("attach.interfaces", "runs on sockets, which interfaces do not have; select services or cgroups")
	}
	spec, err := d.Pkg.Spec(pkgs.HookSockets)
	if err != nil {
		return d.Invalid("spec.package", err)
	}
	if attach.Services != "" && spec.Programs[pkgs.EntryServices] == nil {
		return wrong("attach.services", "has no program for services; set cgroups")
	}
	if len(attach.Cgroups) > 0 && spec.Programs[pkgs.EntryAll] == nil {
		return wrong("attach.cgroups", "has no program for whole cgroups; select services")
	}
	return nil
}

// checkCgroups rejects new cgroups that do not exist: most often the path is wrong. Existing ones may disappear and
// reappear.
func (d *Module) checkCgroups(now *Module) error {
	var known []string
	if now != nil {
		known = now.Resource.Spec.Attach.Cgroups
	}
	for i, path := range d.Resource.Spec.Attach.Cgroups {
		if slices.Contains(known, path) {
			continue
		}
		if _, err := cgroup.Find(path); err != nil {
			return d.Invalid(fmt.Sprintf("spec.attach.cgroups[%d]", i), err)
		}
	}
	return nil
}

// checkHooks rejects a hook that the control plane does not support with this config.
func (d *Module) checkHooks(only []string) error {
	for _, hook := range only {
		if !d.Pkg.HasHook(hook) {
			return d.Invalid("spec.package",
				fmt.Errorf("its control plane requests the hook %s, for which the package has no data plane", hook))
		}
	}
	hook := d.Resource.Spec.Hook
	if len(only) > 0 && hook != "" && hook != v1.HookAuto && !slices.Contains(only, string(hook)) {
		return d.Invalid("spec.hook", fmt.Errorf("this config works on %v only: set hook to that, or to auto", only))
	}
	return nil
}

func (d *Module) checkMemory(settings sdk.Settings) error {
	if err := d.Pkg.CheckMemory(d.Resource.Spec.Budget.Memory, settings.MaxEntries); err != nil {
		return d.Invalid("spec.budget.memory", err)
	}
	return nil
}

// canonical returns the config with its secrets and defaults, from which the map set's identity is derived. It is never
// shown or stored.
func (d *Module) canonical() (json.RawMessage, error) {
	config, err := d.Pkg.ResolveSecrets(d.Resource.Spec.Config, readSecret)
	if err != nil {
		return nil, d.configError(err)
	}
	if config, err = d.Pkg.WithDefaults(config); err != nil {
		return nil, d.configError(err)
	}
	text, err := json.Marshal(config)
	if err != nil {
		return nil, d.Invalid("spec.config", err)
	}
	return text, nil
}

func (d *Module) configError(err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, one := range joined.Unwrap() {
			all = append(all, d.configError(one))
		}
		return errors.Join(all...)
	}
	if mistake, ok := errors.AsType[*sdk.ConfigError](err); ok {
		return d.Invalid(strings.TrimSuffix("spec.config."+mistake.Field, "."), errors.New(mistake.Reason))
	}
	var object *pkgs.ObjectError
	if errors.As(err, &object) { // the data plane is read for the first time here, for its constants
		return d.Invalid("spec.package", err)
	}
	return d.Invalid("spec.config", err)
}
