// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/internal/lab/kubeapi"
)

const trustsPath = "/apis/kerb.dev/v1alpha1/packagetrusts/"

// A repository is permitted by its name, or by a prefix that ends with a slash.
func TestPermits(t *testing.T) {
	const digest = "@sha256:0"
	for _, c := range []struct {
		permitted, repository string
		want                  bool
	}{
		{"r.example/acme/limiter", "r.example/acme/limiter", true},
		{"r.example/acme/limiter", "r.example/acme/limiter2", false},
		{"r.example/acme/limiter", "r.example/acme/limiter/more", false},
		{"r.example/acme/", "r.example/acme/limiter", true},
		{"r.example/acme/", "r.example/acme/deep/limiter", true},
		{"r.example/acme/", "r.example/acmes/limiter", false},
		{"r.example/", "r.example/a", true},
		{"r.example/", "r.example:5000/a", false},
		{"r.example/", "r.example.evil.example/a", false},
	} {
		trust := api.PackageTrust{Spec: api.PackageTrustSpec{Repositories: []string{"other.example/a", c.permitted}}}
		if got := trust.Permits(c.repository + digest); got != c.want {
			t.Errorf("%s permits %s: %v", c.permitted, c.repository, got)
		}
		if trust.Undecodable = "later version"; trust.Permits(c.repository + digest) {
			t.Errorf("what cannot be decoded permits %s", c.repository)
		}
	}
	trust := api.PackageTrust{Spec: api.PackageTrustSpec{Keys: []string{"a", "b"}}}
	if !trust.Accepts([]string{"c", "b"}) || trust.Accepts([]string{"c"}) || trust.Accepts(nil) {
		t.Error("keys are not compared")
	}
	if trust.Spec.Keys = nil; !trust.Accepts(nil) {
		t.Error("without keys, those of the node decide alone")
	}
}

func TestValidationOfTrust(t *testing.T) {
	server := startServer(t)
	object := func(name, spec string) string {
		return "apiVersion: kerb.dev/v1alpha1\nkind: PackageTrust\nmetadata: {name: " + name + "}\nspec: " + spec + "\n"
	}
	for _, wrong := range []struct{ name, spec, field, remedy string }{
		{"none", `{}`, "spec.repositories", "Required"},
		{"empty", `{repositories: []}`, "spec.repositories", "at least 1"},
		{"tag", `{repositories: ["r.example/a:v1"]}`, "spec.repositories[0]", "without tag and digest"},
		{"digest", `{repositories: ["` + image + `"]}`, "spec.repositories[0]", "without tag and digest"},
		{"registry", `{repositories: [r.example]}`, "spec.repositories[0]", "with a slash at the end"},
		{"upper", `{repositories: [r.example/Acme/]}`, "spec.repositories[0]", "in lower case"},
		{"slashes", `{repositories: [r.example//]}`, "spec.repositories[0]", "REGISTRY/PATH/"},
		{"twice", `{repositories: [r.example/a, r.example/a]}`, "spec.repositories", "duplicate entries"},
		{"key", `{repositories: [r.example/], keys: [acme]}`, "spec.keys[0]", "kerb package keygen prints"},
		{"no-keys", `{repositories: [r.example/], keys: []}`, "spec.keys", "at least 1"},
		{"typo", `{repositories: [r.example/], key: a}`, "spec.key", "field not declared in schema"},
	} {
		err := server.Apply(trustsPath+wrong.name, object(wrong.name, wrong.spec))
		var no *kubeapi.Refusal
		if !errors.As(err, &no) || !strings.Contains(no.Message, wrong.field) || !strings.Contains(no.Message, wrong.remedy) {
			t.Errorf("%s: %v, want a refusal that names %s and %q", wrong.name, err, wrong.field, wrong.remedy)
		}
	}
	for name, spec := range map[string]string{
		"least": `{repositories: [r.example/]}`,
		"most": `{repositories: ["r.example:5000/acme/limiter", r.example/acme/, r.example/a_b-c.d/],
  keys: ["sha256:` + strings.Repeat("0123", 16) + `"]}`,
	} {
		if err := server.Apply(trustsPath+name, object(name, spec)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if cells := server.Table(trustsPath); len(cells) < 3 || cells[0] != "least" || cells[1] != `["r.example/"]` {
		t.Errorf("kubectl get shows %v", cells)
	}
	server.Must(http.MethodDelete, trustsPath+"least", nil, nil)
	checkExamples(t, server, "PackageTrust", trustsPath)
}
