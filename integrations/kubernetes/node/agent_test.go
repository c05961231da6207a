// SPDX-License-Identifier: Apache-2.0

package node

import (
	"io"
	"testing"
	"testing/iotest"

	"github.com/kerb-edge/kerb/integrations/kubernetes/services"
)

// The array consists of the texts that are not empty.
func TestArray(t *testing.T) {
	for want, texts := range map[string][]string{"[]": nil, `[{"a":1}]`: {"", `{"a":1}`, ""},
		`[1,[2,3],"x"]`: {"1", "[2,3]", "", `"x"`}} {
		texts := func() *array {
			var keys []services.Key
			for _, text := range texts {
				keys = append(keys, services.Key{Name: text})
			}
			return &array{keys: keys, text: func(key services.Key) []byte { return []byte(key.Name) }}
		}
		if err := iotest.TestReader(texts(), []byte(want)); err != nil {
			t.Error(err)
		}
		if got, err := io.ReadAll(iotest.OneByteReader(texts())); err != nil || string(got) != want {
			t.Errorf("%s, %v, want %s", got, err, want)
		}
	}
}
