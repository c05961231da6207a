// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

func TestKnownUntilTheNextBoot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sockets.json")
	if _, ok := Known(file); ok {
		t.Error("known without a test")
	}
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	want := Result{Checks: []Check{{Name: "splice", Detail: "never returns"}}}
	for _, id := range []string{boot, "another"} {
		data, err := json.Marshal(known{id, want})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		got, ok := Known(file)
		if ok != (id == boot) || ok && !reflect.DeepEqual(got, want) {
			t.Errorf("of boot %s: %v %+v", id, ok, got)
		}
	}
	if got, err := TestOnce(t.Context(), file); err != nil || len(got.Checks) < 2 {
		t.Errorf("a result of another boot was used: %+v, %v", got, err)
	}
	if got, ok := Known(file); !ok || len(got.Checks) < 2 {
		t.Errorf("not kept: %+v", got)
	}
}
