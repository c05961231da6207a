// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
)

// feature is one entry of requires: a kernel version, a map type or a helper.
type feature struct {
	version uint32 // LINUX_VERSION_CODE, 0 if none
	mapType ebpf.MapType
	helper  asm.BuiltinFunc
}

// parseFeature parses kernel>=5.15, a map type (ringbuf, lru_hash) or a helper (bpf_loop).
func parseFeature(name string) (feature, error) {
	if version, ok := strings.CutPrefix(name, "kernel>="); ok {
		code, err := versionCode(version)
		return feature{version: code}, err
	}
	plain := strings.ToLower(strings.ReplaceAll(name, "_", ""))
	if helper, ok := strings.CutPrefix(plain, "bpf"); ok {
		if fn, found := helpersByName[helper]; found {
			return feature{helper: fn}, nil
		}
	}
	if t, found := mapTypesByName[plain]; found {
		return feature{mapType: t}, nil
	}
	return feature{}, fmt.Errorf("%q is not a kernel feature; write kernel>=5.15, a map type such as ringbuf, or a "+
		"helper such as bpf_loop", name)
}

// versionCode encodes a version like LINUX_VERSION_CODE, with 8 bits each for major, minor and the optional patch
// level.
func versionCode(text string) (uint32, error) {
	parts := strings.Split(strings.TrimSpace(text), ".")
	if len(parts) < 2 || len(parts) > 3 {
		return 0, fmt.Errorf("%q is not a kernel version; write for example kernel>=5.15", text)
	}
	code := uint32(0)
	for i := range 3 {
		n := uint64(0)
		if i < len(parts) {
			var err error
			if n, err = strconv.ParseUint(parts[i], 10, 8); err != nil {
				return 0, fmt.Errorf("%q is not a kernel version; write for example kernel>=5.15", text)
			}
		}
		code = code<<8 | uint32(n)
	}
	return code, nil
}

// helpersByName has every helper known to cilium/ebpf, by its bpf_ name without prefix and underscores.
var helpersByName = namesOf("BuiltinFunc(", func(n uint32) (asm.BuiltinFunc, string) {
	fn := asm.BuiltinFunc(n)
	return fn, strings.TrimPrefix(fn.String(), "Fn")
})

var mapTypesByName = namesOf("MapType(", func(n uint32) (ebpf.MapType, string) {
	t := ebpf.MapType(n)
	return t, t.String()
})

// namesOf maps the generated names of an enum to their numbers, counted from 1.
func namesOf[T any](end string, nth func(uint32) (T, string)) map[string]T {
	out := map[string]T{}
	for n := uint32(1); ; n++ {
		value, name := nth(n)
		if strings.HasPrefix(name, end) {
			return out
		}
		out[strings.ToLower(name)] = value
	}
}

// CheckFeatures probes the running kernel for the features that the package requires. It returns a *FeatureError with
// those that are missing.
func (p *Package) CheckFeatures() error {
	var missing []string
	for _, name := range p.Requires {
		f, err := parseFeature(name)
		if err != nil {
			return err
		}
		err = f.probe(p.Hooks)
		if err != nil && !errors.Is(err, ebpf.ErrNotSupported) {
			return fmt.Errorf("package %s: probing %s: %w", p.Name, name, err)
		}
		if err != nil {
			missing = append(missing, name)
		}
	}
	if missing == nil {
		return nil
	}
	code, err := features.LinuxVersionCode()
	if err != nil {
		return err
	}
	kernel := fmt.Sprintf("%d.%d.%d", code>>16, code>>8&0xff, code&0xff)
	return &FeatureError{Package: p.Name, Missing: missing, Kernel: kernel}
}

// probe checks the running kernel for a feature. A helper must be available to the program types of all hooks.
func (f feature) probe(hooks []string) error {
	switch {
	case f.version != 0:
		return probeVersion(f.version)
	case f.mapType != ebpf.UnspecifiedMap:
		return features.HaveMapType(f.mapType)
	}
	for _, hook := range hooks {
		if err := features.HaveProgramHelper(ProgramType(hook), f.helper); err != nil {
			return err
		}
	}
	return nil
}

func probeVersion(want uint32) error {
	have, err := features.LinuxVersionCode()
	if err == nil && have < want {
		return ebpf.ErrNotSupported
	}
	return err
}

// ProgramType returns the kernel's program type for a hook.
func ProgramType(hook string) ebpf.ProgramType {
	switch hook {
	case HookXDP:
		return ebpf.XDP
	case HookSockets:
		return ebpf.SockOps
	}
	return ebpf.SchedCLS
}
