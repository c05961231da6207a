// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
)

// Resource says which objects to follow.
type Resource struct {
	Path     string // of the collection, for example /api/v1/pods
	Fields   string // field selector
	Metadata bool   // only metadata is needed
}

// Object is the constraint for types that can be watched.
type Object[T any] interface {
	*T
	Meta() *api.ObjectMeta
}

// Keeper is implemented by types whose objects are delivered even if they cannot be decoded completely: losing them
// would be worse than knowing only a part.
type Keeper interface {
	// Keep is called with the error. The fields that could be decoded are set.
	Keep(err error)
}

// Handler receives objects. Its methods are called sequentially.
type Handler[T any] struct {
	Replace func([]T) // all objects that there are, by a complete list
	Set     func(T)   // one is new or has changed
	Delete  func(T)   // one is gone
	// Share is called at the start of a list. The function that it returns is called with each object of the list, until
	// Replace, and can make objects share memory. If it returns a UID, that object, the current or an earlier one, is
	// removed from the list. Share may be nil.
	Share func() func(*T) (drop string)
}

func (h Handler[T]) share() func(*T) string {
	if h.Share == nil {
		return func(*T) string { return "" }
	}
	return h.Share()
}

// Times of a follower, which tests shorten.
type Times struct {
	Backoff, MaxBackoff time.Duration // before the first and the last attempts after errors
	Watch               time.Duration // after which the server ends a watch, and half as long again at random
}

// DefaultTimes are for slow links: in steady state there is one request per hour.
var DefaultTimes = Times{Backoff: 500 * time.Millisecond, MaxBackoff: 30 * time.Second, Watch: 40 * time.Minute}

// pageSize is the number of objects of one LIST.
const pageSize = 500

// follower follows the objects of one resource.
type follower[T any, P Object[T]] struct {
	client   *Client
	resource Resource
	handler  Handler[T]
	times    Times
	log      *slog.Logger

	version string            // to continue from; empty: everything has to be listed
	seen    map[string]uint64 // resource versions of objects, by UID: what is older is late
	deleted []string          // UIDs in seen that were deleted last
	lists   bool              // the server cannot send initial events
}

// Follow lists and watches objects until the context ends. It retries after all errors of API server and network.
func Follow[T any, P Object[T]](ctx context.Context, c *Client, r Resource, times Times, log *slog.Logger,
	h Handler[T]) {
	f := &follower[T, P]{client: c, resource: r, handler: h, times: times, log: log.With("path", r.Path)}
	c.count.watch(r.Path, func(s *WatchStats) { s.Last = time.Now() })
	defer c.count.watch(r.Path, func(s *WatchStats) { s.Last = time.Time{} }) // it does not get older
	wait := times.Backoff
	for ctx.Err() == nil {
		started := time.Now()
		err := f.round(ctx)
		lasted := time.Since(started) >= times.MaxBackoff
		if lasted {
			wait = times.Backoff
		}
		if ctx.Err() != nil || err == nil && lasted {
			continue // the server ends a watch now and then
		}
		if IsStatus(err, http.StatusGone) {
			f.version = ""
		}
		if err != nil {
			c.count.watch(r.Path, func(s *WatchStats) { s.Errors++ })
			f.log.Warn("watch interrupted", "error", explain(err), "retry", wait)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait/2 + rand.N(wait)): // all nodes lose the server at the same time
		}
		wait = min(2*wait, times.MaxBackoff)
	}
}

// List returns all objects. The server reads them from its store, and not from a cache that may be stale.
func List[T any, P Object[T]](ctx context.Context, c *Client, r Resource, log *slog.Logger) (all []T, err error) {
	f := &follower[T, P]{client: c, resource: r, log: log, handler: Handler[T]{Replace: func(got []T) { all = got }}}
	return all, f.list(ctx)
}

// explain adds what to do about an error whose text does not say it.
func explain(err error) error {
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		return fmt.Errorf("%w; if the certificate is valid, the clock of this node is wrong: set it", err)
	}
	return err
}

// round makes one watch request, after a list if necessary.
func (f *follower[T, P]) round(ctx context.Context) error {
	if f.version == "" && f.lists {
		if err := f.list(ctx); err != nil {
			return fmt.Errorf("list: %w", err)
		}
	}
	initial := f.version == ""
	err := f.watch(ctx, initial)
	if initial && f.version == "" &&
		(IsStatus(err, http.StatusUnprocessableEntity) || IsStatus(err, http.StatusBadRequest)) {
		f.lists = true
		return f.round(ctx)
	}
	return err
}

// request opens a list or, if the query says so, a watch. For metadata it asks for PartialObjectMetadata, which the API
// server reduces the objects to before it sends them.
func (f *follower[T, P]) request(ctx context.Context, query url.Values) (io.ReadCloser, error) {
	if f.resource.Fields != "" {
		query.Set("fieldSelector", f.resource.Fields)
	}
	accept := "application/json"
	if f.resource.Metadata {
		kind := "PartialObjectMetadata"
		if !query.Has("watch") {
			kind += "List"
		}
		accept = "application/json;as=" + kind + ";g=meta.k8s.io;v=v1"
	}
	return f.client.open(ctx, http.MethodGet, f.resource.Path+"?"+query.Encode(), nil, "Accept", accept)
}

// list replaces everything by pages of LIST.
func (f *follower[T, P]) list(ctx context.Context) error {
	var all []T
	share := f.handler.share()
	query := url.Values{"limit": {strconv.Itoa(pageSize)}}
	for {
		body, err := f.request(ctx, query)
		if err != nil {
			return err
		}
		version, more, err := readPage(body, func(item json.RawMessage) error {
			object, ok, err := f.decode(item)
			if !ok {
				return err
			}
			drop := share(&object)
			all = append(all, object)
			for i := len(all) - 1; drop != "" && i >= 0; i-- { // it is one of the last
				if P(&all[i]).Meta().UID == drop {
					all = slices.Delete(all, i, i+1)
					break
				}
			}
			return nil
		})
		body.Close()
		if err != nil {
			return err
		}
		if version == "" {
			return errors.New("the answer has no metadata.resourceVersion: is something else than an API server there?")
		}
		if more == "" {
			f.replace(all, version)
			return nil
		}
		query.Set("continue", more)
	}
}

// readPage calls each with one item of a page after the other: 500 objects may have 1.5 MB each. It returns the version
// of the list, and where the next page begins; empty after the last one.
func readPage(body io.Reader, each func(json.RawMessage) error) (version, more string, err error) {
	d := json.NewDecoder(body)
	if _, err := d.Token(); err != nil {
		return "", "", err
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return "", "", err
		}
		switch name {
		case "metadata":
			var m struct{ ResourceVersion, Continue string }
			err = d.Decode(&m)
			version, more = m.ResourceVersion, m.Continue
		case "items":
			err = readItems(d, each)
		default:
			var unused json.RawMessage
			err = d.Decode(&unused)
		}
		if err != nil {
			return "", "", err
		}
	}
	_, err = d.Token() // an answer that is cut off ends here
	return version, more, err
}

func readItems(d *json.Decoder, each func(json.RawMessage) error) error {
	if start, err := d.Token(); err != nil || start == nil { // null: none
		return err
	}
	var item json.RawMessage
	for d.More() {
		item = item[:0] // each has decoded it
		if err := d.Decode(&item); err != nil {
			return err
		}
		if err := each(item); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

// decode returns false for an object that cannot be decoded, so that it does not block others. For a Keeper, it returns
// the fields that can be decoded, or an error if these lack the name, without which a list is incomplete.
func (f *follower[T, P]) decode(text []byte) (object T, ok bool, err error) {
	err = json.Unmarshal(text, &object)
	if err == nil {
		return object, true, nil
	}
	name := P(&object).Meta().Name
	keeper, keeps := any(P(&object)).(Keeper)
	f.log.Warn("an object cannot be decoded", "object", name, "error", err)
	switch {
	case !keeps:
		return object, false, nil
	case name == "":
		return object, false, fmt.Errorf("an object without a name cannot be decoded: %w", err)
	}
	keeper.Keep(err)
	return object, true, nil
}

func (f *follower[T, P]) replace(all []T, version string) {
	f.seen, f.deleted = make(map[string]uint64, len(all)), nil
	for i := range all {
		f.note(P(&all[i]).Meta())
	}
	f.version = version
	if f.times != (Times{}) { // not List
		f.client.count.watch(f.resource.Path, func(s *WatchStats) { s.Lists, s.Last = s.Lists+1, time.Now() })
	}
	f.handler.Replace(all)
}

// event is one line of a watch.
type event struct {
	Type   string
	Object json.RawMessage
}

// mark is the object of a bookmark, or of an error.
type mark struct {
	Metadata struct {
		ResourceVersion string
		Annotations     map[string]string
	}
	Code            int
	Reason, Message string
}

// initialEventsEnd marks the bookmark after the last object of a list.
const initialEventsEnd = "k8s.io/initial-events-end"

// watch follows changes until the server ends it. With initial it starts with all objects.
func (f *follower[T, P]) watch(ctx context.Context, initial bool) error {
	lasts := f.times.Watch + rand.N(f.times.Watch/2+1)
	ctx, cancel := context.WithTimeout(ctx, lasts+headerTimeout) // if the server does not end it
	defer cancel()
	query := url.Values{"watch": {"true"}, "allowWatchBookmarks": {"true"},
		"timeoutSeconds": {strconv.Itoa(max(1, int(lasts.Seconds())))}}
	if initial {
		query.Set("sendInitialEvents", "true")
		query.Set("resourceVersionMatch", "NotOlderThan")
	} else {
		query.Set("resourceVersion", f.version)
	}
	body, err := f.request(ctx, query)
	if err != nil {
		return err
	}
	defer body.Close()
	// until all initial events are there; then empty, as a watch lasts for an hour
	listed := listing[T]{map[string]T{}, f.handler.share()}
	var e event // its text of one object is the room for that of the next
	for decoder := json.NewDecoder(body); ; {
		if e.Type, e.Object = "", e.Object[:0]; cap(e.Object) > maxEventRoom {
			e.Object = nil
		}
		if err := decoder.Decode(&e); err != nil {
			if errors.Is(err, io.EOF) {
				return f.ended(initial)
			}
			return err
		}
		f.client.count.watch(f.resource.Path, func(s *WatchStats) { s.Last = time.Now() })
		done, err := f.take(e, initial, listed)
		if err != nil {
			return err
		}
		if done {
			initial, listed = false, listing[T]{}
		}
	}
}

// maxEventRoom is how many bytes of room for texts a watch keeps while it waits.
const maxEventRoom = 16 << 10

// listing is the objects of a list so far, by UID.
type listing[T any] struct {
	objects map[string]T
	share   func(*T) string
}

func (f *follower[T, P]) ended(initial bool) error {
	if initial {
		return errors.New("the watch ended before it had listed all objects")
	}
	return nil
}

// take handles one event. It returns true if it is the end of the list.
func (f *follower[T, P]) take(e event, initial bool, listed listing[T]) (end bool, err error) {
	switch e.Type {
	case "BOOKMARK", "ERROR":
		var m mark
		if err := json.Unmarshal(e.Object, &m); err != nil {
			return false, fmt.Errorf("%s: %w", e.Type, err)
		}
		if e.Type == "ERROR" {
			return false, &StatusError{m.Code, m.Reason, m.Message}
		}
		if initial {
			if m.Metadata.Annotations[initialEventsEnd] != "true" {
				return false, nil
			}
			all := slices.AppendSeq(make([]T, 0, len(listed.objects)), maps.Values(listed.objects))
			clear(listed.objects) // not in memory twice while the handler works
			f.replace(all, m.Metadata.ResourceVersion)
			return true, nil
		}
		f.version = m.Metadata.ResourceVersion
		return false, nil
	case "ADDED", "MODIFIED", "DELETED":
	default:
		return false, nil // of a later version of the protocol
	}
	object, ok, err := f.decode(e.Object)
	if err != nil || !ok {
		return false, err
	}
	meta := P(&object).Meta()
	switch {
	case !initial:
		f.change(e.Type == "DELETED", object, meta)
	case e.Type == "DELETED":
		delete(listed.objects, meta.UID)
	default:
		drop := listed.share(&object)
		listed.objects[meta.UID] = object
		if drop != "" {
			delete(listed.objects, drop)
		}
	}
	return false, nil
}

// change delivers an object, unless a newer version is known.
func (f *follower[T, P]) change(deleted bool, object T, meta *api.ObjectMeta) {
	version, late := f.late(meta, deleted)
	if late {
		return
	}
	if current, err := strconv.ParseUint(f.version, 10, 64); err != nil || version > current {
		f.version = meta.ResourceVersion
	}
	f.note(meta)
	if deleted {
		f.forget(meta.UID)
		f.handler.Delete(object)
		return
	}
	f.handler.Set(object)
}

// late reports whether an event is not newer than the known version of its object. Resource versions are comparable
// numbers (KEP-5504); if not, no event is late. A deletion may have the version of the object.
func (f *follower[T, P]) late(meta *api.ObjectMeta, deleted bool) (uint64, bool) {
	version, err := strconv.ParseUint(meta.ResourceVersion, 10, 64)
	known, ok := f.seen[meta.UID]
	if version == known && deleted && !slices.Contains(f.deleted, meta.UID) {
		return version, false
	}
	return version, err == nil && ok && version <= known
}

// maxDeleted is how many deleted objects are remembered, so that a late event brings none of them back.
const maxDeleted = 1000

func (f *follower[T, P]) forget(uid string) {
	f.deleted = append(f.deleted, uid)
	if len(f.deleted) > maxDeleted {
		delete(f.seen, f.deleted[0])
		f.deleted = f.deleted[1:]
	}
}

func (f *follower[T, P]) note(meta *api.ObjectMeta) {
	if version, err := strconv.ParseUint(meta.ResourceVersion, 10, 64); err == nil && meta.UID != "" {
		f.seen[meta.UID] = version
	}
}
