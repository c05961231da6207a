// SPDX-License-Identifier: Apache-2.0

package sockprobe

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
)

func TestKnownUntilTheNextBoot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sockets.json")
	if _, ok := Cached(file); ok {
		t.Error("known without a test")
	}
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	whole := Result{Checks: make([]Check, len(checks))}
	for i, c := range checks {
		whole.Checks[i] = Check{Name: c.name, Detail: "never returns"}
	}
	renamed := Result{Checks: slices.Clone(whole.Checks)}
	renamed.Checks[1].Name = "of another version"
	for _, of := range []struct {
		boot   string
		result Result
		known  bool
	}{{boot, whole, true}, {"another", whole, false}, {boot, Result{Checks: whole.Checks[1:]}, false},
		{boot, renamed, false}} {
		data, err := json.Marshal(known{of.boot, of.result})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		got, ok := Cached(file)
		if ok != of.known || ok && !reflect.DeepEqual(got, whole) {
			t.Errorf("%+v: %v %+v", of, ok, got)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root to check the sockets of this kernel")
	}
	if got, err := RunOnce(t.Context(), file); err != nil || len(got.Checks) != len(whole.Checks) {
		t.Errorf("a result of other checks was used: %+v, %v", got, err)
	}
	if got, ok := Cached(file); !ok || len(got.Checks) < 2 {
		t.Errorf("not kept: %+v", got)
	}
}
