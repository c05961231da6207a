// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"testing"

	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// maxVerified is the limit for Linux 6.1. Up to 6.1, the verifier treats states as different if any scalar differs, and
// verifies ten times as many instructions as later kernels.
const maxVerified = 350_000

func TestVerifies(t *testing.T) {
	m := sdktest.Load(t, sdktest.Options{Control: Control(), Config: `{"to_ip": "192.0.2.9", "to_ip6": "2001:db8::9"}`})
	m.CheckVerified(maxVerified)
}
