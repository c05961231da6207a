// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/pkgs"
)

// Removed modules are known as long as there are not too many; their reasons are those of their packages.
func TestFormerDroppers(t *testing.T) {
	var f formerDroppers
	of := func(n int) *deploy.Module {
		m := pkgs.Manifest{DropReasons: map[string]int{fmt.Sprint("r", n): 40}}
		return &deploy.Module{Pkg: &pkgs.Package{Manifest: m}}
	}
	kept := map[string]*deploy.Module{"kept": of(0), "broken": {}}
	f.add(kept, kept)
	for n := range mostFormer + 2 {
		f.add(map[string]*deploy.Module{fmt.Sprint("m", n): of(n), "kept": of(0)}, kept)
	}
	if len(f) != mostFormer || f[0].Name != "m2" || f[0].Reason(40) != "r2" || f[mostFormer-1].Reason(1) != "policy" {
		t.Errorf("%d: %+v", len(f), f[0])
	}
}

// Of a removed module its reasons stay in memory, and nothing else of its package: schemas may take megabytes.
func TestFormerDroppersAreSmall(t *testing.T) {
	var f formerDroppers
	freed := make(chan struct{})
	func() {
		large := new([1 << 20]byte)
		runtime.AddCleanup(large, func(freed chan struct{}) { close(freed) }, freed)
		m := pkgs.Manifest{DropReasons: map[string]int{"r": 40}, ConfigSchema: map[string]any{"large": large}}
		f.add(map[string]*deploy.Module{"m": {Pkg: &pkgs.Package{Manifest: m}}}, nil)
	}()
	wait.Until(t, "the schema is freed", func() bool {
		runtime.GC()
		select {
		case <-freed:
			return true
		default:
			return false
		}
	})
	if len(f) != 1 || f[0].Reason(40) != "r" {
		t.Errorf("%+v", f)
	}
}
