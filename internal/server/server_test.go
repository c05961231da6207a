// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"flag"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"go.uber.org/goleak"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/server"
	"github.com/kerb-edge/kerb/internal/server/servertest"
	"github.com/kerb-edge/kerb/internal/store"
)

var update = flag.Bool("update", false, "write docs/openapi.yaml")

const (
	counter = `{"apiVersion":"kerb.dev/v1alpha1","kind":"Module","metadata":{"name":"count"},"spec":{"package":"counter","attach":{"services":"*"}}}`
	web     = `{"apiVersion":"kerb.dev/v1alpha1","kind":"Service","metadata":{"name":"web","labels":{"app":"web"}},"spec":{"netns":"/run/netns/web"}}`
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newServer(t *testing.T) *server.Server {
	t.Helper()
	s, err := store.Open(filepath.Join(t.TempDir(), "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return server.New(servertest.New(s), slog.New(slog.DiscardHandler))
}

type response struct {
	*httptest.ResponseRecorder
}

func (r response) problem(t *testing.T) server.Problem {
	t.Helper()
	if got := r.Header().Get("Content-Type"); got != "application/problem+json" {
		t.Fatalf("Content-Type is %q, the body %s", got, r.Body)
	}
	var p server.Problem
	if err := json.Unmarshal(r.Body.Bytes(), &p); err != nil {
		t.Fatalf("%v: %s", err, r.Body)
	}
	return p
}

func call(s http.Handler, method, path, body string, header ...string) response {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	if len(header) == 2 {
		r.Header.Set(header[0], header[1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return response{w}
}

// A module's stream that ends before its time ends the connection, and is nothing to log.
func TestBrokenStream(t *testing.T) {
	st, err := store.Open(filepath.Join(t.TempDir(), "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	var log strings.Builder
	s := server.New(servertest.New(st), slog.New(slog.NewTextHandler(&log, nil)))
	call(s, "POST", "/v1/apply", counter)
	defer func() {
		if got := recover(); got != http.ErrAbortHandler || strings.Contains(log.String(), "panic") {
			t.Errorf("%v, log %s", got, log.String())
		}
	}()
	call(s, "GET", "/v1/modules/count/broken", "")
}

func TestMetricsAreCompressed(t *testing.T) {
	r := httptest.NewRequest("GET", "/metrics", nil)
	r.Header.Set("Accept-Encoding", "gzip")
	w := httptest.NewRecorder()
	newServer(t).ServeHTTP(w, r)
	packed, err := gzip.NewReader(w.Body)
	if err != nil || w.Header().Get("Content-Encoding") != "gzip" {
		t.Fatal(err, w.Header())
	}
	text, err := io.ReadAll(packed)
	if err != nil || !strings.Contains(string(text), "kerb_modules 0\n") {
		t.Errorf("%v: %s", err, text)
	}
}

// Prometheus gets protobuf, with native histograms, only if it prefers that to text.
func TestMetricsInTheFormatThatIsAccepted(t *testing.T) {
	const protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
	for accept, want := range map[string]expfmt.FormatType{
		"":    expfmt.TypeTextPlain,
		"*/*": expfmt.TypeTextPlain,
		protobuf + ";q=0.6,application/openmetrics-text;q=0.5,text/plain;q=0.2,*/*;q=0.1":       expfmt.TypeProtoDelim,
		"text/plain;version=0.0.4;q=0.5," + protobuf + ";q=0.4":                                 expfmt.TypeTextPlain,
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text": expfmt.TypeTextPlain,
		protobuf + ";q=0,*/*": expfmt.TypeTextPlain,
		"nonsense;;":          expfmt.TypeTextPlain,
	} {
		r := httptest.NewRequest("GET", "/metrics", nil)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		newServer(t).ServeHTTP(w, r)
		format := expfmt.ResponseFormat(w.Header())
		if got := format.FormatType(); got != want {
			t.Errorf("%q: %v, want %v", accept, got, want)
		}
		var first dto.MetricFamily
		if err := expfmt.NewDecoder(w.Body, format).Decode(&first); err != nil || first.GetName() == "" {
			t.Errorf("%q: %v, %v", accept, &first, err)
		}
	}
}

func TestResourceLifetime(t *testing.T) {
	s := newServer(t)
	for _, step := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", "/v1/modules", "", 200, `[]`},
		{"POST", "/v1/apply?dryRun=true", counter, 200, `"action":"create"`},
		{"GET", "/v1/modules/count", "", 404, `"resource":"Module count"`},
		{"POST", "/v1/apply", "[" + counter + "," + web + "]", 200, `"kind":"Service","name":"web"`},
		{"GET", "/v1/modules/count", "", 200, `"priority":100`},
		{"GET", "/v1/modules/count", "", 200, `"hook":"auto"`},
		{"PUT", "/v1/modules/count", counter, 200, `"action":"unchanged"`},
		{"PUT", "/v1/services/web", strings.Replace(web, "netns/web", "netns/other", 1), 200, `"action":"update"`},
		{"GET", "/v1/services", "", 200, `"netns":"/run/netns/other"`},
		{"GET", "/v1/chains/c0ffee", "", 200, `"modules":["count"]`},
		{"GET", "/v1/chains/none", "", 404, `Chain none does not exist`},
		{"GET", "/v1/packages/counter", "", 200, `"source":"builtin"`},
		{"GET", "/v1/modules/count/counts/web", "", 200, `"path":"/counts/web"`},
		{"GET", "/v1/modules/absent/counts", "", 404, `urn:kerb:not-found`},
		{"GET", "/metrics", "", 200, "kerb_modules 1"},
		{"GET", "/metrics", "", 200, "go_goroutines"},
		{"GET", "/healthz", "", 200, "ok"},
		{"GET", "/v1/status", "", 200, `"modules":1`},
		{"DELETE", "/v1/modules/count?dryRun=true", "", 200, `"action":"delete"`},
		{"DELETE", "/v1/modules/count", "", 200, `"action":"delete"`},
		{"DELETE", "/v1/modules/count", "", 404, `Module count does not exist`},
		{"POST", "/v1/delete", `[{"kind":"Service","name":"web"},{"kind":"Module","name":"count"}]`, 404, `Module count`},
		{"GET", "/v1/services/web", "", 200, `"name":"web"`},
		{"POST", "/v1/delete", `[{"kind":"Service","name":"web"}]`, 200, `"name":"web"`},
		{"GET", "/v1/services/web", "", 404, ``},
	} {
		got := call(s, step.method, step.path, step.body)
		if got.Code != step.status || !strings.Contains(got.Body.String(), step.want) {
			t.Errorf("%s %s: %d %s\nwant %d %s", step.method, step.path, got.Code, got.Body, step.status, step.want)
		}
	}
}

// Each owner changes its own resources only, and can make them exactly what it sends.
func TestOwners(t *testing.T) {
	s := newServer(t)
	other := strings.Replace(counter, `"count"`, `"other"`, 1)
	changed := strings.Replace(web, "netns/web", "netns/other", 1)
	deletion := `[{"kind":"Service","name":"web"}]`
	for _, step := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"POST", "/v1/apply", counter, 200, `"action":"create"`},
		{"POST", "/v1/apply?owner=fleet", web, 200, `"action":"create"`},
		{"GET", "/v1/services/web", "", 200, `"owner":"fleet"`},
		{"POST", "/v1/apply", changed, 409, `Service web belongs to fleet`},
		{"POST", "/v1/apply?owner=fleet", "[" + other + "," + counter + "]", 409, `Module count belongs to user`},
		{"GET", "/v1/modules/other", "", 404, ``},
		{"PUT", "/v1/services/web", changed, 409, `belongs to fleet`},
		{"DELETE", "/v1/services/web", "", 409, `belongs to fleet`},
		{"POST", "/v1/delete", deletion, 409, `belongs to fleet`},
		{"POST", "/v1/apply?owner=fleet&prune=true", "[" + counter + "]", 409, `belongs to user`},
		{"GET", "/v1/services/web", "", 200, `"netns":"/run/netns/web"`},
		{"POST", "/v1/apply?owner=fleet&prune=true&dryRun=true", other, 200, `"action":"delete","kind":"Service","name":"web"`},
		{"POST", "/v1/apply?owner=fleet&prune=true", other, 200, `"action":"delete","kind":"Service","name":"web"`},
		{"GET", "/v1/services/web", "", 404, ``},
		{"GET", "/v1/modules/count", "", 200, `"name":"count"`},
		{"POST", "/v1/apply?force=true", other, 200, `"action":"update"`},
		{"POST", "/v1/apply?owner=user", other, 200, `"action":"unchanged"`},
		{"POST", "/v1/apply?owner=fleet&prune=true", `[]`, 200, `"changes":[]`},
		{"POST", "/v1/apply?owner=fleet", `[]`, 400, `contains no resource`},
		{"POST", "/v1/apply?owner=Fl!", web, 400, `owner`},
		{"GET", "/v1/modules", "", 200, `"name":"other"`},
		{"POST", "/v1/apply?prune=true", `[]`, 200, `"action":"delete","kind":"Module","name":"other"`},
		{"GET", "/v1/modules", "", 200, `[]`},
	} {
		got := call(s, step.method, step.path, step.body)
		if got.Code != step.status || !strings.Contains(got.Body.String(), step.want) {
			t.Errorf("%s %s: %d %s\nwant %d %s", step.method, step.path, got.Code, got.Body, step.status, step.want)
		}
	}
}

func TestWhatIsReadCanBeApplied(t *testing.T) {
	s := newServer(t)
	call(s, "POST", "/v1/apply", "["+counter+","+web+"]")
	for _, path := range []string{"/v1/modules/count", "/v1/services/web"} {
		body := call(s, "GET", path, "").Body.String()
		if got := call(s, "PUT", path, body); !strings.Contains(got.Body.String(), `"action":"unchanged"`) {
			t.Errorf("%s: %d %s", path, got.Code, got.Body)
		}
	}
}

func TestBadInput(t *testing.T) {
	edit := func(old, new string) string { return strings.Replace(counter, old, new, 1) }
	for name, c := range map[string]struct {
		body     string
		resource string
		field    string
		detail   string
	}{
		"unknown field": {edit(`"attach"`, `"atach":1,"attach"`), "Module count", "spec.atach",
			"unknown field; known are attach, budget, config"},
		"unknown deep field": {edit(`"services"`, `"servces":"*","services"`), "Module count", "spec.attach.servces",
			"known are cgroups, interfaces, services"},
		"unknown top field": {edit(`"kind"`, `"extra":1,"kind"`), "Module count", "extra", "unknown field"},
		"wrong case":        {edit(`"package"`, `"Package"`), "Module count", "spec.Package", "did you mean package"},
		"wrong type": {edit(`"services":"*"`, `"services":["*"]`), "Module count", "spec.attach.services",
			"want string"},
		"wrong type in list": {edit(`"services":"*"`, `"interfaces":["eth0",1]`), "Module count", "spec.attach.interfaces[1]",
			"want string"},
		"wrong enum": {edit(`"attach"`, `"hook":"xpd","attach"`), "Module count", "spec.hook", "auto, xdp, tc"},
		"missing":    {edit(`"package":"counter",`, ``), "Module count", "spec", "package"},
		"bad name": {edit(`"count"`, `"Count_1"`), "Module Count_1", "metadata.name",
			"lower-case letters, digits and dashes"},
		"long name": {edit(`"count"`, `"`+strings.Repeat("a", 64)+`"`), "Module " + strings.Repeat("a", 64),
			"metadata.name", "63"},
		"no name": {edit(`"name":"count"`, ``), "resource 1", "metadata", "name"},
		"name with slash": {edit(`"count"`, `"../x"`), "Module ../x", "metadata.name",
			"lower-case letters, digits and dashes"},
		"wrong version": {edit(`v1alpha1`, `v2`), "Module count", "apiVersion", "kerb.dev/v1alpha1"},
		"wrong kind":    {edit(`"Module"`, `"Modul"`), "Modul count", "kind", "Module, Service, VirtualService, Model or Set"},
		"key given twice": {edit(`"package":"counter"`, `"package":"counter","package":"firewall"`), "", "spec.package",
			"occurs twice"},
		"nested too deep": {strings.Repeat("[", 1<<20), "", "", "nested more than"},
		"name given twice": {"[" + counter + "," + web + "," + counter + "]", "Module count", "metadata.name",
			"occurs twice"},
		"truncated":     {counter[:len(counter)-3], "", "", "unexpected end of JSON"},
		"two values":    {counter + counter, "", "", "after the JSON value"},
		"nothing":       {"", "", "", "no resource"},
		"empty list":    {"[]", "", "", "no resource"},
		"not an object": {`["module"]`, "resource 1", "", "expected an object"},
		"not JSON":      {`{"a" 1}`, "", "", "not JSON"},
		"two ways":      {strings.Replace(web, `"netns"`, `"pid":1,"netns"`, 1), "Service web", "spec", "exactly one"},
		"no way":        {strings.Replace(web, `"netns":"/run/netns/web"`, ``, 1), "Service web", "spec", "exactly one"},
		"negative pid": {strings.Replace(web, `"netns":"/run/netns/web"`, `"pid":-1`, 1), "Service web", "spec.pid",
			"want at least 0"},
		"relative netns": {strings.Replace(web, `/run/netns/web`, `netns/web`, 1), "Service web", "spec.netns",
			"absolute"},
		"control character": {edit(`"name":"count"`, `"name":"count","labels":{"app":"\u001b[2J"}`), "Module count",
			"metadata.labels", "no selector can name"},
		"label with blanks": {edit(`"name":"count"`, `"name":"count","labels":{"the app":"web"}`), "Module count",
			"metadata.labels", "example.org/team"},
		"label is no text": {edit(`"name":"count"`, `"name":"count","labels":{"app":1}`), "Module count",
			"metadata.labels.app", "want string"},
		"inexact number": {edit(`"attach"`, `"config":{"a":[9007199254740993]},"attach"`), "", "spec.config.a[0]",
			"cannot be kept exactly"},
		"inexact maximum": {edit(`"attach"`, `"config":{"a":18446744073709551615},"attach"`), "", "spec.config.a",
			"cannot be kept exactly"},
		"endless number": {edit(`"attach"`, `"config":{"a":1e999},"attach"`), "", "spec.config.a",
			"out of range for a number"},
		"huge number": {edit(`"attach"`, `"order":{"priority":1e30},"attach"`), "Module count", "spec.order.priority",
			"cannot be"},
		"unknown package": {edit("counter", "cuonter"), "Module count", "spec.package", "no package"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			got := call(s, "POST", "/v1/apply", c.body)
			p := got.problem(t)
			if got.Code != 400 || p.Status != 400 || p.Type != "urn:kerb:invalid" {
				t.Errorf("%d %+v", got.Code, p)
			}
			if p.Resource != c.resource || p.Field != c.field || !strings.Contains(p.Detail, c.detail) {
				t.Errorf("got %+v, want %q %q %q", p, c.resource, c.field, c.detail)
			}
			if all := call(s, "GET", "/v1/modules", ""); strings.TrimSpace(all.Body.String()) != "[]" {
				t.Errorf("something was applied: %s", all.Body)
			}
		})
	}
}

func TestRejectedCarriesTheLog(t *testing.T) {
	got := call(newServer(t), "POST", "/v1/apply", strings.Replace(counter, `"package":"counter"`, `"package":"broken"`,
		1))
	p := got.problem(t)
	if got.Code != 422 || !strings.Contains(p.Log, "invalid access to packet") || !strings.Contains(p.Detail, "refused") {
		t.Errorf("%d %+v", got.Code, p)
	}
}

func TestRequestsThatAreWrong(t *testing.T) {
	s := newServer(t)
	for name, c := range map[string]struct {
		got    response
		status int
		detail string
	}{
		"unknown path":       {call(s, "GET", "/v2/modules", ""), 404, "/v2/modules"},
		"unknown method":     {call(s, "PATCH", "/v1/modules/count", ""), 405, "GET, PUT, DELETE"},
		"method of a list":   {call(s, "POST", "/v1/modules", ""), 405, "GET"},
		"media type":         {call(s, "POST", "/v1/apply", counter, "Content-Type", "text/plain"), 415, "application/json"},
		"unknown query":      {call(s, "POST", "/v1/apply?dryrun=true", counter), 400, "dryrun"},
		"query of odd type":  {call(s, "POST", "/v1/apply?dryRun=maybe", counter), 400, "dryRun"},
		"port":               {call(s, "GET", "/v1/trace?port=70000", ""), 400, "query.port: is 70000; want at most 65535"},
		"required":           {call(s, "GET", "/v1/explain?service=web", ""), 400, "query: missing packet"},
		"two mistakes":       {call(s, "GET", "/v1/changes?limit=0&nam=web", ""), 400, "query.nam"},
		"other name":         {call(s, "PUT", "/v1/modules/other", counter), 400, "Module other"},
		"other kind":         {call(s, "PUT", "/v1/services/count", counter), 400, "Service count"},
		"two":                {call(s, "PUT", "/v1/modules/count", "["+counter+","+web+"]"), 400, "Module count"},
		"too large":          {call(s, "POST", "/v1/apply", `{"x":"`+strings.Repeat("x", 33<<20)+`"}`), 413, "32 MiB"},
		"reference, kind":    {call(s, "POST", "/v1/delete", `[{"kind":"Chain","name":"a"}]`), 400, "Module, Service"},
		"reference, unknown": {call(s, "POST", "/v1/delete", `[{"kind":"Module","name":"a","x":1}]`), 400, "unknown field"},
		"no reference":       {call(s, "POST", "/v1/delete", `[]`), 400, "no reference"},
	} {
		p := c.got.problem(t)
		if c.got.Code != c.status || !strings.Contains(p.Detail, c.detail) {
			t.Errorf("%s: %d %+v, want %d %q", name, c.got.Code, p, c.status, c.detail)
		}
	}
}

// brokenBody ends before it is complete, as when a client vanishes.
type brokenBody struct{}

func (brokenBody) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestBodyThatEndsEarly(t *testing.T) {
	r := httptest.NewRequest("POST", "/v1/apply", brokenBody{})
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	newServer(t).ServeHTTP(w, r)
	if p := (response{w}).problem(t); w.Code != 400 || !strings.Contains(p.Detail, "incomplete body") {
		t.Errorf("%d %+v", w.Code, p)
	}
}

// slowBackend counts how many changes are under way at the same time. Each waits a moment, or until there are enough.
type slowBackend struct {
	server.Backend
	now, most atomic.Int32
	enough    int32
}

func (b *slowBackend) Apply(ctx context.Context, r resource.Request) (v1alpha1.ApplyResult, error) {
	n := b.now.Add(1)
	defer b.now.Add(-1)
	for most := b.most.Load(); n > most && !b.most.CompareAndSwap(most, n); most = b.most.Load() {
	}
	time.Sleep(time.Millisecond) // others come meanwhile
	for end := time.Now().Add(30 * time.Second); b.most.Load() < b.enough &&
		time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	return v1alpha1.ApplyResult{}, nil
}

// Decoding takes many times of a body in memory, so that large ones are decoded by turns; small ones do not wait for
// them.
func TestLargeBodiesTakeTurns(t *testing.T) {
	most := func(body string, length int64, enough int32) int32 {
		b := &slowBackend{enough: enough}
		b.Backend = servertest.New(nil)
		s := server.New(b, slog.New(slog.DiscardHandler))
		var all sync.WaitGroup
		for range 30 {
			all.Go(func() {
				r := httptest.NewRequest("POST", "/v1/apply", strings.NewReader(body))
				r.ContentLength = length
				r.Header.Set("Content-Type", "application/json")
				s.ServeHTTP(httptest.NewRecorder(), r)
			})
		}
		all.Wait()
		return b.most.Load()
	}
	large := counter + strings.Repeat(" ", 1<<20)
	for _, length := range []int64{-1, int64(len(large))} {
		if n := most(large, length, 1); n < 1 || n > 2 {
			t.Errorf("%d bodies of length %d at once", n, length)
		}
	}
	for _, length := range []int64{-1, int64(len(counter))} {
		if n := most(counter, length, 3); n <= 2 {
			t.Errorf("%d small bodies of length %d at once", n, length)
		}
	}
}

// Large requests that wait take a bounded amount of memory; more are refused.
func TestLargeBodiesTogetherAreBounded(t *testing.T) {
	s := newServer(t)
	var sending sync.WaitGroup
	var slow []*io.PipeWriter
	part := []byte("[" + strings.Repeat(" ", 31<<20))
	for range 4 {
		r, w := io.Pipe()
		slow = append(slow, w)
		request := httptest.NewRequest("POST", "/v1/apply", r)
		request.ContentLength = -1
		request.Header.Set("Content-Type", "application/json")
		sending.Go(func() { s.ServeHTTP(httptest.NewRecorder(), request) })
		if _, err := w.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	if w := call(s, "POST", "/v1/apply", string(part)); w.Code != http.StatusServiceUnavailable {
		t.Errorf("with 124 MiB waiting: %d %s", w.Code, w.Body)
	}
	for _, w := range slow {
		w.Close()
	}
	sending.Wait()
	if w := call(s, "POST", "/v1/apply", string(part)+counter+"]"); w.Code != http.StatusOK {
		t.Errorf("afterwards: %d %s", w.Code, w.Body)
	}
}

func TestYAML(t *testing.T) {
	s := newServer(t)
	text := "# two\n---\napiVersion: kerb.dev/v1alpha1\nkind: Service\nmetadata:\n  name: web\nspec: {pid: " +
		"1}\n--- # next\n" +
		"apiVersion: kerb.dev/v1alpha1\nkind: Service\nmetadata: {name: db}\nspec: {interface: veth1}\n---\n"
	got := call(s, "POST", "/v1/apply", text, "Content-Type", "application/yaml")
	var result v1alpha1.ApplyResult
	if err := json.Unmarshal(got.Body.Bytes(), &result); err != nil || len(result.Changes) != 2 {
		t.Fatalf("%d %s", got.Code, got.Body)
	}
	twice := call(s, "POST", "/v1/apply", "---\nkind: A\n---\nkind: A\nkind: B\n", "Content-Type", "application/yaml")
	if p := twice.problem(t); !strings.Contains(p.Detail, "line 5") || !strings.Contains(p.Detail, "already") {
		t.Errorf("%+v", p)
	}
}

// TestDocumentIsCurrent runs with -update to write the document.
func TestDocumentIsCurrent(t *testing.T) {
	want, err := newServer(t).OpenAPI().YAML()
	if err != nil {
		t.Fatal(err)
	}
	want = append([]byte("# SPDX-License-Identifier: Apache-2.0\n# Generated: go test ./internal/server -run "+
		"Document -update\n"), want...)
	path := filepath.Join("..", "..", "docs", "openapi.yaml")
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Error("docs/openapi.yaml is not what the types say; run the command in its second line\n", diff)
	}
}

func TestDocumentIsServed(t *testing.T) {
	s := newServer(t)
	for _, path := range []string{"/openapi.json", "/openapi.yaml"} {
		got := call(s, "GET", path, "")
		for _, part := range []string{"3.1", "/v1/apply", "application/problem+json", "discriminator"} {
			if got.Code != 200 || !strings.Contains(got.Body.String(), part) {
				t.Errorf("%s: %d, without %s", path, got.Code, part)
			}
		}
	}
}
