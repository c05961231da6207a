// SPDX-License-Identifier: Apache-2.0

// Package events writes Kubernetes Events with the client of package watch. Their number is bounded: one Event per
// reason and object, a rate limit, and a short queue. Namespaces are served round-robin, so that one cannot use up the
// rate or the queue of all. An Event that cannot be written does not block others.
package events

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
)

// Types of Events.
const (
	Normal  = "Normal"
	Warning = "Warning"
)

// Limits of memory and texts.
const (
	maxQueued   = 64
	maxOfOne    = 8 // of one namespace
	maxRecent   = 256
	maxMessage  = 1024 // bytes, the API server's limit
	maxNamePart = 200  // bytes of an Event's name: 253 with the digest
)

const writeTimeout = 10 * time.Second

// Object is the object that an Event refers to.
type Object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	UID        string `json:"uid,omitempty"`
}

// Event is an event about an object.
type Event struct {
	Object  Object
	Type    string // Normal or Warning
	Reason  string // one CamelCase word
	Message string // what has happened, and what to do
}

// waiting is an Event in the queue.
type waiting struct {
	Event
	at       time.Time // when it was recorded
	fresh    time.Time // when it was last known to be true
	attempts int       // that the API server has answered with an error
}

// Limits are the rate limits of a Recorder.
type Limits struct {
	Burst int           // Events that are written without delay
	Every time.Duration // and then one after this time
	Same  time.Duration // in which the same Event is written once
	Retry time.Duration // first pause after the API server could not be reached. It doubles, up to a minute
	Old   time.Duration // after which one that waits is dropped, unless Keep has kept it. Zero: never
}

// DefaultLimits are the limits of a node: on average, 1,000 nodes write at most 1.7 Events per second.
var DefaultLimits = Limits{Burst: 10, Every: 10 * time.Minute, Same: 10 * time.Minute, Retry: time.Second,
	Old: 10 * time.Minute}

const (
	maxRetry    = time.Minute
	maxAttempts = 8 // to write an Event, after errors of the API server that may be temporary
)

// Recorder writes Events. It is safe for concurrent use.
type Recorder struct {
	client          *watch.Client
	component, host string
	limits          Limits
	log             *slog.Logger
	wake            chan struct{}

	mu     sync.Mutex
	queue  []waiting
	recent map[key]entry
	count  Counts
	tokens int            // Events that may be written now
	filled time.Time      // when tokens were last added
	spent  map[string]int // tokens by namespace, less those added since: at most half of them are for one
	turn   string         // the namespace of the last request
}

// Counts has the numbers of Events since the start.
type Counts struct{ Written, Dropped int }

// key identifies the object of an Event in the API server.
type key struct {
	object Object
	reason string
}

type entry struct {
	message string
	at      time.Time
}

// New returns a recorder for a component. host is the name of its Node or pod.
func New(c *watch.Client, component, host string, limits Limits, log *slog.Logger) *Recorder {
	return &Recorder{client: c, component: component, host: host, limits: limits, log: log,
		wake: make(chan struct{}, 1), recent: map[key]entry{}, tokens: limits.Burst, filled: time.Now(),
		spent: map[string]int{}}
}

func (e Event) key() key { return key{e.Object, e.Reason} }

// Record queues an Event. If the queue is full, it counts the Event as dropped and returns false.
func (r *Recorder) Record(e Event) bool {
	ok := r.Offer(e)
	if !ok && r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.count.Dropped++
	}
	return ok
}

// Offer queues an Event. It returns true if the Event is queued or was written recently; otherwise the caller may offer
// it again. It replaces a queued Event about the same object with the same reason and another message. A nil recorder
// accepts none.
func (r *Recorder) Offer(e Event) bool {
	if r == nil {
		return false
	}
	e.Message = limited(e.Message)
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if last, ok := r.recent[e.key()]; ok && last.message == e.Message && now.Sub(last.at) < r.limits.Same {
		return true
	}
	ofOne := 0
	for i := range r.queue {
		if is := &r.queue[i]; is.key() == e.key() {
			if is.Event != e {
				*is = waiting{Event: e, at: now}
			}
			is.fresh = now
			return true
		}
		if e.Object.Namespace != "" && r.queue[i].Object.Namespace == e.Object.Namespace {
			ofOne++
		}
	}
	if len(r.queue) >= maxQueued || ofOne >= maxOfOne {
		return false
	}
	r.queue = append(r.queue, waiting{Event: e, at: now, fresh: now})
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return true
}

// Keep removes queued Events for which still returns false, because they no longer apply, and resets the age of the
// others. It may be called on a nil recorder.
func (r *Recorder) Keep(still func(Event) bool) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.queue = slices.DeleteFunc(r.queue, func(e waiting) bool { return !still(e.Event) })
	for i := range r.queue {
		r.queue[i].fresh = now
	}
}

// Clear drops all queued Events.
func (r *Recorder) Clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count.Dropped += len(r.queue)
	r.queue = nil
}

// Counts returns how many Events were written and dropped.
func (r *Recorder) Counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}

// Run writes Events until the context ends.
func (r *Recorder) Run(ctx context.Context) {
	retry := r.limits.Retry
	for ctx.Err() == nil {
		e, ok, wait := r.next(time.Now())
		if !ok {
			r.pause(ctx, wait)
			continue
		}
		err := r.write(ctx, e)
		if ctx.Err() != nil {
			return
		}
		if err != nil && again(err) && r.later(e, err) {
			select {
			case <-ctx.Done():
			case <-time.After(retry/2 + rand.N(retry)):
			}
			retry = min(2*retry, maxRetry)
			continue
		}
		if err != nil {
			r.log.Warn("an Event is not written", "object", e.Object.Name, "reason", e.Reason, "error", err)
		}
		retry = r.limits.Retry
		r.done(e, err)
	}
}

// pause waits for a time, or an Event that is recorded meanwhile: it may be of a namespace that has tokens.
func (r *Recorder) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-r.wake:
	case <-timer.C:
	}
}

// next returns the Event to write now: the first one of the next namespace, in order of names, that has tokens.
// Otherwise it returns the time until there are tokens.
func (r *Recorder) next(now time.Time) (e waiting, ok bool, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fill(now)
	if r.limits.Old > 0 {
		before := len(r.queue)
		r.queue = slices.DeleteFunc(r.queue, func(e waiting) bool { return now.Sub(e.fresh) > r.limits.Old })
		r.count.Dropped += before - len(r.queue)
	}
	for _, of := range r.queue {
		if r.tokens > 0 && r.spent[of.Object.Namespace] < r.share(of.Object.Namespace) && (!ok || r.sooner(of, e)) {
			e, ok = of, true
		}
	}
	if ok {
		r.turn = e.Object.Namespace
	}
	return e, ok, r.filled.Add(r.limits.Every).Sub(now)
}

// sooner reports whether it is the turn of an Event's namespace before that of another one.
func (r *Recorder) sooner(a, b waiting) bool {
	x, y := a.Object.Namespace, b.Object.Namespace
	if waits, other := x <= r.turn, y <= r.turn; waits != other {
		return other
	}
	return x < y
}

// share returns how many tokens there are for a namespace: half of them, and all for objects without a namespace.
func (r *Recorder) share(namespace string) int {
	if namespace == "" {
		return r.limits.Burst
	}
	return max(1, r.limits.Burst/2)
}

// fill adds the tokens that are due.
func (r *Recorder) fill(now time.Time) {
	n := int(now.Sub(r.filled) / r.limits.Every)
	if n <= 0 {
		return
	}
	r.tokens, r.filled = min(r.limits.Burst, r.tokens+n), r.filled.Add(time.Duration(n)*r.limits.Every)
	for namespace := range r.spent {
		if r.spent[namespace] -= n; r.spent[namespace] <= 0 {
			delete(r.spent, namespace)
		}
	}
}

// later moves an Event that could not be written to the end of the queue, and reports whether to retry. Some errors are
// permanent, and may come from an admission webhook for one namespace.
func (r *Recorder) later(e waiting, err error) bool {
	if _, answered := errors.AsType[*watch.StatusError](err); answered {
		e.attempts++
	}
	if e.attempts >= maxAttempts {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := r.index(e); i >= 0 {
		e.fresh = r.queue[i].fresh
		r.queue = append(slices.Delete(r.queue, i, i+1), e)
	}
	return true
}

// index returns where an Event waits; -1 if it was replaced or removed.
func (r *Recorder) index(e waiting) int {
	return slices.IndexFunc(r.queue, func(of waiting) bool { return of.Event == e.Event && of.at.Equal(e.at) })
}

// done removes an Event from the queue, unless a later one has replaced it.
func (r *Recorder) done(e waiting, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tokens--
	r.spent[e.Object.Namespace]++
	if i := r.index(e); i >= 0 {
		r.queue = slices.Delete(r.queue, i, i+1)
	}
	if err != nil {
		r.count.Dropped++
		return
	}
	r.count.Written++
	if len(r.recent) >= maxRecent {
		clear(r.recent)
	}
	r.recent[e.key()] = entry{e.Message, time.Now()}
}

// name is the same for all Events with this key, also of another process: a second one changes the first.
func (k key) name() string {
	sum := sha256.Sum256([]byte(strings.Join([]string{k.object.APIVersion, k.object.Kind, k.object.Namespace,
		k.object.Name, k.object.UID, k.reason}, "\x00")))
	name := strings.TrimRight(k.object.Name[:min(maxNamePart, len(k.object.Name))], ".-")
	return name + "." + hex.EncodeToString(sum[:8])
}

// written is the response of the API server.
type written struct {
	Count int `json:"count"`
}

// write creates an Event, or increments the count of an existing one.
func (r *Recorder) write(ctx context.Context, e waiting) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	namespace := cmp.Or(e.Object.Namespace, "default") // where Events of objects without a namespace are
	collection := "/api/v1/namespaces/" + url.PathEscape(namespace) + "/events"
	name, now := e.key().name(), e.at.UTC().Format(time.RFC3339)
	object := map[string]any{"apiVersion": "v1", "kind": "Event",
		"metadata": map[string]any{"name": name, "namespace": namespace}, "involvedObject": e.Object, "type": e.Type,
		"reason": e.Reason, "message": e.Message, "count": 1, "firstTimestamp": now, "lastTimestamp": now,
		"source":             map[string]any{"component": r.component, "host": r.host},
		"reportingComponent": r.component, "reportingInstance": r.host}
	err := r.client.Create(ctx, collection, object, nil)
	if !watch.IsStatus(err, http.StatusConflict) {
		return err
	}
	change := map[string]any{"type": e.Type, "message": e.Message, "lastTimestamp": now,
		"source":             map[string]any{"component": r.component, "host": r.host},
		"reportingComponent": r.component, "reportingInstance": r.host}
	var is written // the right to read Events is not needed for its count
	if err := r.client.Merge(ctx, collection+"/"+name, change, &is); err != nil {
		return err
	}
	return r.client.Merge(ctx, collection+"/"+name, map[string]any{"count": is.Count + 1}, nil)
}

// again reports whether a request may succeed later.
func again(err error) bool {
	status, answered := errors.AsType[*watch.StatusError](err)
	return !answered || status.Code == http.StatusTooManyRequests || status.Code >= http.StatusInternalServerError
}

// limited returns at most maxMessage bytes of a text, without a part of a character at the end, and with spaces in
// place of control characters: it may be what another program reported, and terminals show it.
func limited(text string) string {
	text = api.Printable(text)
	if len(text) <= maxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:maxMessage-len("...")], "") + "..."
}
