// SPDX-License-Identifier: Apache-2.0

// Package events writes Events of Kubernetes, with the plain client of package watch. Their number is bounded: one for
// each reason and object that it is about, a limited rate, and a short queue. An Event that cannot be written blocks
// nothing else.
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
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
)

// Types of Events.
const (
	Normal  = "Normal"
	Warning = "Warning"
)

// Limits of what is kept in memory, and of texts.
const (
	maxQueued   = 64
	maxRecent   = 256
	maxMessage  = 1024 // bytes, the API server's limit
	maxNamePart = 200  // bytes of an Event's name: 253 with the digest
)

const writeTimeout = 10 * time.Second

// Object is what an Event is about.
type Object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	UID        string `json:"uid,omitempty"`
}

// Event is something that has happened to an object.
type Event struct {
	Object  Object
	Type    string // Normal or Warning
	Reason  string // one CamelCase word
	Message string // what has happened, and what to do
}

// Limits are those of a Recorder, in time.
type Limits struct {
	Burst int           // Events that are written at once
	Every time.Duration // and then one after this time
	Same  time.Duration // in which the same Event is written once
	Retry time.Duration // first pause after the API server could not be reached. It doubles, up to a minute
}

// DefaultLimits are those of a node: 1,000 of them write at most 1.7 Events a second for longer than a moment.
var DefaultLimits = Limits{Burst: 10, Every: 10 * time.Minute, Same: 10 * time.Minute, Retry: time.Second}

const maxRetry = time.Minute

// Recorder writes Events. It is safe for concurrent use.
type Recorder struct {
	client          *watch.Client
	component, host string
	limits          Limits
	log             *slog.Logger
	wake            chan struct{}

	mu     sync.Mutex
	queue  []Event
	recent map[key]entry
	count  Counts
}

// Counts are numbers of Events since the start.
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

// New returns a recorder of a component, which runs on a host: the name of a Node, or of a pod.
func New(c *watch.Client, component, host string, limits Limits, log *slog.Logger) *Recorder {
	return &Recorder{client: c, component: component, host: host, limits: limits, log: log,
		wake: make(chan struct{}, 1), recent: map[key]entry{}}
}

func (e Event) key() key { return key{e.Object, e.Reason} }

// Record queues an Event. One that waits about the same object with the same reason is replaced. A nil recorder drops
// it.
func (r *Recorder) Record(e Event) {
	if r == nil {
		return
	}
	e.Message = limited(e.Message)
	r.mu.Lock()
	defer r.mu.Unlock()
	if last, ok := r.recent[e.key()]; ok && last.message == e.Message && time.Since(last.at) < r.limits.Same {
		return
	}
	for i := range r.queue {
		if r.queue[i].key() == e.key() {
			r.queue[i] = e
			return
		}
	}
	if len(r.queue) >= maxQueued {
		r.count.Dropped++
		return
	}
	r.queue = append(r.queue, e)
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Counts returns how many Events were written and dropped.
func (r *Recorder) Counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}

// Run writes Events until the context ends.
func (r *Recorder) Run(ctx context.Context) {
	tokens, filled, retry := r.limits.Burst, time.Now(), r.limits.Retry
	for ctx.Err() == nil {
		e, ok := r.first()
		if !ok {
			select {
			case <-ctx.Done():
			case <-r.wake:
			}
			continue
		}
		if n := int(time.Since(filled) / r.limits.Every); n > 0 {
			tokens, filled = min(r.limits.Burst, tokens+n), filled.Add(time.Duration(n)*r.limits.Every)
		}
		if tokens == 0 {
			pause(ctx, time.Until(filled.Add(r.limits.Every)))
			continue
		}
		err := r.write(ctx, e)
		if ctx.Err() != nil {
			return
		}
		if err != nil && again(err) {
			pause(ctx, retry/2+rand.N(retry)) // it stays in the queue, as long as there is room
			retry = min(2*retry, maxRetry)
			continue
		}
		if err != nil {
			r.log.Warn("an Event is not written", "object", e.Object.Name, "reason", e.Reason, "error", err)
		}
		tokens, retry = tokens-1, r.limits.Retry
		r.done(e, err)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (r *Recorder) first() (Event, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) == 0 {
		return Event{}, false
	}
	return r.queue[0], true
}

// done removes an Event from the queue, unless a later one has replaced it.
func (r *Recorder) done(e Event, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queue[0] == e {
		r.queue = r.queue[1:]
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

// written is what the API server answers.
type written struct {
	Count int `json:"count"`
}

// write creates an Event, or counts one more of those that are there.
func (r *Recorder) write(ctx context.Context, e Event) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	namespace := cmp.Or(e.Object.Namespace, "default") // where Events of objects without a namespace are
	collection := "/api/v1/namespaces/" + url.PathEscape(namespace) + "/events"
	name, now := e.key().name(), time.Now().UTC().Format(time.RFC3339)
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
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
	if len(text) <= maxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:maxMessage-len("...")], "") + "..."
}
