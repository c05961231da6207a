// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"maps"
	"reflect"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/service"
)

// aheadAge is how long a service that was looked up ahead counts as what it was.
const aheadAge = time.Second

// aheadMost is how many lookups ahead run at once. Each keeps a thread.
const aheadMost = 16

// ahead is a service that was looked up before the change that is about it.
type ahead struct {
	service.State
	spec v1.ServiceSpec
	at   time.Time
}

// Prefetch looks services up for a change that may have to wait for others: a lookup waits, too, for the kernel's lock
// of network configuration. The next Observe takes what it finds, unless that is old or not complete. Interfaces are
// not looked up: another one may have the name when it is the change's turn.
func (o *Observer) Prefetch(specs map[string]v1.ServiceSpec) {
	specs = maps.Clone(specs)
	maps.DeleteFunc(specs, func(_ string, s v1.ServiceSpec) bool { return s.Interface != "" })
	if !o.beginPrefetch(specs) {
		return
	}
	at := time.Now()
	found, err := o.ResolveAlone(specs)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.looking--; err != nil {
		return
	}
	if o.ahead == nil {
		o.ahead = map[string]ahead{}
	}
	for name, state := range found {
		if isFound(state) {
			o.ahead[name] = ahead{state, specs[name], at}
		}
	}
}

// beginPrefetch forgets what was known of services, and reports whether to look them up.
func (o *Observer) beginPrefetch(specs map[string]v1.ServiceSpec) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, known := range o.ahead {
		if _, again := specs[name]; again || time.Since(known.at) >= aheadAge {
			delete(o.ahead, name)
		}
	}
	if len(specs) == 0 || o.looking == aheadMost {
		return false
	}
	o.looking++
	return true
}

// takePrefetched returns a service that was looked up ahead, once.
func (o *Observer) takePrefetched(name string, spec v1.ServiceSpec) (service.State, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	known, ok := o.ahead[name]
	delete(o.ahead, name)
	return known.State, ok && time.Since(known.at) < aheadAge && reflect.DeepEqual(known.spec, spec)
}
