// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
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
// returns the results of the verifier, with the given number of lines on which it spent most.
func verifyPackage(p *pkgs.Package, lines int) ([]verdict, error) {
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
		found, err := verifyHook(p, hook, module, lines)
		verdicts = append(verdicts, found...)
		if err != nil {
			return verdicts, err
		}
	}
	return verdicts, nil
}

func verifyHook(p *pkgs.Package, hook string, module dataplane.Module, lines int) ([]verdict, error) {
	spec, err := p.Spec(hook)
	if err != nil {
		return nil, err
	}
	var verdicts []verdict
	for _, dir := range []chain.Direction{chain.Egress, chain.Ingress} {
		if spec.Programs["kerb_"+string(dir)] == nil {
			continue
		}
		v, err := verifyOne(hook, dir, module, lines)
		if err != nil {
			return verdicts, fmt.Errorf("%s %s: %w", hook, dir, err)
		}
		verdicts = append(verdicts, v)
	}
	return verdicts, nil
}

func verifyOne(hook string, dir chain.Direction, module dataplane.Module, lines int) (verdict, error) {
	loaded, err := dataplane.Load(pkttest.Sides[hook][dir], dir, module)
	if err != nil {
		return verdict{}, err
	}
	defer loaded.Close()
	v, err := verdictOn(hook+" "+string(dir), loaded.Program)
	if err != nil || lines == 0 {
		return v, err
	}
	log, err := loaded.VerifierLog()
	v.Lines = verifiedLines(log, lines)
	return v, err
}

// instruction is a line of the verifier's log for one instruction, such as "1420: (bf) r4 = r3  ; R3=scalar(id=16)".
var instruction = regexp.MustCompile(`^\d+: \([0-9a-f]{2}\) `)

// verifiedLines counts the instructions of a verifier's log by source line, and returns the highest counts. Kernels
// before 6.9 log no names of files.
func verifiedLines(log string, most int) []verifiedLine {
	counts := map[string]int{}
	source := ""
	for line := range strings.Lines(log) {
		if rest, ok := strings.CutPrefix(line, "; "); ok {
			source = strings.TrimSpace(rest)
		} else if instruction.MatchString(line) {
			counts[source]++
		}
	}
	var all []verifiedLine
	for line, n := range counts {
		all = append(all, verifiedLine{n, cmp.Or(line, "(no source line)")})
	}
	slices.SortFunc(all, func(a, b verifiedLine) int {
		return cmp.Or(cmp.Compare(b.Verified, a.Verified), strings.Compare(a.Source, b.Source))
	})
	return all[:min(most, len(all))]
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
	Program  string         `json:"program"`
	Verified uint32         `json:"instructionsVerified,omitempty"` // kernels before 5.16 do not report it
	Lines    []verifiedLine `json:"lines,omitempty"`
}

// verifiedLine is a source line, and the instructions that the verifier followed on it, on all paths.
type verifiedLine struct {
	Verified int    `json:"instructionsVerified"`
	Source   string `json:"source"`
}

func (v verdict) String() string {
	text := v.Program + ": ok"
	if v.Verified != 0 {
		text += fmt.Sprintf(", %d instructions verified of 1000000 that the kernel allows", v.Verified)
	}
	for _, line := range v.Lines {
		text += fmt.Sprintf("\n%8d  %s", line.Verified, line.Source)
	}
	return text
}

func verdictOn(what string, p *ebpf.Program) (verdict, error) {
	info, err := p.Info()
	if err != nil {
		return verdict{}, err
	}
	n, _ := info.VerifiedInstructions()
	return verdict{Program: what, Verified: n}, nil
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
