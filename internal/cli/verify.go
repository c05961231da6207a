// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/pkttest"
	"github.com/kerb-edge/kerb/sdk"
)

// verifyPackage loads every hook and direction of the package into the kernel, with the schema's default config, and
// returns the results of the verifier.
func verifyPackage(p *pkgs.Package) ([]verdict, error) {
	if err := p.CheckFeatures(); err != nil {
		return nil, err
	}
	module, err := defaultModule(p)
	if err != nil {
		return nil, err
	}
	if err := p.CheckMemory("", module.Settings.MaxEntries); err != nil {
		return nil, err
	}
	verdicts := []verdict{}
	if p.HasHook(pkgs.HookSockets) {
		return verifySockets(module)
	}
	for _, hook := range p.Hooks {
		lines, err := verifyHook(p, hook, module)
		verdicts = append(verdicts, lines...)
		if err != nil {
			return verdicts, err
		}
	}
	return verdicts, nil
}

func verifyHook(p *pkgs.Package, hook string, module dataplane.Module) ([]verdict, error) {
	spec, err := p.Spec(hook)
	if err != nil {
		return nil, err
	}
	var lines []verdict
	for _, dir := range []chain.Direction{chain.Egress, chain.Ingress} {
		if spec.Programs["kerb_"+string(dir)] == nil {
			continue
		}
		line, err := verifyOne(hook, dir, module)
		if err != nil {
			return lines, fmt.Errorf("%s %s: %w", hook, dir, err)
		}
		lines = append(lines, line)
	}
	return lines, nil
}

func verifyOne(hook string, dir chain.Direction, module dataplane.Module) (verdict, error) {
	loaded, err := dataplane.Load(pkttest.Sides[hook][dir], dir, module)
	if err != nil {
		return verdict{}, err
	}
	defer loaded.Close()
	return verdictOn(hook+" "+string(dir), loaded.Program)
}

func verifySockets(module dataplane.Module) (lines []verdict, err error) {
	loaded, err := dataplane.LoadSockets(module)
	if err != nil {
		return nil, err
	}
	defer loaded.Close()
	programs := loaded.Programs()
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		line, err := verdictOn(pkgs.HookSockets+" "+name, programs[name])
		if err != nil {
			return lines, err
		}
		lines = append(lines, line)
	}
	return lines, nil
}

// verdict is the verifier's result for an accepted program.
type verdict struct {
	Program  string `json:"program"`
	Verified uint32 `json:"instructionsVerified,omitempty"` // kernels before 5.16 do not report it
}

func (v verdict) String() string {
	if v.Verified == 0 {
		return v.Program + ": ok"
	}
	return fmt.Sprintf("%s: ok, %d instructions verified of 1000000 that the kernel allows", v.Program, v.Verified)
}

func verdictOn(what string, p *ebpf.Program) (verdict, error) {
	info, err := p.Info()
	if err != nil {
		return verdict{}, err
	}
	n, _ := info.VerifiedInstructions()
	return verdict{what, n}, nil
}

// defaultModule returns the package as a module with the default config. If required properties have no default, it has
// the compiled constants.
func defaultModule(p *pkgs.Package) (dataplane.Module, error) {
	if _, err := p.WithDefaults(nil); err != nil {
		return pkttest.ModuleOf(p), nil
	}
	return moduleOf(p, nil)
}

// moduleOf returns the package as a module with a config.
func moduleOf(p *pkgs.Package, given map[string]any) (dataplane.Module, error) {
	module := pkttest.ModuleOf(p)
	config, err := p.WithDefaults(given)
	if err != nil {
		return module, configMistakes(err)
	}
	// The control plane process is not started for this: constants and sizes are the compiled ones.
	if p.ControlPlane == nil && p.Control != nil {
		return module, nil
	}
	if p.ControlPlane == nil {
		module.Settings.Constants, err = p.Constants(config)
		return module, configMistakes(err)
	}
	module.Settings, module.Fill, err = compileControl(p, config)
	return module, configMistakes(err)
}

// configMistakes converts the config errors joined in err to *apierrors.Invalid. It returns other errors unchanged.
func configMistakes(err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, one := range joined.Unwrap() {
			all = append(all, configMistakes(one))
		}
		return errors.Join(all...)
	}
	if mistake, ok := errors.AsType[*sdk.ConfigError](err); ok {
		return &apierrors.Invalid{Field: strings.TrimSuffix("config."+mistake.Field, "."), Reason: mistake.Reason}
	}
	return err
}

func compileControl(p *pkgs.Package, config map[string]any) (sdk.Settings, func(sdk.Maps) error, error) {
	text, err := json.Marshal(config)
	if err != nil {
		return sdk.Settings{}, nil, err
	}
	compiled, err := p.ControlPlane.Compile(text)
	if err != nil {
		return sdk.Settings{}, nil, err
	}
	return compiled.Settings(), compiled.Fill, nil
}
