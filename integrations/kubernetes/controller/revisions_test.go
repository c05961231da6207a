// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch/watchtest"
)

// shelf is the part of an API server that has one ClusterModule, web, and its revisions.
type shelf struct {
	module    string // as JSON
	revisions map[string]api.ModuleRevision
	writes    int
	hidden    bool          // objects are there that the watch has not reported yet
	slow      chan struct{} // if not nil, answers wait for its end
}

func (s *shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.slow != nil {
		select {
		case <-s.slow:
		case <-r.Context().Done():
			return
		}
	}
	if r.Method == http.MethodGet {
		fmt.Fprint(w, s.module)
		return
	}
	s.writes++
	var in api.ModuleRevision
	_ = json.NewDecoder(r.Body).Decode(&in)
	name := path.Base(r.URL.Path)
	_, there := s.revisions[name]
	switch {
	case r.Method == http.MethodPost && s.hidden:
		w.WriteHeader(http.StatusConflict)
	case r.Method == http.MethodPost:
		s.revisions[in.Metadata.Name] = in
	case !there:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodPatch:
		s.revisions[name].Metadata.Labels[api.LabelRevision] = in.Metadata.Labels[api.LabelRevision]
	default:
		delete(s.revisions, name)
	}
	fmt.Fprint(w, "{}")
}

// Every spec has a revision, with what this program does not know of it; one that comes back gets the highest number.
// The oldest of too many are deleted, and specs that are too large have none.
func TestNumbersOfRevisions(t *testing.T) {
	s := &shelf{revisions: map[string]api.ModuleRevision{}}
	r := newRevisions(watchtest.Client(t, s), slog.New(slog.DiscardHandler))
	r.handler().Replace(nil)
	generation := 0
	is := func(what, spec, want string) {
		t.Helper()
		generation++
		s.module = fmt.Sprintf(`{"metadata":{"name":"web","uid":"u1","generation":%d},"spec":%s}`, generation, spec)
		var m api.ClusterModule
		if err := json.Unmarshal([]byte(s.module), &m); err != nil {
			t.Fatal(err)
		}
		r.write(t.Context(), []api.ClusterModule{m})
		writes := s.writes
		if r.write(t.Context(), []api.ClusterModule{m}); s.writes != writes {
			t.Errorf("%s: written again", what)
		}
		var all []string
		for _, o := range s.revisions {
			var spec struct{ Later int64 }
			if err := json.Unmarshal([]byte(o.Spec.Data), &spec); err != nil || !r.failed.IsZero() {
				t.Fatal(err, r.failed)
			}
			all = append(all, fmt.Sprintf("%02d:%d", api.RevisionNumber(o.Metadata), spec.Later))
		}
		slices.Sort(all)
		if got := strings.Join(all, " "); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	spec := func(n int64) string { return fmt.Sprintf(`{"later":%d}`, n) }
	is("the first", spec(1<<53+1), "01:9007199254740993")
	is("broken", spec(2), "01:9007199254740993 02:2")
	is("undone", spec(1<<53+1), "02:2 03:9007199254740993")
	is("another", spec(4), "02:2 03:9007199254740993 04:4")
	is("in a rollout", `{"later":4,"rollout":{"previous":{"later":2}}}`, "02:2 03:9007199254740993 04:4")
	is("too large", `{"later":5,"a":"`+strings.Repeat("x", api.MaxRevisionData)+`"}`, "02:2 03:9007199254740993 04:4")
	want := "02:2"
	for n := range int64(9) {
		spec := fmt.Sprintf(`{"later":%d,"rollout":{"previous":{"later":2}}}`, 10+n)
		want += fmt.Sprintf(" %02d:%d", 5+n, 10+n)
		if n < 8 {
			generation++
			s.module = fmt.Sprintf(`{"metadata":{"name":"web","uid":"u1","generation":%d},"spec":%s}`, generation, spec)
			r.write(t.Context(), []api.ClusterModule{{Metadata: api.ObjectMeta{Name: "web"}}})
			continue
		}
		is("ten are kept, and the previous one", spec, want)
	}
	for name, o := range s.revisions {
		if !strings.HasPrefix(name, "web-") || o.Spec.Module != "web" {
			t.Errorf("%s of %s", name, o.Spec.Module)
		}
	}
}

// Writing ends with its time, also in the middle of a request, and continues with the next call. A revision that is
// there already, as one that another process has just written, is tried again later.
func TestRevisionsLeaveTimeForTheLease(t *testing.T) {
	s := &shelf{revisions: map[string]api.ModuleRevision{}, slow: make(chan struct{}),
		module: `{"metadata":{"name":"web","uid":"u1","generation":1},"spec":{}}`}
	r := newRevisions(watchtest.Client(t, s), slog.New(slog.DiscardHandler))
	r.handler().Replace(nil)
	web := api.ClusterModule{Metadata: api.ObjectMeta{Name: "web", UID: "u1", Generation: 1}}
	write := func(ctx context.Context, modules ...api.ClusterModule) { r.write(ctx, modules) }
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if write(ended, web); !r.failed.IsZero() {
		t.Error("a call without time has failed")
	}
	e := &elector{until: time.Now().Add(50 * time.Millisecond)}
	e.while(t.Context(), time.Hour, func(ctx context.Context) {
		if end, _ := ctx.Deadline(); !end.Equal(e.until) {
			t.Errorf("it may write until %v, and leads until %v", end, e.until)
		}
		write(ctx, web)
	})
	if s.writes != 0 || r.failed.IsZero() || e.leads() {
		t.Errorf("%d writes after a request that took too long, failed at %v", s.writes, r.failed)
	}
	(&elector{until: time.Now().Add(24 * time.Hour)}).while(t.Context(), time.Hour, func(ctx context.Context) {
		if end, _ := ctx.Deadline(); time.Until(end) > time.Hour {
			t.Errorf("it may write until %v", end)
		}
	})
	close(s.slow)
	r.failed, s.hidden = time.Time{}, true
	if write(t.Context(), web); r.failed.IsZero() || len(r.done) > 0 {
		t.Errorf("a revision of which the event is on its way: failed at %v, done %v", r.failed, r.done)
	}
	r.failed, s.hidden = time.Time{}, false
	if write(t.Context(), web); len(s.revisions) != 1 || len(r.done) != 1 || !r.failed.IsZero() {
		t.Errorf("%d revisions, done %v, failed at %v", len(s.revisions), r.done, r.failed)
	}
}
