// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

func TestRequests(t *testing.T) {
	w := newRequests()
	a, b := netip.MustParseAddr("10.30.0.1"), netip.MustParseAddr("fdff::1")
	for _, addr := range []netip.Addr{a, b, a, netip.MustParseAddr("::ffff:10.30.0.1"), {}} {
		w.resolve(addr)
	}
	w.release("x")
	w.release("x")
	if got := w.take(t.Context()); !slices.Equal(got.Resolve, []netip.Addr{a, b}) ||
		!slices.Equal(got.Release, []string{"x"}) {
		t.Errorf("%+v", got)
	}
	taken := make(chan Requests)
	go func() { taken <- w.take(t.Context()) }() // waits: all is taken
	w.resolve(a)
	if got := <-taken; !slices.Equal(got.Resolve, []netip.Addr{a}) {
		t.Errorf("%+v", got)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	w.resolve(b)
	if got := w.take(gone); len(got.Resolve) != 0 {
		t.Errorf("given to one who has gone: %+v", got)
	}
	if got := w.take(t.Context()); !slices.Equal(got.Resolve, []netip.Addr{b}) {
		t.Errorf("%+v", got)
	}
	for i := range 2 * maxRequests {
		w.resolve(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))
	}
	if got := w.take(t.Context()); len(got.Resolve) != maxRequests {
		t.Errorf("%d addresses", len(got.Resolve))
	}
}

// releaser releases its config.
type releaser struct{ echo }

func (releaser) Compile(config json.RawMessage) (Compiled, error) {
	return releaser{echo{config: string(config)}}, nil
}
func (r releaser) Open(l Live) (Running, error) {
	l.Release(r.config)
	return r.echo.Open(l)
}

// Releases of a map set are sent to the agent with its name, and discarded once the next map set has started.
func TestReleasesOfAMapSet(t *testing.T) {
	s := serve(t, releaser{})
	defer s.end()
	for _, g := range []string{"a", "b"} {
		s.send(g)
		s.call("/kerb/v1/start", MapSetRequest{MapSet: g, Config: json.RawMessage(`"` + g + `"`)}, 204)
	}
	res, err := s.client.Get("http://control/kerb/v1/wanted")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	got, _ := io.ReadAll(res.Body)
	if want := `{"idle":["\"b\""],"generation":"b"}`; string(bytes.TrimSpace(got)) != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// user is a Running that works with virtual services and follows attachments.
type user struct {
	echo
	mu      sync.Mutex
	updates []VirtualServiceUpdate
	changes []string
	refuse  bool
}

func (u *user) VirtualServices(update VirtualServiceUpdate) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.refuse {
		return &ConfigError{Field: "x", Reason: "refused"}
	}
	u.updates = append(u.updates, update)
	return nil
}

func (u *user) AttachmentChanged(i Attachment, there bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.changes = append(u.changes, fmt.Sprint(i.Ifindex, there, i.Ingress))
}

func (u *user) Compile(json.RawMessage) (Compiled, error) { return u, nil }
func (u *user) Open(Live) (Running, error)                { return u, nil }

func TestServeVirtualServices(t *testing.T) {
	u := &user{}
	s := serve(t, u)
	defer s.end()
	update := VirtualServiceUpdate{MapSet: "a", Reset: true, Complete: true,
		Put: []VirtualService{{Name: "web", Spec: v1alpha1.VirtualServiceSpec{
			Addresses: []v1alpha1.VirtualAddress{{Address: "10.30.0.2", Policy: v1alpha1.PolicyClosest}}}}},
		Unknown: []netip.Addr{netip.MustParseAddr("10.30.0.9")}}
	s.call("/kerb/v1/virtualservices", update, 409)
	s.send("a")
	start := MapSetRequest{MapSet: "a", Config: json.RawMessage("1"),
		Attachments: []Attachment{{Ifindex: 7}, {Ifindex: 8}}}
	s.call("/kerb/v1/start", start, 204)
	s.call("/kerb/v1/virtualservices", update, 204)
	update.MapSet = "b"
	s.call("/kerb/v1/virtualservices", update, 409)
	u.refuse = true
	update.MapSet = "a"
	s.call("/kerb/v1/virtualservices", update, 422)
	if len(u.updates) != 1 || u.updates[0].Put[0].Spec.Addresses[0].Policy != v1alpha1.PolicyClosest ||
		!u.updates[0].Complete {
		t.Errorf("%+v", u.updates)
	}
	s.call("/kerb/v1/attached", Attachment{Ifindex: 7, Ingress: []string{"fw"}}, 204)
	s.call("/kerb/v1/attached", Attachment{Ifindex: 7, Ingress: []string{"fw"}}, 204)
	s.call("/kerb/v1/attached", Attachment{Ifindex: 9}, 204)
	s.call("/kerb/v1/detached", Attachment{Ifindex: 8}, 204)
	s.call("/kerb/v1/detached", Attachment{Ifindex: 8}, 204)
	start.Attachments = []Attachment{{Ifindex: 7}, {Ifindex: 10}}
	s.call("/kerb/v1/start", start, 204) // is started already
	want := []string{"7 true [fw]", "9 true []", "8 false []", "9 false []", "7 true []", "10 true []"}
	if !slices.Equal(u.changes, want) {
		t.Errorf("%q, want %q", u.changes, want)
	}
}

func TestServeOthers(t *testing.T) {
	s := serveEcho(t)
	defer s.end()
	s.send("a")
	s.call("/kerb/v1/start", MapSetRequest{MapSet: "a", Config: json.RawMessage("1")}, 204)
	s.call("/kerb/v1/virtualservices", VirtualServiceUpdate{MapSet: "a"}, 404)
}

// A pending request does not prevent a control plane from ending.
func TestWantedEnds(t *testing.T) {
	s := serveEcho(t)
	go func() { _, _ = s.client.Get("http://control/kerb/v1/wanted") }()
	time.Sleep(50 * time.Millisecond) // most often the question has come by then
	s.end()
}

// modeller is a Running that works with models.
type modeller struct {
	echo
	updates []ModelUpdate
}

func (m *modeller) Compile(json.RawMessage) (Compiled, error) { return m, nil }
func (m *modeller) Open(Live) (Running, error)                { return m, nil }

func (m *modeller) Models(u ModelUpdate) (ModelAnswer, error) {
	m.updates = append(m.updates, u)
	return ModelAnswer{Using: []string{u.Put[0].Name}, Refused: map[string]string{"other": "odd"}}, nil
}

func (m *modeller) Conditions() ([]Condition, error) {
	return []Condition{{Type: "Fuse", Status: "True", Reason: "Intact"}}, nil
}

func TestServeModels(t *testing.T) {
	m := &modeller{}
	s := serve(t, m)
	defer s.end()
	update := ModelUpdate{MapSet: "a", Reset: true,
		Put: []Model{{Name: "m", Generation: 3, Document: json.RawMessage(`{"a": 1}`)}}, Remove: []string{"b"}}
	s.call("/kerb/v1/models", update, 409)
	s.send("a")
	s.call("/kerb/v1/start", MapSetRequest{MapSet: "a", Config: json.RawMessage("1")}, 204)
	if got, want := s.call("/kerb/v1/models", update, 200), `{"using":["m"],"refused":{"other":"odd"}}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if len(m.updates) != 1 || string(m.updates[0].Put[0].Document) != `{"a":1}` || m.updates[0].Put[0].Generation != 3 {
		t.Errorf("%+v", m.updates)
	}
	s.call("/kerb/v1/virtualservices", VirtualServiceUpdate{MapSet: "a"}, 404)
	res, err := s.client.Get("http://control/kerb/v1/health")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var health HealthAnswer
	if err := json.NewDecoder(res.Body).Decode(&health); err != nil || len(health.Conditions) != 1 ||
		health.Conditions[0].Reason != "Intact" {
		t.Errorf("%+v, %v", health, err)
	}
}

// Frames are passed in order, and no more than the agent may have to take at a time.
func TestArrivals(t *testing.T) {
	w := newRequests()
	for i := range 2 * maxArrivals {
		if got := w.arrive(uint32(i), []byte{byte(i)}); got != (i < maxArrivals) {
			t.Fatalf("frame %d is taken: %v", i, got)
		}
	}
	got := w.take(t.Context()).Arrive
	if len(got) != maxArrivals || got[5].Ifindex != 5 || !bytes.Equal(got[5].Frame, []byte{5}) || !w.arrive(1, nil) {
		t.Errorf("%d frames, the sixth is %v", len(got), got[min(5, len(got)-1)])
	}
}
