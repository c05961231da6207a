// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"errors"
	"strings"
	"testing"
)

func TestNamesOfModules(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("0f", 32)
	directories := []string{"/opt/kerb/limiter"}
	for name, want := range map[string]string{
		"packetCounter":                           "counter",
		"firewall":                                "firewall",
		"responder":                               "responder",
		"limiter":                                 "/opt/kerb/limiter",
		"/opt/kerb/limiter":                       "/opt/kerb/limiter",
		"registry.example.org/acme/nat" + digest:  "registry.example.org/acme/nat" + digest,
		"localhost:5000/nat" + digest:             "localhost:5000/nat" + digest,
		"registry.example.org/acme/nat":           "",
		"registry.example.org/acme/nat:1.0":       "",
		"/opt/kerb":                               "",
		"/opt/kerb/limiter/../other":              "",
		"../limiter":                              "",
		"oci:/opt/kerb" + digest:                  "",
		"registry.example.org/../../etc" + digest: "",
		"":     "",
		"a\nb": "",
	} {
		got, err := packageOf(name, directories)
		var wrong *invalid
		if got != want || (want == "") != errors.As(err, &wrong) {
			t.Errorf("%q: %q, %v, want %q", name, got, err, want)
		}
	}
}

// A job with modules that cannot be read is kept, so that the instance is refused.
func TestJobs(t *testing.T) {
	const head = `{"_id":"1","job_name":"a.b.c.d","instance_number":3,"image":"x","ebpfModules":`
	for text, want := range map[string]struct{ field, wrong string }{
		head + `[{"name":"firewall","config":{"rules":[]}}]}`: {},
		head + `null}`: {},
		`{"job_name":"a.b.c.d","instance_number":0}`:                               {},
		head + `{"name":"firewall"}}`:                                              {wrong: "ebpfModules"},
		head + `["firewall"]}`:                                                     {wrong: "ebpfModules"},
		head + `[{"config":{}}]}`:                                                  {wrong: "ebpfModules[0].name"},
		head + `[{"name":7}]}`:                                                     {wrong: "ebpfModules"},
		head + `[{"name":"counter"},{"name":"firewall","config":[]}]}`:             {wrong: "ebpfModules[1].config"},
		head + `["` + strings.Repeat("x", maxJobModules) + `"]}`:                   {wrong: "ebpfModules"},
		`{"job_name":"../../x","instance_number":0}`:                               {field: "job_name"},
		`{"job_name":7,"instance_number":0}`:                                       {field: "job_name"},
		`{"instance_number":0}`:                                                    {field: "job_name"},
		`{"job_name":"a.b.c.d"}`:                                                   {field: "instance_number"},
		`{"job_name":"a.b.c.d","instance_number":-1}`:                              {field: "instance_number"},
		`{"job_name":"a.b.c.d","instance_number":"0"}`:                             {field: "instance_number"},
		`{"job_name":"` + strings.Repeat("a", 65) + `.b.c.d","instance_number":0}`: {field: "job_name"},
		`[]`: {field: "payload"},
		`{`:  {field: "payload"},
	} {
		j, err := readJob([]byte(text), false)
		var wrong *invalid
		field := ""
		if errors.As(err, &wrong) {
			field = wrong.field
		}
		if field != want.field || !strings.HasPrefix(j.Wrong, want.wrong) || (want.wrong == "") != (j.Wrong == "") {
			t.Errorf("%.100s: %+v, %v, want %+v", text, j, err, want)
		}
	}
}

// The newest job of an instance counts, and many of them push out the oldest.
func TestKeptJobs(t *testing.T) {
	l := &Listener{file: t.TempDir() + "/oakestra.json"}
	for i := range maxJobs + 10 {
		l.jobs.add(job{Name: "a.b.c.d", Instance: i % (maxJobs + 5)})
		if i%7 == 0 {
			if err := l.keepJobs(); err != nil {
				t.Fatal(err)
			}
		}
	}
	l.jobs.add(job{Name: "a.b.c.d", Instance: 100, Modules: []wanted{{Name: "firewall"}}})
	if err := l.keepJobs(); err != nil {
		t.Fatal(err)
	}
	stored, err := readState(l.file)
	if err != nil || len(stored.Jobs) != maxJobs || stored.job("a.b.c.d", 5) != nil {
		t.Errorf("%d jobs, %v", len(stored.Jobs), err)
	}
	if j := stored.job("a.b.c.d", 100); j == nil || len(j.Modules) != 1 {
		t.Errorf("the job that came last: %+v", j)
	}
}
