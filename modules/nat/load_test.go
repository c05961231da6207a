// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"testing"

	"github.com/kerb-edge/kerb/sdk/sdktest"
)

func TestVerifies(t *testing.T) {
	m := sdktest.Load(t, sdktest.Options{Control: Control(), Config: `{"to_ip": "192.0.2.9", "to_ip6": "2001:db8::9"}`})
	m.CheckVerified(120000)
}
