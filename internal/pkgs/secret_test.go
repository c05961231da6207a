// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const secretManifest = goodManifest + `
configSchema:
  properties:
    name: {type: string}
    keys: {type: array, items: {type: object, properties: {id: {type: integer}, key: {$ref: '#/$defs/key'}}}}
  $defs:
    key: {type: string, secret: true}
`

func TestReveal(t *testing.T) {
	m, err := ParseManifest("kerb.yaml", []byte(secretManifest))
	if err != nil {
		t.Fatal(err)
	}
	read := func(path string) (string, error) {
		if path != "/etc/key" {
			return "", errors.New("no such file")
		}
		return "abc", nil
	}
	with := func(key any) map[string]any {
		return map[string]any{"name": "n", "keys": []any{map[string]any{"id": 1, "key": key}}}
	}
	config := with(map[string]any{"fromFile": "/etc/key"})
	got, err := m.ResolveSecrets(config, read)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(with("abc"), got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(with(map[string]any{"fromFile": "/etc/key"}), config); diff != "" {
		t.Errorf("the config itself was changed\n%s", diff)
	}
	for _, key := range []any{"topsecret", 5, map[string]any{"fromFile": 5}, map[string]any{"fromFile": "/etc/other"},
		map[string]any{"fromFile": "/etc/key", "more": "topsecret"}} {
		_, err := m.ResolveSecrets(with(key), read)
		if err == nil || !strings.HasPrefix(err.Error(), "keys[0].key: ") || strings.Contains(err.Error(), "topsecret") {
			t.Errorf("%v: %v", key, err)
		}
	}
	// Elsewhere it is a value like any other, which the schema refuses.
	elsewhere := map[string]any{"name": map[string]any{"fromFile": "/etc/key"}}
	if got, err := m.ResolveSecrets(elsewhere, read); err != nil || !cmp.Equal(got, elsewhere) {
		t.Errorf("%v, %v", got, err)
	}
}
