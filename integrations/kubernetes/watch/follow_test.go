// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// double is an API server whose watches send what a test says.
type double struct {
	sync.Mutex
	requests []string
	script   []func(w http.ResponseWriter, r *http.Request) // one for each request; the last one for all others
}

func (d *double) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.Lock()
	d.requests = append(d.requests, r.URL.RawQuery)
	step := d.script[0]
	if len(d.script) > 1 {
		d.script = d.script[1:]
	}
	d.Unlock()
	step(w, r)
}

func (d *double) asked() []string {
	d.Lock()
	defer d.Unlock()
	return slices.Clone(d.requests)
}

// line is an event of an object, or a bookmark.
func line(kind, name, uid string, version int) string {
	return fmt.Sprintf(`{"type":%q,"object":{"metadata":{"name":%q,"uid":%q,"resourceVersion":"%d"}}}`,
		kind, name, uid, version)
}

func endOfList(version int) string {
	return fmt.Sprintf(`{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%d",`+
		`"annotations":{"k8s.io/initial-events-end":"true"}}}}`, version)
}

const gone = `{"type":"ERROR","object":{"code":410,"reason":"Expired","message":"too old resource version"}}`

// sends writes lines, and then ends the answer.
func sends(lines ...string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Join(lines, "\n")+"\n")
	}
}

// stays writes lines, and keeps the answer open.
func stays(lines ...string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		sends(lines...)(w, r)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

func refuses(code int) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","code":%d,"reason":"Because"}`, code)
	}
}

// mirror is what a follower has reported.
type mirror struct {
	sync.Mutex
	objects  map[string]string // name by UID
	replaced int
	calls    int
}

func (m *mirror) names() string {
	m.Lock()
	defer m.Unlock()
	var all []string
	for _, name := range m.objects {
		all = append(all, name)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func (m *mirror) count() (replaced, calls int) {
	m.Lock()
	defer m.Unlock()
	return m.replaced, m.calls
}

func (m *mirror) handler() Handler[api.Object] {
	locked := func(f func()) {
		m.Lock()
		defer m.Unlock()
		m.calls++
		f()
	}
	return Handler[api.Object]{
		Replace: func(all []api.Object) {
			locked(func() {
				m.replaced++
				m.objects = map[string]string{}
				for _, o := range all {
					m.objects[o.Metadata.UID] = o.Metadata.Name
				}
			})
		},
		Set:    func(o api.Object) { locked(func() { m.objects[o.Metadata.UID] = o.Metadata.Name }) },
		Delete: func(o api.Object) { locked(func() { delete(m.objects, o.Metadata.UID) }) },
	}
}

// follow follows a double until the test ends.
func follow(t *testing.T, script ...func(http.ResponseWriter, *http.Request)) (*double, *mirror) {
	t.Helper()
	d, m := &double{script: script}, &mirror{}
	followDouble(t, d, m.handler())
	return d, m
}

func followDouble[T any, P Object[T]](t *testing.T, d *double, h Handler[T]) {
	t.Helper()
	server := httptest.NewServer(d)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Follow[T, P](ctx, &Client{base: server.URL, http: server.Client()},
			Resource{Path: "/api/v1/pods", Fields: "spec.nodeName=n1", Metadata: true},
			Times{time.Millisecond, 10 * time.Millisecond, time.Hour}, slog.New(slog.DiscardHandler), h)
	}()
	t.Cleanup(func() { cancel(); <-ended; server.Close() })
}

func (m *mirror) await(t *testing.T, want string) {
	t.Helper()
	wait.Until(t, "the objects are "+want, func() bool { return m.names() == want }, func() any { return m.names() })
}

func TestInitialEvents(t *testing.T) {
	d, m := follow(t, stays(line("ADDED", "a", "1", 3), line("ADDED", "b", "2", 4), line("ADDED", "c", "3", 5),
		line("DELETED", "c", "3", 6), line("BOOKMARK", "", "", 6), endOfList(7), line("ADDED", "d", "4", 8)))
	m.await(t, "a b d")
	if replaced, calls := m.count(); replaced != 1 || calls != 2 {
		t.Errorf("%d complete lists and %d calls, want 1 and 2", replaced, calls)
	}
	asked := d.asked()[0]
	for _, part := range []string{"sendInitialEvents=true", "fieldSelector=spec.nodeName%3Dn1", "allowWatchBookmarks=true",
		"timeoutSeconds=", "resourceVersionMatch=NotOlderThan"} {
		if !strings.Contains(asked, part) {
			t.Errorf("the request %s lacks %s", asked, part)
		}
	}
}

// What objects have in common is shared while they are listed, by initial events or pages, and not in later events. A
// list continues without objects that are dropped, the one at hand or an earlier one.
func TestListedObjectsAreShared(t *testing.T) {
	drops := map[string]string{"5": "5", "6": "1"}
	for name, script := range map[string][]func(http.ResponseWriter, *http.Request){
		"initial events": {stays(line("ADDED", "z", "1", 3), line("ADDED", "y", "5", 3), line("ADDED", "a", "6", 3),
			line("ADDED", "b", "2", 4), endOfList(7), line("ADDED", "d", "4", 8))},
		"pages": {refuses(http.StatusUnprocessableEntity), sends(`{"metadata":{"resourceVersion":"7"},"items":[` +
			`{"metadata":{"name":"z","uid":"1","resourceVersion":"3"}},` +
			`{"metadata":{"name":"y","uid":"5","resourceVersion":"3"}},` +
			`{"metadata":{"name":"a","uid":"6","resourceVersion":"3"}},` +
			`{"metadata":{"name":"b","uid":"2","resourceVersion":"4"}}]}`), stays(line("ADDED", "d", "4", 8))},
	} {
		t.Run(name, func(t *testing.T) {
			m, lists := &mirror{}, 0
			h := m.handler()
			h.Share = func() func(*api.Object) string {
				lists++
				return func(o *api.Object) string {
					o.Metadata.Name += fmt.Sprint("-shared-", lists)
					return drops[o.Metadata.UID]
				}
			}
			followDouble(t, &double{script: script}, h)
			m.await(t, "a-shared-1 b-shared-1 d")
		})
	}
}

// A list that is cut off replaces nothing: what is missing of it was not deleted.
func TestPartOfList(t *testing.T) {
	d, m := follow(t, sends(line("ADDED", "a", "1", 3)), refuses(503), sends(line("ADDED", "a", "1", 3), endOfList(3)),
		stays(line("ADDED", "b", "2", 4)))
	m.await(t, "a b")
	if replaced, _ := m.count(); replaced != 1 {
		t.Errorf("%d complete lists, want 1", replaced)
	}
	asked := d.asked()
	for _, again := range asked[:3] {
		if !strings.Contains(again, "sendInitialEvents") {
			t.Errorf("request %s continues from a list that is not complete", again)
		}
	}
	if len(asked) != 4 || !strings.Contains(asked[3], "resourceVersion=3") {
		t.Errorf("requests %v, want the fourth to continue from 3", asked)
	}
}

// The next watch continues from the last bookmark.
func TestBookmark(t *testing.T) {
	d, m := follow(t, sends(endOfList(3), line("BOOKMARK", "", "", 99)), stays(line("ADDED", "a", "1", 100)))
	m.await(t, "a")
	if asked := d.asked()[1]; !strings.Contains(asked, "resourceVersion=99") {
		t.Errorf("the watch continues with %s, want 99", asked)
	}
}

// 410 Gone, as an event or as an answer, makes the follower list again, and the list has what was missed.
func TestGone(t *testing.T) {
	_, m := follow(t, sends(line("ADDED", "a", "1", 3), line("ADDED", "b", "2", 3), endOfList(3), gone),
		sends(line("ADDED", "b", "2", 9), line("ADDED", "c", "3", 8), endOfList(9)), refuses(410), sends(gone), sends(gone),
		stays(line("ADDED", "c", "3", 8), line("ADDED", "d", "4", 12), endOfList(12)))
	m.await(t, "c d")
	if replaced, _ := m.count(); replaced != 3 {
		t.Errorf("%d complete lists, want 3", replaced)
	}
}

// Duplicates and late events change nothing.
func TestDuplicatedAndLateEvents(t *testing.T) {
	_, m := follow(t, stays(line("ADDED", "old", "1", 3), endOfList(5), line("MODIFIED", "new", "1", 7),
		line("MODIFIED", "new", "1", 7), line("MODIFIED", "late", "1", 6), line("ADDED", "b", "2", 8),
		line("DELETED", "b", "2", 9), line("MODIFIED", "b", "2", 8), line("DELETED", "new", "1", 4),
		line("ADDED", "end", "3", 10)))
	m.await(t, "end new")
	if _, calls := m.count(); calls != 5 {
		t.Errorf("%d calls, want the list, new, b, its deletion, and end", calls)
	}
}

// A server that cannot send initial events is asked for pages.
func TestPages(t *testing.T) {
	page := func(token string, names ...string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			var all []api.Object
			for _, name := range names {
				all = append(all, api.Object{Metadata: api.ObjectMeta{Name: name, UID: name, ResourceVersion: "3"}})
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"items": all,
				"metadata": map[string]any{"resourceVersion": "5", "continue": token}})
		}
	}
	d, m := follow(t, refuses(422), page("more", "a", "b"), page("", "c"), stays(line("ADDED", "d", "4", 6)))
	m.await(t, "a b c d")
	asked := d.asked()
	if !strings.Contains(asked[1], "limit=500") || !strings.Contains(asked[2], "continue=more") ||
		!strings.Contains(asked[3], "resourceVersion=5") {
		t.Errorf("requests %v", asked)
	}
}

// What cannot be read is left out, and keeps nothing else away.
func TestUnreadableObjects(t *testing.T) {
	_, m := follow(t, stays(line("ADDED", "a", "1", 3), `{"type":"ADDED","object":{"metadata":{"name":7}}}`,
		`{"type":"ADDED","object":[]}`, `{"type":"SOMETHING","object":{}}`, endOfList(4),
		`{"type":"MODIFIED","object":{"metadata":{"name":"x","uid":"1","labels":["a"],"resourceVersion":"5"}}}`,
		line("ADDED", "b", "2", 6)))
	m.await(t, "a b")
}

// Text that is no JSON ends a watch, and the next one continues.
func TestBrokenStream(t *testing.T) {
	_, m := follow(t, sends(line("ADDED", "a", "1", 3), endOfList(3), `{"type":"ADD`), refuses(500),
		stays(line("ADDED", "b", "2", 4)))
	m.await(t, "a b")
}

// A follower does not remember deleted objects without end.
func TestDeletedAreForgotten(t *testing.T) {
	m := &mirror{objects: map[string]string{}}
	f := &follower[api.Object, *api.Object]{seen: map[string]uint64{}, handler: m.handler()}
	for i := range 10 * maxDeleted {
		o := api.Object{Metadata: api.ObjectMeta{UID: fmt.Sprint(i), ResourceVersion: fmt.Sprint(2*i + 1)}}
		f.change(false, o, &o.Metadata)
		o.Metadata.ResourceVersion = fmt.Sprint(2*i + 2)
		f.change(true, o, &o.Metadata)
	}
	if len(f.seen) > maxDeleted+1 {
		t.Errorf("%d objects are remembered after all were deleted", len(f.seen))
	}
}

// A proxy in front of an API server may answer a list with JSON of its own. Without a version there is nothing to watch
// from: the list is an error, after which the follower waits.
func TestListWithoutVersion(t *testing.T) {
	d := &double{script: []func(http.ResponseWriter, *http.Request){func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("watch") {
			refuses(http.StatusUnprocessableEntity)(w, r)
			return
		}
		sends(`{"metadata":{},"items":[]}`)(w, r)
	}}}
	server := httptest.NewServer(d)
	defer server.Close()
	m := &mirror{}
	f := &follower[api.Object, *api.Object]{client: &Client{base: server.URL, http: server.Client()},
		resource: Resource{Path: "/x"}, handler: m.handler(), times: Times{Watch: time.Minute},
		log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	err := f.round(ctx)
	if err == nil || !strings.Contains(err.Error(), "resourceVersion") || len(d.asked()) != 2 {
		t.Errorf("%d requests, %v", len(d.asked()), err)
	}
	if replaced, _ := m.count(); replaced != 0 {
		t.Error("a list without a version has replaced the objects")
	}
}

// Some API servers send a deletion with the version that the object had.
func TestDeletedWithTheSameVersion(t *testing.T) {
	m := &mirror{objects: map[string]string{}}
	f := &follower[api.Object, *api.Object]{handler: m.handler(), seen: map[string]uint64{}}
	object := api.Object{Metadata: api.ObjectMeta{Name: "a", UID: "1", ResourceVersion: "7"}}
	f.change(false, object, &object.Metadata)
	f.change(true, object, &object.Metadata)
	if names := m.names(); names != "" {
		t.Errorf("%s is still there", names)
	}
	_, before := m.count()
	f.change(true, object, &object.Metadata)
	f.change(false, object, &object.Metadata)
	if _, calls := m.count(); calls != before || m.names() != "" {
		t.Error("a repeated event of a deleted object counts")
	}
}

// An object of a Keeper that cannot be decoded is handed on with what can be decoded of it; without a name there is no
// complete list, as it may be any of those that are known.
func TestUndecodableObjectsAreKept(t *testing.T) {
	const wrong = `{"type":"ADDED","object":{"metadata":{"name":"m","uid":"u","resourceVersion":"5"},` +
		`"spec":{"order":{"priority":"high"},"package":{"name":"counter"}}}}`
	const nameless = `{"type":"ADDED","object":{"metadata":{"name":7,"uid":"u","resourceVersion":"5"}}}`
	server := &double{script: []func(http.ResponseWriter, *http.Request){
		sends(nameless, endOfList(5)), stays(wrong, endOfList(6), strings.Replace(wrong, `"5"`, `"7"`, 1))}}
	got := make(chan []api.Module, 3)
	followDouble(t, server, Handler[api.Module]{Replace: func(all []api.Module) { got <- all },
		Set: func(m api.Module) { got <- []api.Module{m} }})
	for _, what := range []string{"list", "change"} {
		all := <-got
		if len(all) != 1 || all[0].Metadata.Name != "m" || all[0].Spec.Package.Name != "counter" ||
			!strings.Contains(all[0].Undecodable, "priority") {
			t.Errorf("the %s is %+v", what, all)
		}
	}
}

// A page of large objects is not in memory as a whole: each is decoded when it has come.
func TestLargePages(t *testing.T) {
	const items, size = 50, 1 << 20
	r, w := io.Pipe()
	var sent atomic.Int32 // completely; the pipe has no buffer
	go func() {
		_, _ = io.WriteString(w, `{"kind": "L", "metadata": {"resourceVersion": "7", "continue": "c"}, "items": [`)
		for i := range items {
			_, _ = fmt.Fprintf(w, `%s{"metadata": {"name": "a"}, "x": "%s"}`, strings.Repeat(",", min(i, 1)),
				strings.Repeat("x", size))
			sent.Add(1)
		}
		_, _ = io.WriteString(w, "]}")
		w.Close()
	}()
	got := int32(0)
	version, more, err := readPage(r, func(item json.RawMessage) error {
		if got++; sent.Load() > got+4 { // the decoder's buffer has room for some
			return fmt.Errorf("%d objects were read before number %d was decoded", sent.Load(), got)
		}
		return nil
	})
	if err != nil || got != items || version != "7" || more != "c" {
		t.Errorf("%d objects, version %q, continue %q, %v", got, version, more, err)
	}
	for text, want := range map[string]bool{`{"metadata": {"resourceVersion": "7"}, "items": null}`: true,
		`{"metadata": {"resourceVersion": "7"}, "items": []}`: true, `{"metadata": {}, "items": [{}]`: false, "": false} {
		if _, _, err := readPage(strings.NewReader(text), func(json.RawMessage) error { return nil }); (err == nil) != want {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A watch lasts for an hour: the room of its initial events is released when they have been handed on.
func TestInitialEventsAreReleased(t *testing.T) {
	const n = 20000
	d := &double{script: []func(http.ResponseWriter, *http.Request){func(w http.ResponseWriter, r *http.Request) {
		for i := range n {
			fmt.Fprintln(w, line("ADDED", "a", fmt.Sprint(i), 3))
		}
		stays(endOfList(3), line("MODIFIED", "b", "0", 4))(w, r)
	}}}
	heap := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before := heap()
	grown := make(chan int, 1)
	followDouble(t, d, Handler[api.Object]{Replace: func([]api.Object) {},
		Set: func(api.Object) { grown <- heap() - before }})
	// The follower keeps the versions of objects by UID.
	if each := <-grown / n; each > int(unsafe.Sizeof(api.Object{})) {
		t.Errorf("%d bytes stay of each object", each)
	}
}

// A follower whose first list never comes gets older, too: from its start.
func TestAgeWithoutList(t *testing.T) {
	d := &double{script: []func(http.ResponseWriter, *http.Request){stays()}}
	server := httptest.NewServer(d)
	ctx, cancel := context.WithCancel(t.Context())
	c := &Client{base: server.URL, http: server.Client(), count: newCounters()}
	began, ended := time.Now(), make(chan struct{})
	go func() {
		defer close(ended)
		Follow(ctx, c, Resource{Path: "/api/v1/pods"}, DefaultTimes, slog.New(slog.DiscardHandler), (&mirror{}).handler())
	}()
	last := func() time.Time { return c.Stats().Watches["pods"].Last }
	wait.Until(t, "the follower has an age", func() bool { return !last().Before(began) }, func() any { return last() })
	cancel()
	<-ended
	server.Close()
	if got := last(); !got.IsZero() {
		t.Errorf("a follower that has ended gets older since %v", got)
	}
}
