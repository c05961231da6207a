// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/watch/watchtest"
)

// leases is an API server with one Lease. It refuses a write that does not name its version.
type leases struct {
	sync.Mutex
	version int // 0: there is none
	holder  string
	renewed string
	writes  int
	read    func() // called once after a GET, before its answer is received
}

func (l *leases) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.Lock()
	defer l.Unlock()
	var body struct {
		Metadata struct{ ResourceVersion string }
		Spec     struct{ HolderIdentity, RenewTime string }
	}
	current := fmt.Sprintf(`{"metadata":{"resourceVersion":"%d"},"spec":{"holderIdentity":%q,"renewTime":%q}}`, l.version,
		l.holder, l.renewed)
	switch {
	case r.Method == http.MethodGet && l.version == 0:
		w.WriteHeader(http.StatusNotFound)
		return
	case r.Method == http.MethodGet:
		if then := l.read; then != nil {
			l.read = nil
			l.Unlock()
			then()
			l.Lock()
		}
		fmt.Fprint(w, current)
		return
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if r.Method == http.MethodPost && l.version > 0 ||
		r.Method == http.MethodPatch && body.Metadata.ResourceVersion != fmt.Sprint(l.version) {
		w.WriteHeader(http.StatusConflict)
		return
	}
	l.version, l.writes = l.version+1, l.writes+1
	l.holder, l.renewed = body.Spec.HolderIdentity, body.Spec.RenewTime
	fmt.Fprint(w, "{}")
}

// waits has so much time pass for a process, as if by its clock.
func (e *elector) waits(d time.Duration) {
	e.seen, e.until = e.seen.Add(-d), e.until.Add(-d)
}

// Of two controllers one writes. Another takes the Lease only if it has not seen it change for its whole time, whatever
// times the clock of the other one has put into it; of two that do so at once one succeeds.
func TestLease(t *testing.T) {
	server := &leases{}
	client := watchtest.Client(t, server)
	process := func(name string) *elector { return &elector{client: client, identity: name} }
	a, b, c := process("a"), process("b"), process("c")
	try := func(what string, e *elector, leads bool) {
		t.Helper()
		if err := e.try(t.Context()); err != nil || e.leads() != leads {
			t.Errorf("%s: %s leads: %v, %v", what, e.identity, e.leads(), err)
		}
	}
	try("the first one", a, true)
	try("the second one", b, false)
	for _, clock := range []string{"1970-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z", "no time"} {
		b.waits(leaseTime)
		a.waits(renewEvery)
		try("it renews", a, true)
		server.Lock()
		server.renewed = clock
		server.Unlock()
		try("the clock of the holder says "+clock, b, false)
		b.waits(leaseTime - time.Second)
		try("some time without a change", b, false)
	}
	try("another one", c, false)
	b.waits(leaseTime)
	c.waits(leaseTime)
	a.waits(leaseTime)
	if a.leads() {
		t.Error("a holder that has not renewed the Lease leads")
	}
	server.read = func() { try("the faster one of two", b, true) }
	try("the slower one of two", c, false)
	try("the holder of before", a, false)
	if server.holder != "b" {
		t.Errorf("%s holds the Lease", server.holder)
	}
	writes := server.writes
	a.release(t.Context())
	c.release(t.Context())
	if server.writes != writes || server.holder != "b" {
		t.Errorf("others have released the Lease of b: %d writes", server.writes-writes)
	}
	b.release(t.Context())
	try("after it was released", c, true)
}
