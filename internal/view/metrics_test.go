// SPDX-License-Identifier: Apache-2.0

package view

import (
	"sync"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// A change does not wait for a scrape: between two resources the scrape lets it continue.
func TestYield(t *testing.T) {
	v, ended := &Views{Lock: new(sync.Mutex)}, false
	v.Lock.Lock()
	defer v.Lock.Unlock()
	go func() {
		v.Lock.Lock()
		defer v.Lock.Unlock()
		ended = true
	}()
	wait.Until(t, "the change ends", func() bool {
		v.yield()
		return ended
	})
}
