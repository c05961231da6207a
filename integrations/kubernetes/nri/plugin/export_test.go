// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"testing"
	"time"
)

// SetHandshake has a runtime take at most d to configure the plugin until the test ends.
func SetHandshake(t *testing.T, d time.Duration) {
	before := handshake
	handshake = d
	t.Cleanup(func() { handshake = before })
}
