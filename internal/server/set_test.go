// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// A change of a set's elements is read as all other bodies are: large ones, YAML, keys given twice.
func TestSetChange(t *testing.T) {
	s := newServer(t)
	if w := call(s, "POST", "/v1/apply", `{"apiVersion":"kerb.dev/v1alpha1","kind":"Set","metadata":{"name":"bad"},`+
		`"spec":{"type":"addresses"}}`); w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	const path = "/v1/sets/bad/elements"
	all := make([]string, 90_000)
	for i := range all {
		all[i] = fmt.Sprintf("198.18.%d.%d", i>>8, i&255)
		if i >= 65536 {
			all[i] = fmt.Sprintf("198.19.%d.%d", i>>8&255, i&255)
		}
	}
	large, err := json.Marshal(v1alpha1.SetChange{Add: all})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		body, mediaType string
		want            v1alpha1.SetChanged
	}{
		{string(large), "application/json", v1alpha1.SetChanged{Added: len(all), Elements: len(all)}},
		{"delete: [198.18.0.1]\n", "application/yaml", v1alpha1.SetChanged{Deleted: 1, Elements: len(all) - 1}},
	} {
		w := call(s, "PATCH", path, c.body, "Content-Type", c.mediaType)
		var got v1alpha1.SetChanged
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got != c.want {
			t.Errorf("%d bytes of %s: %d %.200s, want %+v", len(c.body), c.mediaType, w.Code, w.Body, c.want)
		}
	}
	for body, want := range map[string]string{
		`{"add":["198.18.0.1"],"add":["198.18.0.2"]}`: "occurs twice",
		`{"ad":["198.18.0.1"]}`:                       "unknown field",
		`{"add":"198.18.0.1"}`:                        "want null or array",
		`{"add":["x"]}`:                               "is not an IPv4 or IPv6 address",
		`[]`:                                          "expected one object with add or delete",
		``:                                            "expected one object with add or delete",
	} {
		w := call(s, "PATCH", path, body)
		if p := w.problem(t); w.Code != http.StatusUnprocessableEntity && w.Code != http.StatusBadRequest ||
			!strings.Contains(p.Detail, want) {
			t.Errorf("%s: %d %s, want %q", body, w.Code, p.Detail, want)
		}
	}
	if w := call(s, "GET", path, ""); w.Header().Get("Allow") != "PATCH" {
		t.Errorf("allowed: %q", w.Header().Get("Allow"))
	}
}
