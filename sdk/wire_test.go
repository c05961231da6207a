// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
)

// A request to compile is decoded like by encoding/json, whether it only has a config or not.
func TestReadCompile(t *testing.T) {
	for _, body := range []string{`{"config":{"a":[1,"}"]}}`, `{"config":null}`, `{"config":"x"}`, `{}`, `{"config":}`,
		`{"config":{}`, `{"config":{},"later":{}}`, `{"config":{"a":1},"later":{"config":{"a":2}}}`,
		` {"config": {"a":1} } `, `{"later":1,"config":{}}`, `{"config":{}}}`, `{"config":{}} {}`, ``, `[]`} {
		var want CompileRequest
		wantErr := json.NewDecoder(strings.NewReader(body)).Decode(&want)
		got, err := readCompile(httptest.NewRequest("POST", "/", strings.NewReader(body)))
		same := strings.TrimSpace(string(got.Config)) == strings.TrimSpace(string(want.Config))
		if !same || (err == nil) != (wantErr == nil) {
			t.Errorf("%s: %s (%v), want %s (%v)", body, got.Config, err, want.Config, wantErr)
		}
	}
}
