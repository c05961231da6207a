// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/kerb-edge/kerb/internal/integration/link"
)

// newQuietSession returns a session without a connection, and the results that the agent got from it.
func newQuietSession() (*session, *[]link.Result) {
	told := &[]link.Result{}
	s := &session{sessionOptions: sessionOptions{worker: testWorker, times: defaultTimes,
		resolved: func(r link.Result) { *told = append(*told, r) }},
		changed: make(chan struct{}, 1), services: map[string]*trackedService{}, lookups: map[netip.Addr]*lookup{}}
	for _, text := range []string{"10.30.0.0/16", "fdff:2000::/21", "fdff::/21"} {
		s.ranges = append(s.ranges, netip.MustParsePrefix(text))
	}
	return s, told
}

// last returns the last result of a service that the agent got.
func last(t *testing.T, told *[]link.Result) link.Record {
	t.Helper()
	if len(*told) == 0 || (*told)[len(*told)-1].Put == nil {
		t.Fatalf("got %+v", *told)
	}
	return *(*told)[len(*told)-1].Put
}

func (s *session) answer(t *testing.T, app, key, list string) {
	t.Helper()
	if err := s.handleTable(fmt.Appendf(nil, `{"app_name":%q,"query_key":%q,"instance_list":%s}`, app, key,
		list)); err != nil {
		t.Fatal(err)
	}
}

// A release that crosses the message to keep the service, or arrives before its last instance here ends, leaves no
// entry behind: the agent learns that it need not be kept.
func TestReleaseBeforeTheLastInstanceEnds(t *testing.T) {
	s, told := newQuietSession()
	s.add(hostedInstance{app: testApp, number: 0, four: netip.MustParseAddr("10.18.0.2")})
	s.answer(t, testApp, testApp, "["+entryOf(0, `"namespace_ip":"10.18.0.2",`)+"]")
	if got := last(t, told); !got.Keep {
		t.Errorf("got %+v", got)
	}
	s.request(link.Request{Release: []string{recordPrefix + testApp}})
	s.withdraw(testApp, 0)
	if got := last(t, told); got.Keep {
		t.Errorf("after the last instance: got %+v", got)
	}
	s.request(link.Request{Release: []string{recordPrefix + testApp}})
	if f := s.services[testApp]; f.used || f.leaveAt.IsZero() {
		t.Errorf("after the release: %+v", f)
	}
}

// A cluster that gives one name to all addresses does not exhaust the memory.
func TestAddressesWithoutInstancesAreBounded(t *testing.T) {
	s, told := newQuietSession()
	addr := netip.MustParseAddr("10.30.0.0")
	for range maxAddresses + 1 {
		addr = addr.Next()
		s.request(link.Request{Lookup: []netip.Addr{addr}})
		s.answer(t, "a", addr.String(), "[]")
	}
	if got := len(s.services["a"].found.Spec.Addresses); got != maxAddresses {
		t.Errorf("%d addresses, want %d", got, maxAddresses)
	}
	if got := (*told)[len(*told)-1]; got.NotFound != addr {
		t.Errorf("the last address: %+v", got)
	}
}

// A reply without any of the service's addresses in the ranges still updates the instances.
func TestInstancesWithoutUsableAddresses(t *testing.T) {
	s, told := newQuietSession()
	s.request(link.Request{Lookup: []netip.Addr{netip.MustParseAddr("10.30.0.2")}})
	s.answer(t, "a", "10.30.0.2", "["+entryOf(0, `"namespace_ip":"10.18.0.2",`)+"]")
	s.answer(t, "a", "a", `[{"instance_number":1,"namespace_ip":"10.18.0.9",`+
		`"service_ip":[{"IpType":"RR","Address_v6":"fdff:3000::1"}]}]`)
	got := last(t, told).Spec
	if len(got.Instances) != 1 || got.Instances[0].Name != "1" || got.Instances[0].Addresses[0] != "10.18.0.9" ||
		got.Addresses[0].Address != "10.30.0.2" {
		t.Errorf("%+v", got)
	}
}

// Services that are in use survive a new id of the node.
func TestLookupsAfterANewRegistration(t *testing.T) {
	m := newMember(t)
	m.cluster.Create(otherApp)
	m.register(testWorker)
	m.elsewhere(0, "10.18.1.2")
	const addresses = "10.30.0.0=roundRobin 10.30.0.1=0 "
	m.finds(m.proxy(), "10.30.0.0", otherApp, addresses+"0:10.18.1.2@192.168.77.12")
	m.register("6650000000000000000000ff")
	m.elsewhere(0, "10.18.1.3")
	m.shows(otherApp, addresses+"0:10.18.1.3@192.168.77.12")
}
