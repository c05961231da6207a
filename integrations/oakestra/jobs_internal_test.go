// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/wait"
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

// A job with modules that cannot be decoded is kept, so that the instance is rejected.
func TestJobs(t *testing.T) {
	const head = `{"_id":"1","job_name":"a.b.c.d","instance_number":3,"image":"x","ebpfModules":`
	for text, want := range map[string]struct{ field, wrong string }{
		head + `[{"name":"firewall","config":{"rules":[]}}]}`: {},
		head + `null}`: {},
		`{"job_name":"a.b.c.d","instance_number":0}`:                   {},
		head + `{"name":"firewall"}}`:                                  {wrong: "ebpfModules"},
		head + `["firewall"]}`:                                         {wrong: "ebpfModules"},
		head + `[{"config":{}}]}`:                                      {wrong: "ebpfModules[0].name"},
		head + `[{"name":7}]}`:                                         {wrong: "ebpfModules"},
		head + `[{"name":"counter"},{"name":"firewall","config":[]}]}`: {wrong: "ebpfModules[1].config"},
		head + `[{"name":"counter","config":{"keys":[{"id":1,"key":{"fromFile":"/etc/shadow"}}]}}]}`: {
			wrong: "ebpfModules[0].config.keys[0].key.fromFile: "},
		head + `[` + strings.Repeat(`{"name":"firewall"},`, 15) + `{"name":"counter"}]}`: {},
		head + `[` + strings.Repeat(`{"name":"firewall"},`, 16) + `{"name":"counter"}]}`: {
			wrong: "ebpfModules: has 17 modules, more than 16"},
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

// The newest job of an instance counts, and beyond the limit the oldest jobs are dropped.
func TestKeptJobs(t *testing.T) {
	l := &Listener{file: t.TempDir() + "/oakestra.json", log: slog.New(slog.DiscardHandler)}
	for i := range maxJobs + 10 {
		l.jobs.add(job{Name: "a.b.c.d", Instance: i % (maxJobs + 5)}, l.log)
		if i%7 == 0 {
			if err := l.keepJobs(); err != nil {
				t.Fatal(err)
			}
		}
	}
	l.jobs.add(job{Name: "a.b.c.d", Instance: 100, Modules: json.RawMessage(`[{"name":"firewall"}]`)}, l.log)
	if err := l.keepJobs(); err != nil {
		t.Fatal(err)
	}
	stored, err := readState(l.file)
	if err != nil || len(stored.Jobs) != maxJobs || stored.job("a.b.c.d", 5) != nil {
		t.Errorf("%d jobs, %v", len(stored.Jobs), err)
	}
	if j := stored.job("a.b.c.d", 100); j == nil || !strings.Contains(string(j.Modules), "firewall") {
		t.Errorf("the newest job: %+v", j)
	}
}

// The bytes of jobs and of the file are limited: neither the number of jobs nor nested configs make it large.
func TestLargeJobs(t *testing.T) {
	log := &safeBuffer{}
	l := &Listener{file: t.TempDir() + "/oakestra.json", log: slog.New(slog.NewTextHandler(log, nil))}
	const depth = 9000
	nested := fmt.Sprintf(`[{"name":"counter","config":{"a":%s%s,"b":%q}}]`, strings.Repeat("[", depth),
		strings.Repeat("]", depth), strings.Repeat("x", 40<<10))
	const jobs = 3 * maxJobBytes / (40 << 10)
	for i := range jobs {
		j, err := readJob(fmt.Appendf(nil, `{"job_name":"a.b.c.d","instance_number":%d,"ebpfModules":%s}`, i, nested), false)
		if err != nil || j.Wrong != "" {
			t.Fatal(j.Wrong, err)
		}
		l.jobs.add(j, l.log)
		if i%20 == 0 {
			if err := l.keepJobs(); err != nil {
				t.Fatal(err)
			}
		}
	}
	waiting := 0
	for _, j := range l.jobs.all {
		waiting += len(j.Modules)
	}
	if err := l.keepJobs(); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(l.file)
	if err != nil || waiting > maxJobBytes || len(file) > maxJobBytes+maxJobModules {
		t.Errorf("%d bytes wait, the file has %d, %v", waiting, len(file), err)
	}
	stored, err := readState(l.file)
	if err != nil || stored.job("a.b.c.d", jobs-1) == nil || stored.job("a.b.c.d", 0) != nil {
		t.Errorf("the newest or the oldest of %d jobs: %v", len(stored.Jobs), err)
	}
	if !strings.Contains(log.String(), "instance=0") {
		t.Error("the job that is forgotten is not logged")
	}
}

// A redirect of the abstractor is not followed.
func TestAbstractorRedirects(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `[{"job_name":"a.b.c.d"}]`)
	}))
	defer other.Close()
	in := deployment{Name: "a.b.c.d"}
	if _, err := askJob(t.Context(), other.URL, in); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusFound))
	defer s.Close()
	if j, err := askJob(t.Context(), s.URL, in); err == nil || !strings.Contains(err.Error(), "302") {
		t.Errorf("%+v, %v", j, err)
	}
}

// A message for a former id of the worker does not apply to the new one.
func TestJobsOfAFormerWorker(t *testing.T) {
	m := newMember(t)
	m.register(testWorker)
	former := m.l.session
	former.onJob(job{Name: testApp})
	m.register("6650000000000000000000d2")
	former.onJob(job{Name: testApp, Instance: 1}) // late
	m.l.session.onJob(job{Name: testApp, Instance: 2})
	m.l.mu.Lock()
	defer m.l.mu.Unlock()
	if err := m.l.keepJobs(); err != nil {
		t.Fatal(err)
	}
	if jobs := m.l.state.Jobs; len(jobs) != 1 || jobs[0].Instance != 2 {
		t.Errorf("jobs %+v", jobs)
	}
}

// After the broker was unreachable a job may be outdated: the abstractor is queried, and the job is used if it does not
// reply.
func TestDoubtfulJobs(t *testing.T) {
	m := newMember(t)
	abstractor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `[{"job_name":%q,"ebpfModules":[{"name":"asked"}]}]`, testApp)
	}))
	defer abstractor.Close()
	m.l.options.Abstractor = abstractor.Listener.Addr().(*net.TCPAddr).Port
	m.register(testWorker)
	kept := func(doubtful bool, module string) func() bool {
		return func() bool {
			m.l.mu.Lock()
			defer m.l.mu.Unlock()
			if err := m.l.keepJobs(); err != nil {
				t.Fatal(err)
			}
			j := m.l.state.job(testApp, 0)
			return j != nil && j.Doubtful == doubtful && strings.Contains(string(j.Modules), module)
		}
	}
	send := func(module string) {
		t.Helper()
		wait.Until(t, "a new job", func() bool { // sent again: the worker may not have subscribed yet
			m.cluster.Forge("nodes/"+testWorker+"/"+topicJob,
				fmt.Sprintf(`{"job_name":%q,"instance_number":0,"ebpfModules":[{"name":%q}]}`, testApp, module))
			return kept(false, module)()
		})
	}
	want := func(module string) {
		t.Helper()
		got, err := m.l.modulesOf(t.Context(), deployment{Name: testApp})
		if err != nil || len(got) != 1 || got[0].Name != module {
			t.Errorf("modules %+v, %v, want %s", got, err, module)
		}
	}
	send("first")
	want("first")
	m.broker.Stop()
	wait.Until(t, "the job is doubtful", kept(true, "first"))
	want("asked")
	m.broker.Start()
	send("second")
	want("second")
	m.broker.Stop()
	wait.Until(t, "the job is doubtful", kept(true, "second"))
	abstractor.Close()
	want("second")
}

// A container that ends before NodeEngine has received the response to its deployment is deployed again. A sweep may
// remove the service in between: the modules of the SLA are known nevertheless, even if the abstractor does not reply.
// An undeployed instance leaves nothing behind.
func TestSweptServicesKeepTheirModules(t *testing.T) {
	m := newMember(t)
	m.register(testWorker)
	socket := filepath.Join(t.TempDir(), "agent.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	agent := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				fmt.Fprint(w, "[]")
			}
		})}}
	agent.Start()
	t.Cleanup(agent.Close)
	sweep := func() error {
		m.l.mu.Lock()
		defer m.l.mu.Unlock()
		m.l.agent = newAgent(socket)
		m.l.state.Services = []service{{Name: testApp, Number: 7, Ready: true}, {Name: otherApp, Number: 8, Ready: true}}
		m.l.state.Modules = []module{{Name: "firewall", Config: map[string]any{"rules": []any{}}, Service: testApp}}
		return m.l.sweepServices(t.Context()) // the interfaces do not exist
	}
	if err := sweep(); err != nil {
		t.Fatal(err)
	}
	for app, want := range map[string]string{testApp: "[{firewall map[rules:[]]}]", otherApp: "[]"} {
		got, err := m.l.modulesOf(t.Context(), deployment{Name: app})
		if err != nil || fmt.Sprint(got) != want {
			t.Errorf("%s: %v, %v, want %s", app, got, err, want)
		}
	}
	m.l.mu.Lock()
	m.l.state.Jobs = append(m.l.state.Jobs, job{Name: otherApp, Instance: 1})
	m.l.mu.Unlock()
	for _, one := range []deployment{{Name: testApp}, {Name: otherApp, Instance: 1}} {
		w := httptest.NewRecorder()
		m.l.undeployContainer(w, httptest.NewRequest(http.MethodPost, "/container/undeploy",
			strings.NewReader(fmt.Sprintf(`{"serviceName":%q,"instanceNumber":%d}`, one.Name, one.Instance))))
		if w.Code != http.StatusOK {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	stored, err := readState(m.l.file)
	if err != nil || stored.job(testApp, 0) != nil || stored.job(otherApp, 1) == nil {
		t.Errorf("after undeploy: %+v, %v; want the job of the cluster manager alone", stored.Jobs, err)
	}
}

// Jobs that a sweep stores do not displace jobs announced by the cluster manager.
func TestSweptServicesDisplaceNoJobs(t *testing.T) {
	l := &Listener{log: slog.New(slog.DiscardHandler)}
	l.state.Modules = []module{{Name: "firewall", Service: testApp}}
	for i := range 2 {
		l.state.Jobs = append(l.state.Jobs, job{Name: otherApp, Instance: i})
	}
	for i := range maxJobs + 10 {
		if err := l.storeModulesAsJob(service{Name: testApp, Instance: i, Ready: true}); err != nil {
			t.Fatal(err)
		}
	}
	announced := l.state.job(otherApp, 0) != nil && l.state.job(otherApp, 1) != nil
	if !announced || len(l.state.Jobs) != maxJobs || l.state.job(testApp, 0) == nil {
		t.Errorf("announced jobs are kept: %v; %d jobs", announced, len(l.state.Jobs))
	}
}

// A client of the socket is not the operator: it must not name files of the node, either.
func TestFilesInModules(t *testing.T) {
	w := httptest.NewRecorder()
	(&Listener{}).createModule(w, httptest.NewRequest(http.MethodPost, "/ebpf",
		strings.NewReader(`{"name":"tunnel","config":{"peers":[{"key":{"fromFile":"/etc/shadow"}}]}}`)))
	if said := w.Body.String(); w.Code != http.StatusBadRequest ||
		!strings.Contains(said, "config.peers[0].key.fromFile: ") || !strings.Contains(said, "kerb apply") {
		t.Errorf("%d %s", w.Code, said)
	}
}

// NodeEngine forwards the content of the SLA: it must not name files of the node.
func TestFilesInDeployments(t *testing.T) {
	l := &Listener{log: slog.New(slog.DiscardHandler)}
	l.state.Worker = testWorker
	for config, want := range map[string]int{`{}`: http.StatusOK, `{"fromFile":"/etc/shadow"}`: http.StatusBadRequest,
		`{"peers":[{},{"key":{"fromFile":5}}]}`: http.StatusBadRequest} {
		w := httptest.NewRecorder()
		body := fmt.Sprintf(`{"serviceName":"a.b.c.d","ebpfModules":[{"name":"counter"},{"name":"tunnel","config":%s}]}`, config)
		_, ok := l.readDeployment(w, httptest.NewRequest(http.MethodPost, "/container/deploy", strings.NewReader(body)))
		said := w.Body.String()
		if w.Code != want || ok != (want == http.StatusOK) ||
			!ok && !(strings.Contains(said, "ebpfModules[1].config") && strings.Contains(said, "kerb apply")) {
			t.Errorf("%s: %d %s", config, w.Code, said)
		}
	}
}

// Neither a request of NodeEngine nor a job may start an unlimited number of modules.
func TestManyModulesInADeployment(t *testing.T) {
	l := &Listener{log: slog.New(slog.DiscardHandler)}
	l.state.Worker = testWorker
	for n, want := range map[int]int{maxModules: http.StatusOK, maxModules + 1: http.StatusBadRequest} {
		w := httptest.NewRecorder()
		body := `{"serviceName":"a.b.c.d","ebpfModules":[{"name":"firewall"}` +
			strings.Repeat(`,{"name":"firewall"}`, n-1) + `]}`
		_, ok := l.readDeployment(w, httptest.NewRequest(http.MethodPost, "/container/deploy", strings.NewReader(body)))
		if said := w.Body.String(); w.Code != want || !ok && !strings.Contains(said, "ebpfModules: has 17 modules") {
			t.Errorf("%d modules: %d %s", n, w.Code, said)
		}
	}
}
