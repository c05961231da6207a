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

// A dry run shows the resources before and after; the answer to a change does not repeat the request.
func TestDocumentsOfDryRun(t *testing.T) {
	s := newServer(t)
	body := `{"apiVersion": "kerb.dev/v1alpha1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"netns": "%s"}}`
	shows := func(method, path, body string, before, after bool) {
		t.Helper()
		for _, dryRun := range []bool{true, false} {
			var result v1alpha1.ApplyResult
			w := call(s, method, fmt.Sprintf("%s?dryRun=%t", path, dryRun), body)
			if err := json.Unmarshal(w.Body.Bytes(), &result); err != nil || len(result.Changes) != 1 {
				t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
			}
			c := result.Changes[0]
			if (c.Before != nil) != (before && dryRun) || (c.After != nil) != (after && dryRun) {
				t.Errorf("%s %s, dry run %t: before %v, after %v", method, path, dryRun, c.Before, c.After)
			}
		}
	}
	shows("PUT", "/v1/services/web", fmt.Sprintf(body, "/run/netns/a"), false, true)
	shows("POST", "/v1/apply", fmt.Sprintf(body, "/run/netns/b"), true, true)
	shows("POST", "/v1/delete", `[{"kind": "Service", "name": "web"}]`, true, false)
}
