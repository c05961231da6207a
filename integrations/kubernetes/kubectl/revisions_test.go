// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
)

func of(number string) string {
	return fmt.Sprintf(`"package":{"name":"p"},"config":{"n":%s,"unknown":{"a":"<"}}`, number)
}

// A revision keeps fields that this program does not know, and numbers that no float64 has; rollout is no part of it.
func TestRevisionsAreRaw(t *testing.T) {
	const number = "9007199254740993"
	spec := `{"attach":{},` + of(number) + `,"later":[1]}`
	var with, without api.RawSpec
	for text, to := range map[string]*api.RawSpec{spec: &without,
		strings.TrimSuffix(spec, "}") + `,"rollout":{"previous":{` + of("1") + `}}}`: &with} {
		if err := json.Unmarshal([]byte(text), to); err != nil {
			t.Fatal(err)
		}
	}
	name, data := with.Revision("web")
	if other, _ := without.Revision("web"); other != name || !strings.Contains(data, number) ||
		!strings.Contains(data, `"later":[1]`) || strings.Contains(data, "rollout") {
		t.Errorf("%s and %s: %s", name, other, data)
	}
	_, before := with.Previous().Revision("web")
	if want := strings.ReplaceAll(data, number, "1"); before != want {
		t.Errorf("previous %s, want %s", before, want)
	}
	if got := without.Previous(); got != nil {
		t.Errorf("previous %v without a rollout", got)
	}
}

// Without a name, the revision before the present one is meant. Where the present one is not recorded, the newest would
// be one too early.
func TestFind(t *testing.T) {
	named := func(names ...string) (all []api.ModuleRevision) {
		for _, name := range names {
			all = append(all, api.ModuleRevision{Metadata: api.ObjectMeta{Name: name}})
		}
		return all
	}
	for _, c := range []struct {
		all              []api.ModuleRevision
		name, want, says string
	}{
		{named("now", "a", "b"), "", "a", ""},
		{named("a", "b"), "", "", "has no revision yet"},
		{named("a", "b"), "b", "b", ""},
		{named("now"), "", "", "no earlier revision"},
		{nil, "", "", "no earlier revision"},
		{named("now", "a"), "c", "", "has no revision c"},
	} {
		got, err := find(c.all, "web", "now", c.name)
		says := err == nil && c.says == "" || err != nil && c.says != "" && strings.Contains(err.Error(), c.says)
		if got.Metadata.Name != c.want || !says {
			t.Errorf("%q of %d: %q, %v", c.name, len(c.all), got.Metadata.Name, err)
		}
	}
}

// What waves do not bring to the nodes, all nodes would have at once: a revision that differs in it is refused.
func TestRestoredAside(t *testing.T) {
	o, err := decode([]byte(`{"metadata":{"name":"web"},"spec":{"attach":{"pods":{"a":1,"b":2}},` + of("2") + `}}`))
	if err != nil {
		t.Fatal(err)
	}
	for spec, want := range map[string]string{
		`{"attach":{"pods": {"b":2,"a":1}},` + of("1") + `}`: "",
		`{"attach":{"pods":{"a":2}},` + of("1") + `}`:        "attach",
		`{` + of("1") + `}`: "attach",
		`{"attach":{"pods":{"a":1,"b":2}},"later":1,` + of("1") + `}`:             "later",
		`{"attach":{"pods":{"a":1,"b":2}},"rollout":{"later":1},` + of("1") + `}`: "",
	} {
		var before api.RawSpec
		if err := json.Unmarshal([]byte(spec), &before); err != nil {
			t.Fatal(err)
		}
		if got := changedOutsideRollout(before, o.spec); got != want {
			t.Errorf("%s differs in %q, want %q", spec, got, want)
		}
	}
}

// A revision in a rollout comes back in waves from the version that all nodes run, and at once only if it is the
// previous one. It is refused as long as nodes run two versions.
func TestRestored(t *testing.T) {
	const version = "VERSION"
	revision := func(n string) (r api.ModuleRevision) {
		spec := api.RawSpec{}
		if err := json.Unmarshal([]byte("{"+of(n)+"}"), &spec); err != nil {
			t.Fatal(err)
		}
		r.Metadata.Name, r.Spec.Data = spec.Revision("web")
		return r
	}
	status := func(percent int, halted, rolledOut string, back int) string {
		return fmt.Sprintf(`{"rolledBack":%d,"rollout":{"version":%q,"percent":%d%s},`+
			`"conditions":[{"type":"RolledOut","status":%q}]}`, back, version, percent, halted, rolledOut)
	}
	const rollout = `"waves":[50,100],"later":1,"previous":{`
	for _, c := range []struct{ what, rollout, status, to, previous, says string }{
		{"no rollout", "", "{}", "3", "", ""},
		{"complete", rollout, status(100, "", "True", 0), "3", "2", ""},
		{"complete, to the previous one", rollout, status(100, "", "True", 0), "1", "1", ""},
		{"waves, to the previous one", rollout, status(25, "", "False", 0), "1", "1", ""},
		{"waves", rollout, status(25, "", "False", 0), "3", "", "undo web brings back the previous one, which is revision " +
			revision("1").Metadata.Name},
		{"last wave", rollout, status(100, "", "False", 0), "3", "", "is being rolled out"},
		{"waves of a version that was complete before", rollout, status(50, "", "True", 0), "3", "", "is being rolled out"},
		{"halted", rollout, status(100, `,"halted":{"reason":"NodesFailed"}`, "True", 0), "3", "", "is being rolled out"},
		{"not begun", rollout, "{}", "3", "", "is being rolled out"},
		{"another version", rollout, strings.ReplaceAll(status(100, "", "True", 0), version, "x"), "3", "",
			"is being rolled out"},
		{"complete, to one that attaches elsewhere", rollout, status(100, "", "True", 0), `4},"attach":{"pods":{}},"x":{"y":1`,
			"", "differs in spec.attach"},
		{"nodes went back", rollout, status(100, "", "True", 2), "3", "", "2 nodes have rolled back"},
		{"by hand", `"percent":100,` + rollout, "{}", "1", "", "by hand"},
	} {
		spec := of("2")
		if c.rollout != "" {
			spec += `,"rollout":{` + c.rollout + of("1") + `}}`
		}
		text := func(version string) []byte {
			return []byte(`{"metadata":{"name":"web"},"spec":{` + spec + `},"status":` +
				strings.ReplaceAll(c.status, "VERSION", version) + `}`)
		}
		o, err := decode(text(""))
		if err == nil {
			o, err = decode(text(o.Module().Version()))
		}
		if err != nil {
			t.Fatal(err)
		}
		got, err := restored(o, revision(c.to))
		if c.says != "" {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v, want %q", c.what, err, c.says)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		if name, _ := got.Revision("web"); name != revision(c.to).Metadata.Name {
			t.Errorf("%s: the spec is %s", c.what, got)
		}
		before, _ := got.Previous().Revision("web")
		if c.previous != "" && (before != revision(c.previous).Metadata.Name ||
			!strings.Contains(string(got["rollout"]), `"later":1`)) {
			t.Errorf("%s: the rollout is %s, want version %s before", c.what, got["rollout"], c.previous)
		}
		if c.previous == "" && got.Previous() != nil {
			t.Errorf("%s: there is a rollout", c.what)
		}
	}
}
